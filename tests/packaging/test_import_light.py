"""Importing is quick: torch, transformers and the SDKs load where they are first used, never before."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata

from rollhook.plugins import ENTRY_POINT_GROUP

HEAVY = ["torch", "transformers", "openai", "anthropic", "playwright", "numpy", "pyarrow", "tantivy"]
CORE = ["rollhook", "rollhook.cli", "rollhook.testing", "rollhook.testing.fixtures", "rollhook.embedded"]
HOOKS = sorted(found.value for found in metadata.entry_points(group=ENTRY_POINT_GROUP))

# one process imports them in turn, and tells after which one a heavy module was first there
IMPORTS = """
import importlib, json, sys
names, heavy = json.loads(sys.argv[1])
brought = {}
for name in names:
    importlib.import_module(name)
    for module in set(heavy) & set(sys.modules):
        brought.setdefault(module, name)
print(json.dumps(brought))
"""


def test_importing_the_core_and_every_plugins_hooks_brings_in_nothing_heavy() -> None:
    command = [sys.executable, "-W", "error", "-c", IMPORTS, json.dumps([[*CORE, *HOOKS], HEAVY])]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert ran.stderr == ""
    assert json.loads(ran.stdout) == {}


def test_the_plugins_of_this_repository_are_among_those_looked_at() -> None:
    assert {"rollhook_calculator.hooks", "rollhook_debate.hooks", "rollhook_search_r1.hooks"} <= set(HOOKS)
