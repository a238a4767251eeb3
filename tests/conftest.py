"""Shared by all tests. The fixtures of `rollhook.testing` come from its pytest plugin, as for any user."""

from __future__ import annotations

import os

# before transformers is imported: no test may reach for a model hub
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
