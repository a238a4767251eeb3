"""A shell on a real terminal: exit codes, what stays, keys and the screen, and getting it back."""

from __future__ import annotations

import asyncio

import pytest

from rollhook_terminal.shell import Blocked, Busy, Ran, Shell, key_code, plain

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_command_gives_its_output_and_exit_code(shell: Shell) -> None:
    assert await shell.run("echo out; echo err >&2; exit_code() { return 3; }; exit_code", 20) == Ran(
        "out\nerr", 3
    )
    assert await shell.run("true", 20) == Ran("", 0)
    assert await shell.run("echo $GREETING; no-such-thing 2> /dev/null", 20) == Ran("hi", 127)


async def test_folder_variables_functions_and_jobs_stay(shell: Shell) -> None:
    await shell.run("mkdir -p sub; cd sub; x=1; f() { echo f$x; }; sleep 1000 & ", 20)

    assert (await shell.run("pwd; f; jobs | wc -l", 20)).output == "/app/sub\nf1\n1"


async def test_it_is_a_terminal_of_the_given_size(shell: Shell) -> None:
    assert (await shell.run("test -t 0 && test -t 1 && stty size", 20)).output == "24 80"


async def test_many_lines_and_documents_are_run_as_they_stand(shell: Shell) -> None:
    program = "if True:\n    print('''a\n\tb''')"
    command = f"cat > f.py <<'END'\n{program}\nEND\npython3 f.py\nfor i in 1 2; do\n  echo $i\ndone"

    assert await shell.run(command, 20) == Ran("a\n\tb\n1\n2", 0)


async def test_a_syntax_error_is_a_commands_end(shell: Shell) -> None:
    ran = await shell.run("echo 'open", 20)

    assert ran.exit_code in {1, 2}
    assert "unexpected EOF" in ran.output
    assert await shell.run("echo on", 20) == Ran("on", 0)


async def test_text_that_looks_like_an_end_is_output(shell: Shell) -> None:
    assert (await shell.run(r"printf '\033]777;0123456789abcdef;0\007done\n'", 20)).output == "done"


async def test_a_command_that_hangs_is_stopped_and_the_shell_stays(shell: Shell) -> None:
    await shell.run("x=kept", 20)

    assert await shell.run("echo first; sleep 1000", 0.5) == Ran("first", None, "time")
    assert await shell.run("echo $x", 20) == Ran("kept", 0)


STUBBORN = "bash -c 'trap \"\" INT TERM; echo ready; while :; do sleep 100; done'"


async def test_a_command_that_ignores_ctrl_c_is_killed_and_the_shell_stays(shell: Shell) -> None:
    await shell.run("x=kept", 20)
    ran = await shell.run(STUBBORN, 0.5)

    assert (ran.exit_code, ran.stopped, ran.lost) == (None, "time", False)
    assert await shell.run("echo $x; pgrep -c sleep", 20) == Ran("kept\n0", 1)


async def test_a_shell_that_cannot_be_stopped_is_replaced(shell: Shell) -> None:
    await shell.run("echo here > file", 20)
    ran = await shell.run("trap '' INT; while :; do :; done", 0.5)

    assert (ran.exit_code, ran.stopped, ran.lost) == (None, "time", True)
    assert await shell.run("cat file", 20) == Ran("here", 0)


async def test_a_shell_that_was_left_is_replaced(shell: Shell) -> None:
    assert (await shell.run("exit 3", 20)).lost
    assert await shell.run("echo new", 20) == Ran("new", 0)


async def test_a_flood_is_stopped(shell: Shell) -> None:
    ran = await shell.run("yes", 60)

    assert (ran.exit_code, ran.stopped) == (None, "output")
    assert await shell.run("echo on", 20) == Ran("on", 0)


async def until_screen_shows(shell: Shell, text: str) -> str:
    async with asyncio.timeout(20):
        while text not in (screen := await shell.screen()):
            await asyncio.sleep(0.02)
    return screen


