"""Commands, terminals, files and folders of a sandbox."""

from __future__ import annotations

import asyncio
import io
import tarfile

import pytest

from rollhook import ExecResult, Process, Sandbox
from rollhook.sandbox.local import LocalSandbox
from tests.sandbox.conftest import MakeSandbox


async def read_until(process: Process, marker: bytes) -> bytes:
    seen = b""
    while marker not in seen:
        data = await process.read(timeout_s=20)
        assert data, seen
        seen += data
    return seen


async def test_a_local_sandbox_is_a_sandbox(sandbox: LocalSandbox) -> None:
    assert isinstance(sandbox, Sandbox)


async def test_a_command_gives_its_exit_code_and_both_streams(sandbox: LocalSandbox) -> None:
    done = await sandbox.exec(["sh", "-c", "cat; echo no >&2; exit 3"], stdin=b"yes")

    assert done == ExecResult(3, b"yes", b"no\n")


async def test_a_command_killed_by_a_signal_says_so(sandbox: LocalSandbox) -> None:
    assert (await sandbox.exec(["sh", "-c", "kill -9 $$"])).exit_code == -9


async def test_folder_and_environment_can_be_given(sandbox: LocalSandbox) -> None:
    done = await sandbox.exec(["sh", "-c", "pwd; echo $LIKE"], cwd="/tmp", env={"LIKE": "tea"})

    assert done.stdout == b"/tmp\ntea\n"


async def test_a_command_that_is_not_there_is_answered_as_a_shell_would(sandbox: LocalSandbox) -> None:
    done = await sandbox.exec(["no-such-command"])

    assert done == ExecResult(127, b"", b"cannot run no-such-command in .: No such file or directory\n")


@pytest.mark.parametrize("command", ["ls", []])
async def test_a_command_is_a_list_of_words(sandbox: LocalSandbox, command: list[str]) -> None:
    with pytest.raises(ValueError, match="a command is a list of at least one word"):
        await sandbox.exec(command)


async def test_a_command_too_long_to_send_is_refused_and_the_next_one_runs(sandbox: LocalSandbox) -> None:
    with pytest.raises(ValueError, match="cannot be sent: Message too long"):
        await sandbox.exec(["echo", "x" * 1_000_000])
    assert (await sandbox.exec(["echo", "on"])).stdout == b"on\n"


async def test_large_input_and_output_do_not_lock_each_other_up(sandbox: LocalSandbox) -> None:
    data = bytes(range(256)) * 8000

    assert (await sandbox.exec(["cat"], stdin=data)).stdout == data


async def test_input_that_nobody_reads_is_no_error(sandbox: LocalSandbox) -> None:
    assert (await sandbox.exec(["true"], stdin=b"x" * 1_000_000)).exit_code == 0


async def test_commands_at_once_do_not_mix(sandbox: LocalSandbox) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(sandbox.exec(["echo", str(number)])) for number in range(12)]

    assert [task.result().stdout for task in tasks] == [f"{number}\n".encode() for number in range(12)]


async def test_a_daemon_that_holds_the_pipes_does_not_hold_the_command(sandbox: LocalSandbox) -> None:
    done = await sandbox.exec(["sh", "-c", "sleep 1000 & echo started"], timeout_s=60)

    assert done == ExecResult(0, b"started\n", b"")


async def test_a_command_left_running_is_talked_to(sandbox: LocalSandbox) -> None:
    process = await sandbox.start(["cat"])
    await process.write(b"one\n")
    assert await read_until(process, b"one\n") == b"one\n"
    with pytest.raises(TimeoutError):
        await process.read(timeout_s=0.01)
    await sandbox.kill()
    assert await process.wait() == -9
    assert await process.read() == b""


async def test_a_terminal_is_one_with_size_and_job_control(sandbox: LocalSandbox) -> None:
    shell = await sandbox.start(["bash", "--norc", "--noprofile"], terminal=(30, 100), env={"PS1": "> "})
    await shell.write(b"test -t 0 && test -t 1 && stty size; echo do'ne'\n")
    assert b"30 100\r\n" in await read_until(shell, b"done\r\n")
    shell.resize(20, 60)
    await shell.write(b"stty size; echo a'gain'\n")
    assert b"20 60\r\n" in await read_until(shell, b"again\r\n")


async def test_what_ignores_ctrl_c_in_a_terminal_is_killed_and_the_shell_lives(sandbox: LocalSandbox) -> None:
    shell = await sandbox.start(["bash", "--norc", "--noprofile"], terminal=(30, 100), env={"PS1": "> "})
    await shell.write(b'bash -c \'trap "" INT TERM; echo re""ady; while :; do sleep 60; done\'\n')
    await read_until(shell, b"ready\r\n")
    await shell.write(b"\x03")
    await shell.kill_foreground()
    await shell.write(b"echo st'ill'\n")
    assert b"still\r\n" in await read_until(shell, b"still\r\n")


async def test_a_terminal_whose_shell_has_gone_has_nobody_to_kill(sandbox: LocalSandbox) -> None:
    shell = await sandbox.start(["sh", "-c", "exit 4"], terminal=(24, 80))
    await shell.wait()
    await shell.kill_foreground()  # must not reach the group of this very process

    assert (await sandbox.exec(["echo", "on"])).stdout == b"on\n"


