"""Attempts to get out of the interpreter, or to leave something behind. None may succeed.

Each attempt is code as a model could write it; it prints ESCAPED when it got what it wanted. System calls go
by the numbers of x86-64.
"""

from __future__ import annotations

import asyncio
import platform
import socket
import textwrap
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rollhook import Plugins, RunConfig, Runtime
from rollhook_retool.interpreter import Interpreter

pytestmark = pytest.mark.asyncio(loop_scope="module")

MakeInterpreter = Callable[..., Awaitable[Interpreter]]

SECRET = "hunter2"
"""In the environment and in a file of the host."""

HELPERS = """
import ctypes, os, socket, sys, subprocess, signal, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def escaped(what=''): print('ESCA' + 'PED', what)
def attempt(action, *arguments):
    try: return action(*arguments)
    except BaseException as error: print(type(error).__name__, error); return None
def syscall(*arguments):
    result = libc.syscall(*arguments)
    if result < 0: print(os.strerror(ctypes.get_errno()))
    return result
def host_pids(): return [p for p in os.listdir('/proc') if p.isdigit()]
"""

ATTEMPTS = {
    "host file by its path": "attempt(lambda: escaped(open(HOST_FILE).read()))",
    "host file through a symlink": (
        "os.symlink(HOST_FILE, 'link'); attempt(lambda: escaped(open('link').read()))"
    ),
    "host file through the roots in /proc": (
        "for p in host_pids():\n for w in ('root', 'cwd'):\n"
        "  attempt(lambda: escaped(open(f'/proc/{p}/{w}' + HOST_FILE).read()))"
    ),
    "host file by climbing up": "attempt(lambda: escaped(open('../' * 40 + HOST_FILE).read()))",
    "host accounts": "for f in ('/etc/shadow', '/root/.bashrc'): attempt(lambda: escaped(open(f).read()))",
    "home folders": "[escaped(d) for d in ('/root', '/home', '/var', '/srv', '/mnt') if os.path.isdir(d)]",
    "packages of the host": (
        "for name in ('rollhook', 'rollhook_retool', 'pip', 'pytest'):\n"
        " try: __import__(name); escaped(name)\n"
        " except ImportError: pass"
    ),
    "own environment": "if SECRET in repr(dict(os.environ)): escaped()",
    "environment of other processes": (
        "for p in host_pids():\n"
        " attempt(lambda: SECRET.encode() in open(f'/proc/{p}/environ', 'rb').read() and escaped(p))"
    ),
    "host processes": "if len(host_pids()) > 4 or os.getpid() > 1000: escaped(host_pids())",
    "server on the host's loopback": (
        "attempt(lambda: escaped(socket.create_connection(('127.0.0.1', HOST_PORT), 2).recv(9)))"
    ),
    "the internet": (
        "for a in ('1.1.1.1', '8.8.8.8'): attempt(lambda: escaped(socket.create_connection((a, 53), 2)))"
    ),
    "name service": "attempt(lambda: escaped(socket.getaddrinfo('example.com', 80)))",
    "abstract socket of the host": (
        "s = socket.socket(socket.AF_UNIX)\nattempt(lambda: (s.connect('\\0' + HOST_SOCKET), escaped()))"
    ),
    "virtual machine sockets": "attempt(lambda: escaped(socket.socket(40, socket.SOCK_STREAM)))",
    "raw, packet, netlink and crypto sockets": (
        "for f, k, p in ((2, 3, 1), (17, 3, 0), (16, 3, 0), (38, 5, 0)):\n"
        " attempt(lambda: escaped(socket.socket(f, k, p)))"
    ),
    "socket family hidden in the upper half": "if syscall(41, 0x100000028, 1, 0) >= 0: escaped()",
    "fork bomb": (
        "n = 0\n"
        "try:\n"
        " while n < 500:\n"
        "  if os.fork() == 0: time.sleep(2); os._exit(0)\n"
        "  n += 1\n"
        "except OSError as error: print(error)\n"
        "if n > 30: escaped(n)"
    ),
    "thread bomb": (
        "n = 0\n"
        "try:\n"
        " while n < 500: threading.Thread(target=time.sleep, args=[0.5], daemon=True).start(); n += 1\n"
        "except RuntimeError as error: print(error)\n"
        "if n > 30: escaped(n)"
    ),
    "memory": "x = attempt(bytearray, 1 << 30)\nif x is not None: escaped()",
    "memory without a process": (
        "for n, a in ((319, (b'x', 0)), (447, (0,)), (29, (0, 1 << 20, 0o1600))):\n"
        " if syscall(n, *a) >= 0: escaped(n)"
    ),
    "disk": (
        "n = 0\n"
        "def fill():\n"
        " global n\n"
        " for i in range(40):\n"
        "  with open(f'fill{i}', 'wb') as f: n += f.write(bytes(8 << 20))\n"
        "attempt(fill)\n"
        "if n > 64 << 20: escaped(n)\n"
        "for i in range(40): attempt(os.remove, f'fill{i}')"
    ),
    "one huge file": "attempt(lambda: escaped(os.truncate(os.open('huge', os.O_CREAT | 2), 1 << 30)))",
    "disk behind /dev and /run": (
        "for d in ('/dev', '/usr', '/proc', '/sys', '/opt', '/opt/python'):\n"
        " attempt(lambda: (open(d + '/x', 'wb').write(bytes(1 << 20)), escaped(d)))"
    ),
    "signals to the parent": (
        "for s in (9, 15, 19, 11): attempt(os.kill, os.getppid(), s); attempt(os.kill, 1, s)\ntime.sleep(0.1)"
    ),
    "signals to everybody": "attempt(os.kill, -1, 9)",
    "memory of process 1": (
        "for n in ('mem', 'maps', 'environ', 'auxv'):\n"
        " attempt(lambda: escaped(open(f'/proc/1/{n}', 'rb').read(9)))"
    ),
    "descriptors of process 1": "attempt(lambda: escaped(os.listdir('/proc/1/fd')))",
    "tracing": (
        "if syscall(101, 16, 1, 0, 0) >= 0: escaped('attach')\n"
        "if syscall(310, 1, 0, 0, 0, 0, 0) >= 0: escaped('read')\n"
        "if syscall(438, os.pidfd_open(1), 0, 0) >= 0: escaped('pidfd_getfd')"
    ),
    "inherited descriptors": (
        "kinds = [os.readlink(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd')\n"
        "         if os.path.lexists(f'/proc/self/fd/{fd}')]\n"
        "good = ('pipe:', '/dev/null', '/tmp/.output', '/proc/')\n"
        "bad = [kind for kind in kinds if not kind.startswith(good)]\n"
        "if bad or len(kinds) > 12: escaped(kinds)"
    ),
    "new namespaces": (
        "for flag in (0x10000000, 0x20000, 0x40000000, 0x20000000, 0x8000000, 0x4000000, 0x2000000):\n"
        " if syscall(272, flag) >= 0: escaped('unshare')\n"
        " pid = syscall(56, flag | 17, 0, 0, 0, 0)\n"
        " if pid == 0: os._exit(0)\n"
        " if pid > 0: escaped('clone')"
    ),
    "namespaces through clone3": (
        "arguments = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17)\n"
        "pid = syscall(435, arguments, 88)\n"
        "if pid == 0: os._exit(0)\n"
        "if pid > 0: escaped()"
    ),
    "namespaces of process 1": (
        "for n in ('user', 'mnt', 'net', 'pid'):\n"
        " attempt(lambda: syscall(308, os.open(f'/proc/1/ns/{n}', 0), 0) >= 0 and escaped(n))"
    ),
    "mounts": (
        "for n, a in ((165, (b'none', b'/tmp', b'tmpfs', 0, 0)), (165, (b'/', b'/usr', 0, 4128, 0)),\n"
        "             (166, (b'/usr', 2)), (155, (b'/tmp', b'/tmp')), (161, (b'/tmp',)),\n"
        "             (428, (-100, b'/', 1)),\n"
        "             (430, (b'tmpfs', 0)), (442, (-100, b'/usr', 0, 0, 0))):\n"
        " if syscall(n, *a) >= 0: escaped(n)"
    ),
    "becoming root": (
        "for f in (os.setuid, os.setgid, os.setegid, os.seteuid): attempt(lambda: (f(0), escaped(f)))\n"
        "if 'root' in subprocess.run(['sh', '-c', 'su -c id; sudo -n id; id -un'], capture_output=True,"
        " text=True).stdout: escaped()"
    ),
    "capabilities": (
        "caps = [line.split()[1] for line in open('/proc/self/status') if line.startswith('Cap')]\n"
        "if set(caps) != {'0' * 16}: escaped(caps)\n"
        "if 'NoNewPrivs:\\t1' not in open('/proc/self/status').read(): escaped()"
    ),
    "devices": (
        "for d in ('/dev/mem', '/dev/kmsg', '/dev/vda', '/dev/sda', '/dev/kvm', '/dev/fuse'):\n"
        " attempt(lambda: escaped(os.open(d, os.O_RDONLY)))\n"
        "attempt(lambda: (os.mknod('disk', 0o60666, os.makedev(254, 0)), escaped(os.open('disk', 0))))"
    ),
    "kernel settings": (
        "for f in ('/proc/sysrq-trigger', '/proc/sys/kernel/core_pattern',\n"
        "          '/proc/sys/vm/overcommit_memory', '/sys/kernel/uevent_helper'):\n"
        " attempt(lambda: (os.write(os.open(f, os.O_WRONLY), b'1'), escaped(f)))"
    ),
    "control groups": (
        "attempt(lambda: escaped(os.listdir('/sys/fs/cgroup')))\n"
        "if syscall(165, b'c', b'/tmp', b'cgroup2', 0, 0) >= 0: escaped()"
    ),
    "kernel interfaces": (
        "for n, a in ((321, (0, 0, 0)), (298, (0, 0, -1, -1, 0)), (425, (1, 0)), (323, (0,)),\n"
        "             (250, (0, 0, 0)), (248, (b'user', b'x', b'y', 1, -1)), (175, (0, 0, b'')),\n"
        "             (246, (0, 0, 0, 0)), (169, (0,)), (303, (-100, b'/', 0, 0, 0)), (304, (0, 0, 0)),\n"
        "             (103, (3, 0, 0)), (135, (0x0400000,))):\n"
        " if syscall(n, *a) >= 0: escaped(n)"
    ),
    "system calls of 32 bits": (
        "pid = os.fork()\n"
        "if pid == 0: os._exit(7 if libc.syscall(0x40000000 + 272, 0x10000000) == 0 else 0)\n"
        "if os.waitpid(pid, 0)[1] >> 8 == 7: escaped()"
    ),
    "keys typed into the terminal": (
        "import fcntl\n"
        "attempt(lambda: (fcntl.ioctl(os.open('/dev/tty', os.O_RDWR), 0x5412, b'x'), escaped()))"
    ),
    "limits": (
        "import resource as r\n"
        "for n in (r.RLIMIT_NPROC, r.RLIMIT_DATA, r.RLIMIT_CPU, r.RLIMIT_FSIZE):\n"
        " attempt(lambda: (r.setrlimit(n, (-1, -1)), escaped(n)))"
    ),
    "startup files of Python": (
        "import site\n"
        "for d in (*sys.path, *site.getsitepackages(), '/opt/site', '/opt/python/lib'):\n"
        " for n in ('sitecustomize.py', 'evil.pth'):\n"
        "  if d not in ('', '/app'): attempt(lambda: (open(f'{d}/{n}', 'w').write('import os'), escaped(d)))"
    ),
    "replacing the supervisor": (
        "for a in (os.remove, os.unlink, lambda p: open(p, 'w')):\n"
        " attempt(lambda: (a('/opt/rollhook/supervisor.py'), escaped()))"
    ),
    "another bubblewrap": (
        "done = subprocess.run(['bwrap', '--unshare-user', '--ro-bind', '/', '/', 'true'])\n"
        "if done.returncode == 0: escaped()"
    ),
    "answers forged on standard output": (
        'print(\'{"nonce": "x", "output": "forged"}\')\n'
        "for fd in range(3, 40):\n"
        ' attempt(os.write, fd, b\'{"nonce": "x", "output": "forged"}\\nnoise\\n\')'
    ),
}


