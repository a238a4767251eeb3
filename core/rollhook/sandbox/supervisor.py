"""Process 1 of a sandbox: starts commands on the host's word, bounds them, and ends them.

Invariant: a command gets no more than its limits, and none outlives a `kill`, its time or this process. What
runs inside cannot signal, read or speak for process 1: it is pid 1 of its namespace and not dumpable.

This file is run inside the sandbox by its Python, alone: only the standard library, and nothing of rollhook.
Standard input is a SEQPACKET socket; a message is JSON, with file descriptors beside it:

    host -> here   {"op": "start", "id", "argv" or "task", "cwd", "env", "timeout_s", "pty"} + [in, out, err]
                   {"op": "kill", "id"}           ends every process but this one
    here -> host   {"op": "ready"}
                   {"op": "started", "id"} (+ [pty]) or {"op": "failed", "id", "errno"}
                   {"op": "exit", "id", "status", "why"}   why: null, "time", "memory" or "files"
                   {"op": "killed", "id"}
"""

# pathlib would take a third of the start-up of every sandbox:
# ruff: noqa: PTH103, PTH109, PTH112, PTH117, PTH118, PTH120, PTH123, PTH208, PTH211

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import resource
import select
import signal
import socket
import stat
import sys
import termios
import time
from typing import Any

WATCH_S = 0.25
MESSAGE_BYTES = 1 << 18
COPY_BYTES = 1 << 16
PAGE_BYTES = resource.getpagesize()
_PR_SET_DUMPABLE = 4


class Supervisor:
    """The commands of one sandbox. alone: whether every process it can see belongs to it (pid 1)."""

    def __init__(self, control: socket.socket, limits: dict[str, int]) -> None:
        self.control = control
        self.limits = limits
        self.alone = os.getpid() == 1
        self.running: dict[int, tuple[int, float]] = {}  # pid -> id, deadline
        self.why: dict[int, str] = {}  # pid -> why it was killed

    def run(self) -> None:
        """Serve until the host closes its end."""
        wakeup, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(wakeup, select.POLLIN)
        self.tell({"op": "ready"})
        watched = time.monotonic()
        while True:
            poll.poll(WATCH_S * 1000 if self.has_processes() else None)
            with contextlib.suppress(BlockingIOError):
                os.read(wakeup, 4096)
            self.reap()
            if not self.serve():
                self.kill(None)
                return
            if time.monotonic() - watched >= WATCH_S:
                self.watch()
                watched = time.monotonic()

    def serve(self) -> bool:
        """Do what the host asked for, if anything; False once it has closed its end."""
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self.control, MESSAGE_BYTES, 3)
            except BlockingIOError:
                return True
            if not data:
                return False
            message = json.loads(data)
            if message["op"] == "kill":
                self.kill(None)
                self.tell({"op": "killed", "id": message["id"]})
            else:
                self.start(message, fds)
            for fd in set(fds):
                os.close(fd)

    def start(self, message: dict[str, Any], fds: list[int]) -> None:
        master = -1
        try:
            if message["pty"]:
                master, slave = os.openpty()
                termios.tcsetwinsize(slave, message["pty"])
                fds += [slave] * (3 - len(fds))
            pid = os.fork()
        except OSError as error:
            if master >= 0:
                os.close(master)
            self.tell({"op": "failed", "id": message["id"], "errno": error.errno})
            return
        if pid == 0:
            _become(message, fds, self.limits, self.alone)
        seconds = message["timeout_s"]
        deadline = float("inf") if seconds is None else time.monotonic() + seconds
        self.running[pid] = (message["id"], deadline)
        self.tell({"op": "started", "id": message["id"]}, [master] if master >= 0 else [])
        if master >= 0:
            os.close(master)

    def reap(self) -> None:
        """Wait for whoever has ended, and tell the host of those it started."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self.ended(pid, status)

    def ended(self, pid: int, status: int) -> None:
        if pid in self.running:
            number, _ = self.running.pop(pid)
            code, why = os.waitstatus_to_exitcode(status), self.why.pop(pid, None)
            self.tell({"op": "exit", "id": number, "status": code, "why": why})

    def watch(self) -> None:
        """Enforce what the kernel does not count: time on the wall, memory and files of all together."""
        now = time.monotonic()
        late = [pid for pid, (_, deadline) in self.running.items() if now > deadline]
        if late:
            self.kill("time", late)
        elif self.alone:
            if _memory_bytes(self.limits["memory_bytes"]) > self.limits["memory_bytes"]:
                self.kill("memory")
            elif _used_files() > self.limits["files"]:
                self.kill("files")

    def kill(self, why: str | None, blamed: list[int] | None = None) -> None:
        """End every process but this one, and wait until they are gone."""
        if why is not None:
            self.why.update(dict.fromkeys(self.running if blamed is None else blamed, why))
        if self.alone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while True:
                    self.ended(*os.waitpid(-1, 0))
        else:
            for pid in self.running:
                _kill_session(pid)
            while self.running:
                self.ended(*os.waitpid(next(iter(self.running)), 0))

    def has_processes(self) -> bool:
        if not self.alone:
            return bool(self.running)
        return sum(name.isdigit() for name in os.listdir("/proc")) > 1

    def tell(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the next read sees the end
            while True:
                try:
                    socket.send_fds(self.control, [json.dumps(message).encode()], fds or [])
                    return
                except BlockingIOError:  # the host is slow to read
                    select.select([], [self.control], [])


def _become(message: dict[str, Any], fds: list[int], limits: dict[str, int], alone: bool) -> None:
    """Turn this fresh child into the command. Does not return."""
    code = 127
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        if message["pty"]:
            fcntl.ioctl(fds[0], termios.TIOCSCTTY, 0)
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in fds]  # none of them is overwritten below
        for target, fd in enumerate(high):
            os.dup2(fd, target)
        os.closerange(3, 1024)
        _limit(limits, alone)
        os.chdir(message["cwd"])
        if "task" in message:
            code = _perform(message["task"], message["path"], message["limit"])
        else:
            os.execvpe(message["argv"][0], message["argv"], message["env"])
    except OSError as error:
        what = message["argv"][0] if "argv" in message else message["task"]
        os.write(2, f"cannot run {what} in {message['cwd']}: {error.strerror}\n".encode())
    except BaseException as error:  # noqa: BLE001  a child must never return into the supervisor's loop
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def _limit(limits: dict[str, int], alone: bool) -> None:
    processes = limits["processes"] + 1  # process 1 counts; elsewhere the user's other processes would
    for kind, value in (
        (resource.RLIMIT_CPU, limits["cpu_s"]),
        (resource.RLIMIT_DATA, limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_NPROC, processes if alone else -1),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        if value >= 0:
            soft = value
            hard = value + 1 if kind == resource.RLIMIT_CPU else value  # SIGXCPU first, then SIGKILL
            resource.setrlimit(kind, (soft, hard))


def _memory_bytes(enough: int) -> int:
    """What all processes but this one hold, shared pages once; a quick upper bound while below `enough`."""
    pids = [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]
    resident = sum(_statm_bytes(pid) for pid in pids)
    return resident if resident <= enough else sum(_rollup_bytes(pid) for pid in pids)


def _statm_bytes(pid: str) -> int:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/statm", "rb") as file:
        return int(file.read().split()[1]) * PAGE_BYTES
    return 0


def _rollup_bytes(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith(b"Pss:"))
    except (OSError, StopIteration):
        return _statm_bytes(pid)  # it is not dumpable, or gone


def _used_files() -> int:
    about = os.statvfs("/")
    return about.f_files - about.f_ffree


def _kill_session(leader: int) -> None:
    """Where this process is not alone: the session that a command leads. A daemon gets away."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.getsid(int(name)) == leader:
                    os.kill(int(name), signal.SIGKILL)


