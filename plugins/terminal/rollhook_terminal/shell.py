"""A shell on a terminal: commands with their exit codes, keys, and what the screen shows.

Invariant: every call returns within its time, and the next one finds a shell that takes it, or
raises Blocked.

bash tells when it begins and ends a command by control sequences that terminals do not show, with a number
that programs are not told. One that finds it out deceives only the agent that ran it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyte

from rollhook import Process, Sandbox

CTRL_C = "\x03"
REST_S = 0.15
MOMENT_S = 0.02
INTERRUPT_S = 1.0
KILL_S = 2.0
START_S = 30.0
FLOOD_BYTES = 1 << 20
KEPT_BYTES = 400_000
SCREEN_BYTES = 1 << 16
FEED_BYTES = 2048
COMMAND_FILE = "/tmp/.command"
RC_FILE = "/tmp/.shell"

KEYS = {
    "Enter": "\r", "Tab": "\t", "Escape": "\x1b", "Space": " ", "BSpace": "\x7f", "Delete": "\x1b[3~",
    "Up": "\x1b[A", "Down": "\x1b[B", "Right": "\x1b[C", "Left": "\x1b[D", "Home": "\x1b[H", "End": "\x1b[F",
    "PageUp": "\x1b[5~", "PageDown": "\x1b[6~",
}  # fmt: skip
"""Keys that have a name, by what a terminal sends for them."""

_CONTROL = re.compile(r"C-([a-z@\[\]\\^_])")
_ESCAPES = re.compile(r"\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)|\[[0-?]*[ -/]*[@-~]|[()][A-Z0-9]|[@-Z\\^_=>78])")

_UNSHOWN = dict.fromkeys(code for code in range(32) if chr(code) not in "\n\t")


class Busy(Exception):
    """A program runs in the terminal's foreground, so the shell takes no command."""


class Blocked(Exception):
    """What runs in the sandbox has left no room or no place for the files that a shell is told by."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended. exit_code: None when it was stopped, or took the shell with it.

    stopped: why it was, "time" or "output". lost: the shell had to be replaced.
    """

    output: str
    exit_code: int | None
    stopped: str | None = None
    lost: bool = False


class _Screen(pyte.Screen):
    """Without what costs the emulator seconds for a kilobyte, in which nothing else runs."""

    def draw(self, data: str) -> None:
        """Of the marks that stack on a character, draw those that make another character with it."""
        if not data.isascii():
            data = "".join(c for c in unicodedata.normalize("NFC", data) if not unicodedata.combining(c))
        super().draw(data)

    def alignment_display(self) -> None:
        """Not fill the screen with E."""


