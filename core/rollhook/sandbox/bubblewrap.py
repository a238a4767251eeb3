"""The command line that starts a sandbox with bubblewrap.

Invariant: what is inside sees /usr, its Python and the packages asked for, all read-only, and one bounded
in-memory file system that is its own; no other file, process, user or network of the host.

Started as root, bubblewrap would run as root's own user, for whom the kernel does not count processes. So an
outer bubblewrap, which may read root's folders, gathers what is shown inside, and the inner one starts as a
user of its own.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from rollhook.errors import ConfigError
from rollhook.sandbox import seccomp
from rollhook.sandbox.launch import SUPERVISOR, Launch, Packages
from rollhook.sandbox.limits import MIB, SandboxLimits
from rollhook.sandbox.python import HOME_INSIDE, SITE_INSIDE, Interpreter, find_interpreter, find_packages

INSTALL = "apt-get install --no-install-recommends bubblewrap"
WORKDIR = "/app"
_SUPERVISOR = "/opt/rollhook/supervisor.py"
_STAGE = "/tmp"
_UID = 1000
_SHM_MIB = 64
_ETC = {
    "/etc/passwd": "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/app:/bin/bash\n",
    "/etc/group": "root:x:0:\nuser:x:1000:\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_FIRST_UID, _UIDS = 1_000_000_000, 1_000_000


class Bubblewrap:
    """How this machine starts sandboxes (a `Launcher`). Raises ConfigError, with what to do, where not."""

    def __init__(self, limits: SandboxLimits) -> None:
        if not sys.platform.startswith("linux"):
            raise ConfigError(f"the sandbox rollhook/bubblewrap runs on Linux, and this is {sys.platform}")
        self.limits = limits
        self.bwrap = _program("bwrap", INSTALL)
        self.setpriv = _program("setpriv", "apt-get install util-linux") if os.geteuid() == 0 else None
        self.filter = seccomp.program()
        self.interpreter: Interpreter = find_interpreter(limits.python)
        self.supervisor = SUPERVISOR.read_bytes()
        self._found: dict[Packages, dict[str, Path]] = {}

    def prepare(self, packages: Packages) -> None:
        """Find the files of `packages`. Reads many; not for the event loop."""
        if packages not in self._found:
            self._found[packages] = find_packages(packages)

    def launch(self, packages: Packages) -> Launch:
        """What starts one sandbox whose Python can import `packages`, once they are prepared."""
        shown = {f"{SITE_INSIDE}/{name}": path for name, path in self._found[packages].items()}
        if self.interpreter.home is not None:
            shown[HOME_INSIDE] = self.interpreter.home
        files = {name: text.encode() for name, text in _ETC.items()}
        files[_SUPERVISOR] = self.supervisor
        descriptors = [_memory_file(data) for data in (self.filter, *files.values())]
        data = dict(zip(files, descriptors[1:], strict=True))
        prefix: list[str] = []
        if self.setpriv is not None:
            prefix, shown = self._as_root(self.setpriv, shown)
        command = [*prefix, *self._inner(shown, data, descriptors[0])]
        return Launch(command, tuple(descriptors))

    @property
    def python(self) -> str:
        """The interpreter, as it is called inside."""
        return self.interpreter.path

    @property
    def environment(self) -> dict[str, str]:
        """What commands inside find in their environment: nothing of the host's."""
        return {
            "PATH": f"{Path(self.python).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": WORKDIR,
            "USER": "user",
            "LANG": "C.UTF-8",
            "TERM": "xterm",
            "PYTHONPATH": SITE_INSIDE,
            "PYTHONSAFEPATH": "1",
            "PYTHONNOUSERSITE": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }

    def _as_root(self, setpriv: str, shown: Mapping[str, Path]) -> tuple[list[str], dict[str, Path]]:
        """The outer bubblewrap and the change of user; and where the inner one finds what is shown."""
        staged = {inside: Path(f"{_STAGE}/{number}") for number, inside in enumerate(shown)}
        binds = [("--ro-bind", str(shown[inside]), str(staged[inside])) for inside in shown]
        uid = str(_guest_uid())
        outer = [
            self.bwrap,
            "--dev-bind",
            "/",
            "/",
            "--tmpfs",
            _STAGE,
            *(arg for bind in binds for arg in bind),
        ]
        user = [setpriv, f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]
        return [*outer, "--die-with-parent", "--", *user], staged

    def _inner(self, shown: Mapping[str, Path], data: Mapping[str, int], filter_fd: int) -> list[str]:
        limits = self.limits
        disk, shm = str(limits.disk_mb * MIB), str(min(limits.disk_mb, _SHM_MIB) * MIB)
        command = [self.bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1"]
        command += ["--uid", str(_UID), "--gid", str(_UID), "--hostname", "sandbox", "--clearenv"]
        command += ["--size", disk, "--tmpfs", "/", "--perms", "1777", "--dir", "/tmp", "--dir", WORKDIR]
        command += ["--ro-bind", "/usr", "/usr"]
        for name in ("bin", "sbin", "lib", "lib32", "lib64"):
            command += _system(name)
        for name in ("/etc/alternatives", "/etc/ld.so.cache"):
            command += ["--ro-bind-try", name, name]
        command += ["--size", str(MIB), "--tmpfs", "/opt"]
        for folder in ("/etc", "/opt/rollhook", SITE_INSIDE):
            command += ["--perms", "0755", "--dir", folder]
        for inside, path in shown.items():
            command += ["--ro-bind", str(path), inside]
        for inside, descriptor in data.items():
            command += ["--ro-bind-data", str(descriptor), inside]
        for covered in self.interpreter.covered:
            command += ["--size", str(MIB), "--tmpfs", covered, "--remount-ro", covered]
        command += ["--remount-ro", "/opt", "--proc", "/proc", "--dev", "/dev"]
        command += ["--size", shm, "--perms", "1777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
        command += ["--chdir", WORKDIR, "--seccomp", str(filter_fd), "--"]
        bounds = json.dumps(limits.for_supervisor())
        return [*command, self.interpreter.path, "-I", "-S", "-B", _SUPERVISOR, bounds]


def advice(stderr: str) -> str:
    """What to do about bubblewrap's own error."""
    if "namespace" in stderr or "uid map" in stderr or "Operation not permitted" in stderr:
        return (
            "this machine does not let it make user namespaces: in a container add --security-opt "
            "seccomp=unconfined --security-opt apparmor=unconfined (or --privileged); on Ubuntu set sysctl "
            "kernel.apparmor_restrict_unprivileged_userns=0"
        )
    return f"see that `bwrap` works ({INSTALL})"


def _program(name: str, install: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise ConfigError(
            f"the sandbox rollhook/bubblewrap needs {name}, which is not installed; try: {install}"
        )
    return found


def _system(name: str) -> list[str]:
    """/bin and its like: a link into /usr, or on older systems a folder of its own."""
    path = Path("/", name)
    if path.is_symlink():
        return ["--symlink", str(path.readlink()), str(path)]
    return ["--ro-bind", str(path), str(path)] if path.is_dir() else []


def _guest_uid() -> int:
    """A host user that owns nothing: of a large range where root has it, else `nobody`."""
    mapped = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    if any(int(first) == 0 and int(count) > _FIRST_UID + _UIDS for first, _, count in mapped):
        return _FIRST_UID + random.SystemRandom().randrange(_UIDS)
    return 65534


def _memory_file(data: bytes) -> int:
    descriptor = os.memfd_create("rollhook")
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