def _perform(task: str, path: str, limit: int) -> int:
    """A file operation, in a child of its own. Returns 0 or an errno."""
    try:
        {"read": _read, "write": _write, "pack": _pack, "unpack": _unpack}[task](path, limit)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _read(path: str, limit: int) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO must not hold us
    about = os.fstat(fd)
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder")
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    if about.st_size > limit:
        raise OSError(errno.EFBIG, "too large")
    _copy(fd, 1)


def _write(path: str, limit: int) -> None:
    del limit
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o644)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    _copy(0, fd)


def _copy(source: int, target: int) -> None:
    while data := os.read(source, COPY_BYTES):
        while data:
            data = data[os.write(target, data) :]


def _pack(path: str, limit: int) -> None:
    """The folder as a tar on standard output: files, folders and links; nothing else."""
    import tarfile

    if not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, "not a folder")
    total = 0

    def kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        nonlocal total
        total += 1024 + (entry.size if entry.isreg() else 0)
        if total > limit:
            raise OSError(errno.EFBIG, "too large")
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry if entry.isreg() or entry.isdir() or entry.issym() or entry.islnk() else None

    with open(1, "wb", closefd=False) as out, tarfile.open(fileobj=out, mode="w|") as tar:
        tar.add(path, arcname=".", filter=kept)


def _unpack(path: str, limit: int) -> None:
    """Files of a tar on standard input, links last: nothing is written through one of them."""
    import tarfile

    del limit
    os.makedirs(path, exist_ok=True)
    links = []
    with open(0, "rb", closefd=False) as source, tarfile.open(fileobj=source, mode="r|") as tar:
        for entry in tar:
            name = os.path.normpath(entry.name)
            if name.startswith("..") or os.path.isabs(name):
                raise OSError(errno.EINVAL, "a path outside")
            if entry.issym() or entry.islnk():
                links.append(entry)
            elif entry.isreg() or entry.isdir():
                entry.mode = (entry.mode & 0o777) | (0o700 if entry.isdir() else 0o600)
                tar.extract(entry, path, set_attrs=True, filter="fully_trusted")
    for entry in links:
        where = os.path.join(path, entry.name)
        with contextlib.suppress(FileExistsError):
            if entry.issym():
                os.symlink(entry.linkname, where)
            else:
                os.link(os.path.join(path, entry.linkname), where, follow_symlinks=False)


def _hide() -> None:
    """Let no process of the same user read this one's memory; be the first to go when memory is short."""
    import ctypes

    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    if ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError("prctl(PR_SET_DUMPABLE) failed")


def main() -> None:
    """Run with the limits, as JSON, for an argument."""
    os.closerange(3, 1024)
    control = socket.socket(fileno=os.dup(0))
    control.setblocking(False)
    os.set_inheritable(control.fileno(), False)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    _hide()
    supervisor = Supervisor(control, json.loads(sys.argv[1]))
    supervisor.run()
    if not supervisor.alone:
        import shutil

        shutil.rmtree(os.getcwd(), ignore_errors=True)


if __name__ == "__main__":
    main()