class Shell:
    """bash in a sandbox, started by the first call. size: rows and columns. env: beside the sandbox's own."""

    def __init__(self, sandbox: Sandbox, *, size: tuple[int, int], cwd: str, env: Mapping[str, str]) -> None:
        self._sandbox = sandbox
        self._size, self._cwd, self._env = size, cwd, dict(env)
        self._screen = _Screen(size[1], size[0])
        self._stream = pyte.ByteStream(self._screen)
        self._unseen = b""
        self._said = bytearray()
        self._forget()

    def _forget(self) -> None:
        """The shell is gone: the next call starts one."""
        self._process: Process | None = None
        self._number = secrets.token_hex(8)
        self._marker = re.compile(rb"\x1b\]777;%s;(begin|\d+)\x07" % self._number.encode())
        self._tail = b""
        self._code: int | None = None  # of the last command; None while one runs
        self._prompts = 0  # that were shown

    async def run(self, command: str, timeout_s: float) -> Ran:
        """Run `command` as if it were typed: it may change folder and variables. Raises Busy, and Blocked."""
        process = await self._at_rest()
        if self._code is None:
            raise Busy
        await self._put(COMMAND_FILE, f"{command}\n")
        self._said.clear()
        self._code = None
        await process.write(f" . {COMMAND_FILE}\n".encode())
        stopped = await self._until_prompt(process, timeout_s)
        if stopped and self._process is not None and not await self._stop(process):
            self._process = None
        lost = self._process is None
        ran = Ran(self._output(), None if stopped or lost else self._code, stopped, lost)
        if lost:
            await self._sandbox.kill()
            self._forget()
        return ran

    async def press(self, keys: Sequence[str], wait_s: float) -> None:
        """Type `keys`: names of KEYS, C-x for control and x, or text. Then give them `wait_s` seconds."""
        process = await self._at_rest()
        await self._send(process, "".join(map(key_code, keys)), wait_s)
        await self._listen(process, wait_s)

    async def type(self, keystrokes: str, wait_s: float) -> str:
        """Type text, or one key by its name, and return what the terminal showed since.

        Waits `wait_s` seconds, or less: until the shell has run as many lines as were typed.
        """
        process = await self._at_rest()
        self._said.clear()
        keys = key_code(keystrokes).replace("\n", "\r")  # what the key Enter sends
        await self._send(process, keys, wait_s)
        await self._listen(process, wait_s, prompts=keys.count("\r"))
        return self._shown(self._marker.sub(b"", bytes(self._said)))

    async def _listen(self, process: Process, wait_s: float, prompts: int = 0) -> None:
        """Read for `wait_s` seconds, so that what runs can go on; less when as many prompts were shown."""
        loop = asyncio.get_running_loop()
        until, enough = loop.time() + wait_s, self._prompts + prompts
        while self._process is not None and len(self._said) < FLOOD_BYTES:
            if prompts and self._prompts >= enough:
                return await self._rest(process, MOMENT_S)
            try:
                self._hear(await process.read(timeout_s=max(0.0, until - loop.time())))
            except TimeoutError:
                return None
        await asyncio.sleep(max(0.0, until - loop.time()))
        return None

    async def screen(self) -> str:
        """What a person would see, without blank lines at its end."""
        await self._drain(await self._ready(), REST_S)
        fresh, self._unseen = self._unseen, b""
        for at in range(0, len(fresh), FEED_BYTES):
            self._draw(fresh[at : at + FEED_BYTES])
            await asyncio.sleep(0)  # the emulator takes a millisecond for a kilobyte
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    def _draw(self, data: bytes) -> None:
        try:
            self._stream.feed(data)
        except Exception:  # noqa: BLE001  the emulator raises whatever it does on sequences it does not expect
            self._stream = pyte.ByteStream(self._screen)

    async def _ready(self) -> Process:
        if self._process is not None:
            return self._process
        await self._put(RC_FILE, self._startup())
        command = ["bash", "--noprofile", "--rcfile", RC_FILE, "-i"]
        self._process = process = await self._sandbox.start(
            command, terminal=self._size, cwd=self._cwd, env=self._env
        )
        if await self._until_prompt(process, START_S) or self._process is None:
            self._forget()
            raise ConnectionError("the sandbox has no bash that answers")
        return process

    async def _put(self, path: str, text: str) -> None:
        try:
            await self._sandbox.write_file(path, text.encode())
        except ConnectionError:
            raise
        except OSError as error:
            raise Blocked(f"the terminal cannot write {path}: {error.strerror or error}") from error

    async def _at_rest(self) -> Process:
        """The shell, or another where it has ended since, after what it had still to say."""
        await self._drain(await self._ready(), MOMENT_S)
        return await self._ready()

    async def _send(self, process: Process, keys: str, wait_s: float) -> None:
        """Type `keys`. What is not read in `wait_s` seconds, and finds no room, may be lost."""
        with contextlib.suppress(TimeoutError, BrokenPipeError):  # whoever listens finds a shell's end
            await process.write(keys.encode(), timeout_s=max(wait_s, MOMENT_S))

    def _startup(self) -> str:
        marker = f"\\033]777;{self._number};"
        lines = [
            f"rm -f {RC_FILE}",
            "PS1='$PWD \\$ '",
            f"PS0='{marker}begin\\007'",
            f'PROMPT_COMMAND=\'printf "{marker}%s\\007" "$?"\'',
            "HISTCONTROL=ignorespace",
            "bind 'set enable-bracketed-paste off' 2> /dev/null",
        ]
        return "\n".join(lines) + "\n"

    async def _until_prompt(self, process: Process, timeout_s: float, *, keep: bool = True) -> str | None:
        """Read until a command has ended, or the shell has: None. Else why reading stopped before."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._code is None and self._process is not None:
                    self._hear(await process.read(timeout_s=timeout_s + 1), keep)
                    if len(self._said) > FLOOD_BYTES:
                        return "output"
        except TimeoutError:
            return "time"
        return None

    async def _stop(self, process: Process) -> bool:
        """End what runs in the foreground, at last by force. False: the shell went with it."""
        kept = bytes(self._said)
        self._said.clear()
        await process.write(CTRL_C.encode())
        if await self._until_prompt(process, INTERRUPT_S, keep=False) is not None:
            await process.kill_foreground()
            await self._until_prompt(process, KILL_S, keep=False)
        self._said = bytearray(kept)
        return self._code is not None and self._process is not None

    async def _drain(self, process: Process, rest_s: float) -> None:
        """Read until nothing comes for `rest_s` seconds; what was read before is forgotten."""
        self._said.clear()
        await self._rest(process, rest_s)

    async def _rest(self, process: Process, rest_s: float) -> None:
        while self._process is not None and len(self._said) < FLOOD_BYTES:
            try:
                self._hear(await process.read(timeout_s=rest_s))
            except TimeoutError:
                return

    def _hear(self, data: bytes, keep: bool = True) -> None:
        if not data:
            self._process = None
            return
        if keep:
            self._said += data
        self._unseen = (self._unseen + data)[-SCREEN_BYTES:]
        text = self._tail + data
        end = 0
        for found in self._marker.finditer(text):
            end = found.end()
            self._code = None if found[1] == b"begin" else int(found[1])
            self._prompts += found[1] != b"begin"
        self._tail = text[max(end, len(text) - 64) :]

    def _output(self) -> str:
        """What the last command wrote, as text."""
        parts = self._marker.split(bytes(self._said))
        begun = parts.index(b"begin") if b"begin" in parts[1::2] else None
        return self._shown(parts[begun + 1] if begun is not None else b"")

    def _shown(self, data: bytes) -> str:
        if len(data) > KEPT_BYTES:
            data = data[: KEPT_BYTES // 2] + b"\n...\n" + data[-KEPT_BYTES // 2 :]
        return plain(data.decode(errors="replace"))


def plain(text: str) -> str:
    """Terminal output as lines: no colours, and of a line that was written over, what stayed."""
    lines = _ESCAPES.sub("", text).replace("\r\n", "\n").split("\n")
    shown = [line.rstrip("\r").rpartition("\r")[2] for line in lines]
    return "\n".join(shown).translate(_UNSHOWN).strip("\n")


def shorten(text: str, limit: int) -> str:
    """`text` in about `limit` characters: of a longer one its beginning and its end."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... ({len(text) - 2 * half} characters left out) ...\n{text[-half:]}"


def key_code(key: str) -> str:
    """What a terminal sends for `key`."""
    if (control := _CONTROL.fullmatch(key)) is not None:
        return chr(ord(control[1].upper()) & 0x1F)
    return KEYS.get(key, key)