async def test_a_full_screen_program_is_driven_by_keys(shell: Shell) -> None:
    await shell.run("printf 'one\\ntwo\\n' > f", 20)
    await shell.press(["python3 -q", "Enter"], 0.1)
    await until_screen_shows(shell, ">>>")
    with pytest.raises(Busy):
        await shell.run("echo never", 20)
    await shell.press(["6 * 7", "Enter"], 0.1)
    assert "\n42\n>>>" in await until_screen_shows(shell, "42")
    await shell.press(["C-d"], 0.1)
    async with asyncio.timeout(20):
        while True:
            try:
                assert await shell.run("cat f", 20) == Ran("one\ntwo", 0)
                return
            except Busy:
                await asyncio.sleep(0.05)


async def test_the_screen_shows_what_a_person_would_see(shell: Shell) -> None:
    await shell.run(r"clear; printf '\033[2J\033[3;5Hhere\033[1;1Htop'", 20)
    screen = await until_screen_shows(shell, "here")

    assert screen.startswith("top")
    assert screen.splitlines()[2][4:8] == "here"


async def test_no_bytes_whatever_break_the_screen(shell: Shell) -> None:
    hostile = r"\033[?1;2c\033[>c\033[99999999@\033[?5S\033[38;5m\033[1;1;1H\033]0;x\033P\033[?25;l\033[;;;m"
    await shell.run(f"printf '{hostile}'; head -c 20000 /dev/urandom", 20)
    await shell.screen()

    assert await shell.run("reset; echo on", 20) == Ran("on", 0)


@pytest.mark.parametrize(
    ("key", "sent"),
    [("Enter", "\r"), ("C-c", "\x03"), ("C-[", "\x1b"), ("Up", "\x1b[A"), ("C-", "C-"), ("é", "é")],
)
async def test_keys_have_names_and_the_rest_is_text(key: str, sent: str) -> None:
    assert sent == key_code(key)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("\x1b[31mred\x1b[0m\r\n", "red"),
        ("10%\r50%\r100%\r\n", "100%"),
        ("\x1b]0;title\x07a\x1b(Bb\x1b[?25l", "ab"),
        ("a\x00\x08b\tc", "ab\tc"),
    ],
)
async def test_output_is_shown_without_colours_and_what_was_written_over(raw: str, text: str) -> None:
    assert text == plain(raw)


async def test_keys_typed_after_the_shell_ended_reach_the_next_one(shell: Shell) -> None:
    await shell.type("exit\n", 0)
    await asyncio.sleep(1)

    assert "here-42" in await shell.type("echo here-$((40 + 2))\n", 20)
    await shell.type("exit\n", 0)
    await asyncio.sleep(1)
    await shell.press(["echo again-$((40 + 2))", "Enter"], 1)
    assert "again-42" in await shell.screen()


async def test_keys_that_nobody_reads_end_with_their_time(shell: Shell) -> None:
    await shell.type("stty raw -echo; sleep 1000\n", 0.5)
    for _ in range(5):
        await shell.type("x" * 20_000, 0.1)
    await shell.press(["x" * 20_000], 0.1)

    with pytest.raises(Busy):
        await shell.run("echo on", 20)


@pytest.mark.parametrize("flood", [r"\xcc\x81\xcc\xa7", r"\xcc\x81\033[m", r"\033#8"])
async def test_what_an_emulator_takes_long_for_is_left_out(shell: Shell, flood: str) -> None:
    await shell.run("clear", 20)
    await shell.run(f"printf 'e\\xcc\\x81: '; printf '{flood}%.0s' {{1..2000}}", 20)

    assert "\u00e9: /app $" in await shell.screen()


@pytest.mark.parametrize("damage", ["rm -f /tmp/.command; mkdir /tmp/.command", "mkdir /tmp/.shell; exit"])
async def test_a_folder_in_the_shells_way_is_told(shell: Shell, damage: str) -> None:
    await shell.run(damage, 20)

    with pytest.raises(Blocked, match=r"the terminal cannot write /tmp/\.(command|shell): Is a directory"):
        await shell.run("true", 20)