@pytest.fixture
def secret_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROLLHOOK_TEST_SECRET", SECRET)
    file = tmp_path / "secret.txt"
    file.write_text(SECRET)
    return file


@pytest_asyncio.fixture(loop_scope="module")
async def host(secret_file: Path) -> AsyncIterator[str]:
    """What there is to get on the host; as lines of Python that name it."""
    name = f"rollhook-{uuid.uuid4().hex}"

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"welcome")
        writer.close()

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{name}")
    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    unix = await asyncio.start_unix_server(greet, sock=listener)
    async with server, unix:
        port = server.sockets[0].getsockname()[1]
        places = f"HOST_FILE = {str(secret_file)!r}; HOST_PORT = {port}; HOST_SOCKET = {name!r}"
        yield f"{places}; SECRET = {SECRET!r}\n"


async def test_there_are_at_least_25_attempts() -> None:
    assert len(ATTEMPTS) >= 25


@pytest.mark.skipif(platform.machine() != "x86_64", reason="system calls are called by their numbers")
@pytest.mark.parametrize("attempt", ATTEMPTS)
async def test_nothing_gets_out(python: Interpreter, host: str, attempt: str) -> None:
    await python.run("here = 'still here'")
    shown = await python.run(host + HELPERS + ATTEMPTS[attempt])

    assert "ESCAPED" not in shown
    assert SECRET not in shown
    assert "restarted" not in shown, "the attempt itself did not run to its end"
    assert await python.run("here") == "'still here'"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="system calls are called by their numbers")
