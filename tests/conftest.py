"""Shared by all tests. The fixtures of `rollhook.testing` come from its pytest plugin, as for any user."""

from __future__ import annotations

import os
import signal

# before transformers is imported: no test may reach for a model hub
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# a shell starts what runs in its background with Ctrl-C ignored, and so do the programs that tests interrupt
signal.signal(signal.SIGINT, signal.default_int_handler)