async def test_the_end_of_a_terminal_is_read_as_the_end(sandbox: LocalSandbox) -> None:
    shell = await sandbox.start(["sh", "-c", "exit 4"], terminal=(24, 80))

    assert await shell.wait() == 4
    while await shell.read():
        pass


async def test_a_command_on_pipes_has_no_terminal(sandbox: LocalSandbox) -> None:
    process = await sandbox.start(["cat"])
    with pytest.raises(ValueError, match="started without a terminal"):
        await process.kill_foreground()
    with pytest.raises(ValueError, match="started without a terminal"):
        process.resize(1, 1)


async def test_files_are_written_with_their_folders_and_read_back(sandbox: LocalSandbox) -> None:
    data = bytes(range(256)) * 1000
    await sandbox.write_file("a/b/c.bin", data)
    await sandbox.write_file("a/b/c.bin", data[:-1])

    assert await sandbox.read_file("/app/a/b/c.bin") == data[:-1]
    assert (await sandbox.exec(["sh", "-c", "wc -c < a/b/c.bin"])).stdout.strip() == b"255999"


@pytest.mark.parametrize(
    ("prepare", "error"),
    [
        ("true", FileNotFoundError),
        ("mkdir it", IsADirectoryError),
        ("mkfifo it", OSError),
        ("ln -s /dev/zero it", OSError),
        ("echo > it; chmod 0 it", PermissionError),
        ("ln -s it it", OSError),
        ("truncate -s 3M it", OSError),
    ],
)
async def test_what_is_no_readable_file_is_an_os_error(
    make_sandbox: MakeSandbox, prepare: str, error: type[OSError]
) -> None:
    sandbox = await make_sandbox(transfer_mb=2)
    await sandbox.exec(["sh", "-c", prepare])
    with pytest.raises(error):
        await sandbox.read_file("it")


@pytest.mark.parametrize(
    "path", ["/usr/bin/python3", "/proc/1/mem", "/opt/site/x.py", "/dev/x", "/etc/passwd"]
)
async def test_what_may_not_be_written_is_an_os_error(sandbox: LocalSandbox, path: str) -> None:
    with pytest.raises(OSError, match=r"Read-only|Permission denied|Device or resource busy"):
        await sandbox.write_file(path, b"x")


async def test_a_folder_moves_to_another_sandbox_with_modes_and_links(make_sandbox: MakeSandbox) -> None:
    first, second = await make_sandbox(), await make_sandbox()
    made = (
        "mkdir -p d/empty; echo hi > d/f; chmod 750 d/f; ln -s /etc/passwd d/far; ln d/f d/hard; mkfifo d/p"
    )
    await first.exec(["sh", "-c", made])
    await second.restore("/else/where", await first.snapshot("d"))
    seen = await second.exec(
        ["sh", "-c", "cd /else/where; ls; stat -c %a f; readlink far; stat -c %h hard; cat f"]
    )

    assert seen.stdout == b"empty\nf\nfar\nhard\n750\n/etc/passwd\n2\nhi\n"


async def test_a_snapshot_of_no_folder_is_an_os_error(sandbox: LocalSandbox) -> None:
    with pytest.raises(NotADirectoryError):
        await sandbox.snapshot("nowhere")


async def test_a_folder_that_is_too_large_is_an_os_error(make_sandbox: MakeSandbox) -> None:
    sandbox = await make_sandbox(transfer_mb=1)
    await sandbox.exec(["sh", "-c", "mkdir d; truncate -s 2M d/f"])
    with pytest.raises(OSError, match=r"[Tt]oo large"):
        await sandbox.snapshot("d")


def archive(*entries: tuple[str, str, str]) -> bytes:
    """A tar of (name, kind, content or link target)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind, content in entries:
            entry = tarfile.TarInfo(name)
            entry.type = {"file": tarfile.REGTYPE, "link": tarfile.SYMTYPE}[kind]
            entry.linkname = content if kind == "link" else ""
            entry.size = len(content) if kind == "file" else 0
            tar.addfile(entry, io.BytesIO(content.encode()))
    return buffer.getvalue()


async def test_nothing_is_unpacked_through_a_link(sandbox: LocalSandbox) -> None:
    await sandbox.exec(["mkdir", "/secret"])
    await sandbox.restore("/d", archive(("out", "link", "/secret"), ("out/reward", "file", "1")))

    assert (await sandbox.exec(["ls", "/secret"])).stdout == b""
    assert (await sandbox.exec(["cat", "/d/out/reward"])).stdout == b"1"


async def test_nothing_is_unpacked_outside(sandbox: LocalSandbox) -> None:
    with pytest.raises(OSError, match=r"Invalid argument"):
        await sandbox.restore("/d", archive(("../escape", "file", "1")))
    assert (await sandbox.exec(["test", "-e", "/escape"])).exit_code == 1


async def test_packages_asked_for_can_be_imported_and_others_not(make_sandbox: MakeSandbox) -> None:
    sandbox = await make_sandbox("packaging")
    script = (
        "import importlib.util as u; print([bool(u.find_spec(n)) for n in ('packaging', 'rollhook', 'pip')])"
    )

    assert (await sandbox.exec([sandbox.python, "-c", script])).stdout == b"[True, False, False]\n"