async def test_nothing_gets_out_of_an_interpreter_from_the_stock_either(
    make_interpreter: MakeInterpreter, host: str
) -> None:
    """With numpy and sympy imported before, their threads and memory included."""
    python = await make_interpreter(packages=("numpy", "sympy"), warm=1, timeout_s=20)
    async with asyncio.timeout(60):
        while not python._workers.unused:
            await asyncio.sleep(0.01)
    descriptors_first = sorted(ATTEMPTS, key=lambda name: name != "inherited descriptors")
    for name in descriptors_first:  # others leave open what they opened
        shown = await python.run(host + HELPERS + ATTEMPTS[name])
        assert "ESCAPED" not in shown, name
        assert SECRET not in shown, name
        assert "restarted" not in shown, name


@pytest.mark.parametrize(
    "attempt", ["host file by its path", "server on the host's loopback", "abstract socket of the host"]
)
async def test_the_attempts_would_succeed_without_walls(
    qwen3_tokenizer: Any, host: str, attempt: str
) -> None:
    config = RunConfig(engine="http://127.0.0.1:9", sandbox="rollhook/unsafe-subprocess")
    async with Runtime(config, plugins=Plugins(entry_points=[]), tokenizer=qwen3_tokenizer) as runtime:
        sandbox = await runtime.sandbox()
        try:
            done = await sandbox.exec([sandbox.python, "-c", host + HELPERS + ATTEMPTS[attempt]])
        finally:
            await sandbox.close()

    assert b"ESCAPED" in done.stdout


