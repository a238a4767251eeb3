"""Commands and files in real containers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import os
import re
import tarfile
from collections.abc import Awaitable, Callable

import pytest

from rollhook import ExecResult, Sandbox
from rollhook_docker.process import DockerProcess
from rollhook_docker.sandbox import DockerSandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")
MakeSandbox = Callable[..., Awaitable[DockerSandbox]]


async def out(sandbox: Sandbox, script: str) -> str:
    done = await sandbox.exec(["sh", "-c", script])
    return (done.stdout + done.stderr).decode().strip()


async def read_until(process: DockerProcess, pattern: str) -> str:
    said = ""
    while not re.search(pattern, said):
        data = await process.read()
        assert data, said
        said += data.decode(errors="replace")
    return said


async def test_it_is_a_sandbox(sandbox: DockerSandbox) -> None:
    assert isinstance(sandbox, Sandbox)


async def test_a_command_has_streams_an_exit_code_and_an_environment(sandbox: DockerSandbox) -> None:
    done = await sandbox.exec(
        ["sh", "-c", "cat; echo $A >&2; pwd >&2; exit 7"], stdin=b"hi", env={"A": "x y"}, cwd="/tmp"
    )

    assert done == ExecResult(7, b"hi", b"x y\n/tmp\n")


async def test_large_input_and_output_pass_side_by_side(sandbox: DockerSandbox) -> None:
    data = bytes(range(256)) * 8192

    assert (await sandbox.exec(["cat"], stdin=data)).stdout == data


async def test_words_are_not_read_by_a_shell(sandbox: DockerSandbox) -> None:
    assert (await sandbox.exec(["sh", "-c", 'echo "$1"', "sh", "$(id); --x"])).stdout == b"$(id); --x\n"
    with pytest.raises(ValueError, match="a command is a list of at least one word, not 'ls'"):
        await sandbox.exec("ls")


@pytest.mark.parametrize("name", ["", "A=B"])
async def test_what_is_no_name_of_a_variable_is_an_error(sandbox: DockerSandbox, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name!r} cannot be the name of an environment variable"):
        await sandbox.exec(["env"], env={name: "x"})


async def test_a_program_that_is_not_there_is_an_exit_code(sandbox: DockerSandbox) -> None:
    assert (await sandbox.exec(["no-such-program"])).exit_code in {126, 127}


async def test_commands_are_an_unprivileged_users(sandbox: DockerSandbox) -> None:
    assert "uid=1000 gid=1000" in await out(sandbox, "id")
    status = await out(sandbox, "cat /proc/self/status")
    assert re.findall(r"Cap(?:Inh|Prm|Eff|Amb):\t(\w+)", status) == ["0" * 16] * 4
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status


async def test_nothing_of_the_hosts_environment_is_inside(sandbox: DockerSandbox) -> None:
    assert "hunter2" not in await out(sandbox, "env; cat /proc/*/environ")


async def test_there_is_no_network(sandbox: DockerSandbox) -> None:
    assert await out(sandbox, "ls /sys/class/net") in {"lo", ""}


async def test_only_the_users_folders_can_be_written(sandbox: DockerSandbox) -> None:
    script = (
        "for d in . /tmp /var/tmp /tests /logs / /bin /etc /dev /proc /sys; do touch $d/x && echo $d; done"
    )
    done = await sandbox.exec(["sh", "-c", script])

    assert done.stdout.decode().split() == [".", "/tmp", "/var/tmp", "/tests", "/logs"]
    await sandbox.exec(["rm", "x", "/tmp/x", "/var/tmp/x", "/tests/x", "/logs/x"])


async def test_the_images_working_folder_is_there_and_the_users(make_sandbox: MakeSandbox) -> None:
    sandbox = await make_sandbox()

    assert await out(sandbox, "pwd; cat given; echo mine > given; cat given") == "/app\ngiven\nmine"


async def test_process_1_cannot_be_ended_from_inside(sandbox: DockerSandbox) -> None:
    await out(sandbox, "kill -9 1; kill -9 -1; for p in $(ls /proc); do kill -9 $p; done 2> /dev/null")

    assert await out(sandbox, "echo on") == "on"


async def test_time_runs_out_for_everybody_inside(make_sandbox: MakeSandbox) -> None:
    sandbox = await make_sandbox()
    script = "trap '' TERM HUP INT; sleep 1000 & echo first; touch kept; sleep 1000"
    done = await sandbox.exec(["sh", "-c", script], timeout_s=1)

    assert done == ExecResult(None, b"first\n", b"", "time")
    assert "sleep" not in await out(sandbox, "ps")
    assert "kept" in await out(sandbox, "ls")


async def test_a_flood_is_cut_off_at_the_limit(sandbox: DockerSandbox) -> None:
    done = await sandbox.exec(["yes"], timeout_s=30)

    assert (done.exit_code, done.killed_by, len(done.stdout)) == (None, "output", 8 << 20)
    assert "yes" not in (await out(sandbox, "ps")).split()


async def test_cancelled_it_leaves_nothing_running(make_sandbox: MakeSandbox) -> None:
    sandbox = await make_sandbox()
    process = await sandbox.start(["cat"])
    task = asyncio.create_task(sandbox.exec(["sh", "-c", "echo > begun; sleep 1000"]))
    async with asyncio.timeout(20):
        while "begun" not in await out(sandbox, "ls"):
            pass
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await process.read() == b""
    assert "sleep" not in await out(sandbox, "ps")


async def test_a_command_cancelled_before_it_began_does_not_begin_later(make_sandbox: MakeSandbox) -> None:
    sandbox = await make_sandbox()
    for delay_s in (0.0, 0.01, 0.03, 0.06):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(delay_s):
                await sandbox.exec(["sleep", "1000"])

    assert "sleep" not in await out(sandbox, "ps")


async def test_a_fork_bomb_is_bounded_and_ended(make_sandbox: MakeSandbox) -> None:
    sandbox = await make_sandbox()
    bomb = "f() { f | f & }; f; i=0; while [ $i -lt 200 ]; do sleep 1000 & i=$((i + 1)); done; wait"
    await sandbox.exec(["sh", "-c", bomb], timeout_s=2)
    await sandbox.kill()

    assert (await out(sandbox, "ps")).count("sleep 1000") == 0


async def test_memory_is_bounded(make_sandbox: MakeSandbox) -> None:
    sandbox = await make_sandbox()
    done = await sandbox.exec(["dd", "if=/dev/zero", "of=/dev/null", "bs=400M", "count=1"])

    assert done.exit_code != 0
    assert await out(sandbox, "echo on") == "on"


async def test_files_have_a_size(sandbox: DockerSandbox) -> None:
    for path in ("big", "/tmp/big"):
        done = await sandbox.exec(["dd", "if=/dev/zero", f"of={path}", "bs=1M", "count=40"])
        assert done.exit_code != 0
        await sandbox.exec(["rm", path])


async def test_files_are_written_with_their_folders_and_read_back(sandbox: DockerSandbox) -> None:
    data = bytes(range(256)) * 1000
    await sandbox.write_file("a/b/c d", data)
    await sandbox.write_file("a/b/c d", data[:-1])

    assert await sandbox.read_file("/app/a/b/c d") == data[:-1]


@pytest.mark.parametrize(
    ("path", "code"),
    [("nope", errno.ENOENT), ("/tmp", errno.EISDIR), ("/dev/zero", errno.EINVAL), ("-n", errno.ENOENT)],
)
async def test_what_cannot_be_read_says_why(sandbox: DockerSandbox, path: str, code: int) -> None:
    with pytest.raises(OSError, match=os.strerror(code)) as raised:
        await sandbox.read_file(path)

    assert raised.value.errno == code


@pytest.mark.parametrize(("path", "code"), [("/tmp", errno.EISDIR), ("/etc/x", errno.EACCES)])
async def test_what_cannot_be_written_says_why(sandbox: DockerSandbox, path: str, code: int) -> None:
    with pytest.raises(OSError, match=os.strerror(code)) as raised:
        await sandbox.write_file(path, b"x")

    assert raised.value.errno == code


async def test_more_than_may_be_moved_is_refused(make_sandbox: MakeSandbox) -> None:
    sandbox = await make_sandbox()
    await sandbox.exec(["dd", "if=/dev/zero", "of=large", "bs=1M", "count=9"])
    with pytest.raises(OSError, match=r"more than transfer_mb \(8 MiB\)"):
        await sandbox.read_file("large")
    with pytest.raises(OSError, match=r"more than transfer_mb \(8 MiB\)"):
        await sandbox.write_file("x", bytes((8 << 20) + 1))


async def test_a_folder_moves_to_another_sandbox(make_sandbox: MakeSandbox) -> None:
    first, second = await make_sandbox(), await make_sandbox()
    await out(first, "mkdir -p w/sub; echo x > w/sub/f; ln -s sub/f w/l; mkfifo w/pipe; ln -s /etc w/e")
    await second.restore("/tests/there", await first.snapshot("w"))

    assert await out(second, "cd /tests/there; ls; cat l") == "e\nl\nsub\nx"
    with pytest.raises(FileNotFoundError):
        await first.snapshot("nope")
    with pytest.raises(NotADirectoryError):
        await first.snapshot("given")


async def test_an_archive_writes_nothing_through_its_links(make_sandbox: MakeSandbox) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        link = tarfile.TarInfo("out")
        link.type, link.linkname = tarfile.SYMTYPE, "/logs"
        tar.addfile(link)
        file = tarfile.TarInfo("out/reward.txt")
        file.size = 1
        tar.addfile(file, io.BytesIO(b"1"))
    sandbox = await make_sandbox()
    with contextlib.suppress(OSError):  # tars differ in whether this is an error
        await sandbox.restore("/app", buffer.getvalue())

    with pytest.raises(FileNotFoundError):
        await sandbox.read_file("/logs/reward.txt")


async def test_a_command_on_pipes_goes_on_running(sandbox: DockerSandbox) -> None:
    process = await sandbox.start(["sh", "-c", "while read -r x; do echo $x-$x; done; exit 3"])
    await process.write(b"a\n")
    assert await process.read() == b"a-a\n"
    with pytest.raises(TimeoutError):
        await process.read(timeout_s=0.2)
    await process.write(b"b\n")

    assert await process.read() == b"b-b\n"
    with pytest.raises(ValueError, match="started without a terminal"):
        process.resize(1, 1)
    with pytest.raises(ValueError, match="started without a terminal"):
        await process.kill_foreground()


async def test_a_terminal_has_a_size_keys_and_a_foreground(make_sandbox: MakeSandbox) -> None:
    sandbox = await make_sandbox()
    shell = await sandbox.start(["bash", "--norc", "--noprofile", "-i"], terminal=(20, 70), env={"PS1": "> "})
    await read_until(shell, "> ")
    await shell.write(b"stty size\n")
    await read_until(shell, "20 70")
    shell.resize(30, 90)
    await asyncio.sleep(0.5)
    await shell.write(b"stty size\n")
    await read_until(shell, "30 90")
    await shell.write(b"trap '' INT; sleep 1000; echo a''wake\n")
    await asyncio.sleep(0.5)
    await shell.kill_foreground()
    await read_until(shell, "awake")
    await shell.write(b"exit 5\n")

    assert await shell.wait() == 5
    while await shell.read():
        pass


async def test_commands_may_run_at_once(sandbox: DockerSandbox) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(sandbox.exec(["sh", "-c", f"echo {n}"])) for n in range(16)]

    assert [task.result().stdout for task in tasks] == [b"%d\n" % n for n in range(16)]


async def test_a_terminal_starts_whatever_the_last_one_left_in_its_way(make_sandbox: MakeSandbox) -> None:
    sandbox = await make_sandbox()
    await out(sandbox, "i=0; while [ $i -lt 9 ]; do mkfifo /tmp/.terminal-$i; i=$((i + 1)); done")
    process = await sandbox.start(["sh", "-c", "echo begun; sleep 1000"], terminal=(20, 70))

    await read_until(process, "begun")
