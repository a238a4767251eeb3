"""Nothing is left: after close, cancellation, `kill -9` of the owner, and of what was started ahead."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner

from rollhook.cli import main
from rollhook.sandbox import SandboxLimits, find_leftovers
from rollhook.sandbox.bubblewrap import Bubblewrap
from rollhook.sandbox.launch import OWNER_VARIABLE, owner_label, start_time
from rollhook.sandbox.local import LocalSandbox
from rollhook.sandbox.pool import Pool, open_pool
from rollhook.sandbox.unsafe import UnsafeSubprocess
from tests.sandbox.conftest import MakeSandbox

STUBBORN = "setsid sh -c 'trap \"\" TERM INT HUP; while :; do sleep {}; done' & sleep {}"


def marked() -> tuple[str, str]:
    """A command whose processes can be told by a number, and the number."""
    number = str(uuid.uuid4().int % 10**9 + 10**9)
    return STUBBORN.replace("{}", number), number


def processes(number: str) -> list[int]:
    """Pids on the host of processes with `number` in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and number.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


async def until_running(number: str) -> None:
    async with asyncio.timeout(20):
        while len(processes(number)) < 3:
            await asyncio.sleep(0.02)


async def test_close_ends_what_ignores_every_signal(make_sandbox: MakeSandbox) -> None:
    sandbox = await make_sandbox()
    command, number = marked()
    await sandbox.start(["sh", "-c", command])
    await until_running(number)
    await sandbox.close()

    assert processes(number) == []
    with pytest.raises(ConnectionError, match="the sandbox is closed"):
        await sandbox.exec(["true"])


async def test_commands_under_way_are_told_that_the_sandbox_closed(make_sandbox: MakeSandbox) -> None:
    sandbox = await make_sandbox()
    command, number = marked()
    running = asyncio.create_task(sandbox.exec(["sh", "-c", command]))
    await until_running(number)
    await sandbox.close()

    with pytest.raises(ConnectionError, match="the sandbox"):
        await running


OWNER = """
import asyncio, sys
from rollhook.sandbox import SandboxLimits
from rollhook.sandbox.bubblewrap import Bubblewrap
from rollhook.sandbox.local import LocalSandbox
from rollhook.sandbox.unsafe import UnsafeSubprocess

async def main():
    launcher = {"bubblewrap": Bubblewrap, "unsafe": UnsafeSubprocess}[sys.argv[1]]
    sandbox = LocalSandbox(launcher(SandboxLimits()), ())
    await sandbox.start(["sh", "-c", sys.argv[2]])
    print(sandbox.pid, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.mark.parametrize("backend", ["bubblewrap", "unsafe"])
async def test_the_owners_kill_9_ends_everything(backend: str) -> None:
    command, number = marked()
    if backend == "unsafe":
        command = f"sleep {number} & sleep {number}; sleep {number}"  # a session of its own would get away
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, backend, command, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert owner.stdout is not None
        pid = int(await owner.stdout.readline())
        await until_running(number)
        assert pid in [found.pid for found in find_leftovers(str(owner.pid))]
    finally:
        owner.kill()
        await owner.wait()

    async with asyncio.timeout(20):
        while processes(number) or find_leftovers(str(owner.pid)):
            await asyncio.sleep(0.02)


def labelled(owner: str) -> subprocess.Popen[bytes]:
    """What a sandbox's outermost process would look like had it outlived everything else."""
    return subprocess.Popen(["sleep", "1000"], env={**os.environ, OWNER_VARIABLE: owner})


def test_gc_ends_the_sandboxes_of_dead_owners_and_no_others() -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    orphan, alive = labelled(f"{dead.pid}/1"), labelled(owner_label())
    try:
        told = CliRunner().invoke(main, ["sandbox", "gc", "--dry-run"])
        assert f"would end process {orphan.pid} of owner {dead.pid}/1\n" in told.output
        assert orphan.poll() is None

        ended = CliRunner().invoke(main, ["sandbox", "gc"])
        assert (ended.exit_code, orphan.wait(10)) == (0, -9)
        assert f"ended process {orphan.pid} of owner {dead.pid}/1\n" in ended.output
        assert alive.poll() is None
    finally:
        for process in (orphan, alive):
            process.kill()
            process.wait()


def test_gc_ends_a_living_owners_sandboxes_when_that_is_asked_for() -> None:
    owner = f"{os.getpid()}/0"  # told from this process, whose own label has its start
    mine = labelled(owner)
    try:
        done = CliRunner().invoke(main, ["sandbox", "gc", "--owner", owner])
        assert (done.exit_code, mine.wait(10)) == (0, -9)
        assert done.output == f"ended process {mine.pid} of owner {owner}\nended 1 processes of sandboxes\n"
    finally:
        mine.kill()
        mine.wait()


async def filled(pool: Pool) -> None:
    async with asyncio.timeout(30):
        while pool.filling:
            await asyncio.sleep(0.02)


async def test_a_pool_keeps_started_ones_ready_and_ends_them() -> None:
    async with open_pool(Bubblewrap(SandboxLimits()), size=2) as pool:
        first = pool.take(())
        assert first.pid is None
        await filled(pool)
        ready = pool.take(())
        assert ready.pid is not None
        assert (await ready.exec(["echo", "at once"])).stdout == b"at once\n"
        await filled(pool)
        pids = [box.pid for box in (ready, *pool.unused)]
        await ready.close()
        await first.close()

    assert len(pids) == 3
    assert [start_time(pid) for pid in pids if pid is not None] == [None] * 3
    with pytest.raises(ConnectionError, match="the run's sandboxes are closed"):
        pool.take(())


async def test_a_pool_stays_within_its_size_when_packages_change() -> None:
    async with open_pool(Bubblewrap(SandboxLimits()), size=1) as pool:
        for packages in ((), ("packaging",), ()):
            await pool.take(packages).close()
            await filled(pool)
            assert [box.packages for box in pool.unused] == [packages]


async def test_a_sandbox_without_walls_does_the_same_and_leaves_no_folder() -> None:
    sandbox = LocalSandbox(UnsafeSubprocess(SandboxLimits()), ())
    try:
        await sandbox.write_file("a/b", b"here")
        folder = (await sandbox.exec(["pwd"])).stdout.decode().strip()
        late = await sandbox.exec(["sh", "-c", "sleep 1000 & sleep 1000"], timeout_s=0.3)
        assert (await sandbox.exec(["cat", "a/b"])).stdout == b"here"
        assert await sandbox.snapshot("a")
        assert (late.exit_code, late.killed_by) == (None, "time")
    finally:
        await sandbox.close()
    assert not os.path.exists(folder)  # noqa: ASYNC240, PTH110  a look at a local folder
