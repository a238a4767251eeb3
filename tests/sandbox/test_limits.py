"""What a sandbox bounds, and that everything inside ends with the bound."""

from __future__ import annotations

import asyncio

import pytest

from rollhook.sandbox.local import LocalSandbox
from tests.sandbox.conftest import MakeSandbox

OTHERS = "import os; print(len([p for p in os.listdir('/proc') if p.isdigit()]) - 2)"


async def others(sandbox: LocalSandbox) -> int:
    """How many processes there are inside beside process 1 and the one that counts."""
    return int((await sandbox.exec([sandbox.python, "-I", "-c", OTHERS])).stdout)


async def python(sandbox: LocalSandbox, script: str, timeout_s: float = 60.0) -> tuple[object, bytes]:
    done = await sandbox.exec([sandbox.python, "-I", "-c", script], timeout_s=timeout_s)
    return (done.killed_by or done.exit_code), (done.stdout + done.stderr).strip()


async def test_time_kills_everything_inside(sandbox: LocalSandbox) -> None:
    daemon = "(setsid sh -c 'trap \"\" TERM INT HUP; while :; do sleep 60; done' &) ; sleep 1000"
    done = await sandbox.exec(["sh", "-c", daemon], timeout_s=0.5)

    assert (done.exit_code, done.killed_by) == (None, "time")
    assert await others(sandbox) == 0


async def test_a_cancelled_command_takes_everything_with_it(sandbox: LocalSandbox) -> None:
    task = asyncio.create_task(sandbox.exec(["sh", "-c", "setsid sleep 1000 & sleep 1000"]))
    while await others(sandbox) < 3:
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await others(sandbox) == 0


async def test_a_flood_of_output_is_stopped_and_kept_to_its_bound(make_sandbox: MakeSandbox) -> None:
    sandbox = await make_sandbox(output_mb=1)
    done = await sandbox.exec(["yes"])

    assert (done.exit_code, done.killed_by, len(done.stdout)) == (None, "output", 1 << 20)
    assert await others(sandbox) == 0


async def test_one_process_gets_no_more_memory_than_allowed(make_sandbox: MakeSandbox) -> None:
    sandbox = await make_sandbox(memory_mb=128)

    assert (await python(sandbox, "bytearray(200 << 20)")) == (
        1,
        (await python(sandbox, "raise MemoryError"))[1],
    )


async def test_memory_of_all_processes_together_is_bounded(make_sandbox: MakeSandbox) -> None:
    sandbox = await make_sandbox(memory_mb=128)
    script = "import os, time\nfor _ in range(4): os.fork()\nx = bytearray(40 << 20)\ntime.sleep(600)"

    assert (await python(sandbox, script))[0] == "memory"
    assert await others(sandbox) == 0


async def test_shared_memory_of_one_process_is_bounded_too(make_sandbox: MakeSandbox) -> None:
    sandbox = await make_sandbox(memory_mb=128)
    script = (
        "import mmap, time\nm = mmap.mmap(-1, 1 << 30)\nm.write(bytes(100 << 20))\nm.write(bytes(100 << 20))"
    )

    assert (await python(sandbox, script + "\ntime.sleep(600)"))[0] == "memory"


async def test_a_fork_bomb_reaches_the_bound_and_dies(make_sandbox: MakeSandbox) -> None:
    sandbox = await make_sandbox(processes=20)
    script = "import os\nn = 0\ntry:\n    while True:\n        n += os.fork() != 0"
    counted, said = await python(sandbox, script + "\nexcept BlockingIOError:\n    print('full')\n", 20)
    assert counted in (0, "time")
    assert b"full" in said

    bomb = await sandbox.exec(["bash", "-c", ":(){ :|:& };: ; sleep 1000"], timeout_s=1)
    assert bomb.killed_by == "time"
    assert await others(sandbox) == 0


async def test_threads_count_as_processes(make_sandbox: MakeSandbox) -> None:
    sandbox = await make_sandbox(processes=20)
    script = (
        "import threading, time\nfor _ in range(60): threading.Thread(target=time.sleep, args=[1]).start()"
    )

    code, said = await python(sandbox, script + "\n")
    assert (code, b"can't start new thread" in said) == (1, True)


async def test_files_are_bounded_in_sum_in_size_and_in_number(make_sandbox: MakeSandbox) -> None:
    sandbox = await make_sandbox(disk_mb=8, file_mb=4, files=500)
    big = await sandbox.exec(["sh", "-c", "head -c 5M /dev/zero > f"])
    full = await sandbox.exec(["sh", "-c", "for i in 1 2 3; do head -c 3M /dev/zero > f$i; done"])
    many = await python(
        sandbox, "import time\nfor i in range(5000): open(f'n{i}', 'w').close()\ntime.sleep(600)"
    )

    assert big.exit_code != 0
    assert b"No space left on device" in full.stderr
    assert many[0] == "files"


@pytest.mark.parametrize("place", ["/dev/shm", "/tmp", "/", "/etc", "/opt", "/dev", "/run"])
async def test_no_place_holds_more_than_the_disk(make_sandbox: MakeSandbox, place: str) -> None:
    sandbox = await make_sandbox(disk_mb=4, file_mb=64)
    await sandbox.exec(["sh", "-c", f"mkdir -p {place}; head -c 20M /dev/zero > {place}/f"])

    held = await sandbox.exec(["sh", "-c", f"stat -c %s {place}/f || echo 0"])
    assert int(held.stdout) <= 4 << 20


async def test_cpu_time_is_bounded_for_a_process(make_sandbox: MakeSandbox) -> None:
    sandbox = await make_sandbox(cpu_s=1)
    ignores = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"

    assert (await python(sandbox, ignores))[0] == -9


async def test_open_files_are_bounded(make_sandbox: MakeSandbox) -> None:
    sandbox = await make_sandbox(open_files=32)
    code, said = await python(sandbox, "f = [open('/dev/null') for _ in range(100)]")

    assert (code, b"Too many open files" in said) == (1, True)


async def test_no_limit_can_be_raised_from_inside(sandbox: LocalSandbox) -> None:
    script = """import resource as r
for name in ('RLIMIT_NPROC', 'RLIMIT_DATA', 'RLIMIT_CPU', 'RLIMIT_FSIZE', 'RLIMIT_NOFILE'):
    try:
        hard = r.getrlimit(getattr(r, name))[1]
        r.setrlimit(getattr(r, name), (hard + 1, hard + 1)); print(name)
    except (ValueError, PermissionError): pass"""

    assert await python(sandbox, script) == (0, b"")
