"""Commands without walls: the supervisor as a plain process, for machines where bubblewrap cannot run.

Nothing is isolated: commands run as the user that runs rollhook, with its files and its network. Their
sessions are killed like a sandbox's; a daemon that leaves its session gets away.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile

from rollhook.errors import ConfigError
from rollhook.sandbox.launch import SUPERVISOR, Launch, Packages
from rollhook.sandbox.limits import SandboxLimits


class UnsafeSubprocess:
    """Starts supervisors that share everything with the host (a `Launcher`)."""

    def __init__(self, limits: SandboxLimits) -> None:
        if not sys.platform.startswith("linux"):
            raise ConfigError(f"rollhook/unsafe-subprocess runs on Linux, and this is {sys.platform}")
        self.limits = limits
        self.python = str(limits.python or sys.executable)
        self.environment = {
            "PATH": os.pathsep.join([os.path.dirname(self.python), os.defpath]),  # noqa: PTH120  joined as text
            "LANG": "C.UTF-8",
            "TERM": "xterm",
            "PYTHONSAFEPATH": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def prepare(self, packages: Packages) -> None:
        """Nothing: the interpreter has what it has."""

    def launch(self, packages: Packages) -> Launch:
        """Start in a folder of its own, which the supervisor removes at its end."""
        del packages
        folder = tempfile.mkdtemp(prefix="rollhook-unsafe-")
        bounds = json.dumps(self.limits.for_supervisor())
        return Launch([self.python, "-I", "-S", "-B", str(SUPERVISOR), bounds], cwd=folder)