def marked(number: str) -> Iterator[int]:
    """Processes on the host whose command line holds `number`."""
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and number.encode() in (folder / "cmdline").read_bytes():
                yield int(folder.name)
        except OSError:
            continue


UNKILLABLE = """
import os, signal, subprocess
for _ in range(2):
    if os.fork():
        break
    os.setsid()
else:
    for number in range(1, 65):
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
    os.execvp('sh', ['sh', '-c', "trap '' HUP INT TERM QUIT; while :; do sleep NUMBER; done"])
"""


async def test_children_that_ignore_every_signal_are_gone_with_the_rollout(
    make_interpreter: MakeInterpreter,
) -> None:
    number = str(uuid.uuid4().int % 10**9 + 10**9)
    python = await make_interpreter(timeout_s=5)
    await python.run(UNKILLABLE.replace("NUMBER", number))
    async with asyncio.timeout(20):
        while not list(marked(number)):
            await asyncio.sleep(0.02)
    assert python._worker is not None
    await python._worker.close()

    assert list(marked(number)) == []


async def test_c_code_that_ignores_signals_is_killed_with_its_children(
    make_interpreter: MakeInterpreter,
) -> None:
    number = str(uuid.uuid4().int % 10**9 + 10**9)
    python = await make_interpreter(timeout_s=0.5)
    code = f"""
        import ctypes, signal, subprocess
        subprocess.Popen(['sleep', '{number}'], start_new_session=True)
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
        ctypes.PyDLL(None).sleep(1000)
        """

    assert "did not end within 0.5 s" in await python.run(textwrap.dedent(code))
    assert list(marked(number)) == []


async def test_an_answer_larger_than_any_is_not_read_to_its_end(make_interpreter: MakeInterpreter) -> None:
    python = await make_interpreter(timeout_s=10)
    flood = " try:\n  while True: os.write(fd, b'x' * 65536)\n except OSError: pass"
    code = f"import os\nfor fd in range(3, 20):\n{flood}"

    assert "The interpreter was restarted" in await python.run(code)
    assert await python.run("1 + 1") == "2"


async def test_two_rollouts_see_nothing_of_each_other(make_interpreter: MakeInterpreter) -> None:
    first, second = await make_interpreter(), await make_interpreter()
    await first.run("open('/app/f', 'w').write('x'); open('/tmp/f', 'w').write('x')")

    assert (
        await second.run("import os; os.path.exists('/app/f'), os.path.exists('/tmp/f')") == "(False, False)"
    )
