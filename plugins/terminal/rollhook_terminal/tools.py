"""The tools of the environment `terminal`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from rollhook import NoConfig, Rollout, ToolResult
from rollhook_terminal.session import Session
from rollhook_terminal.shell import KEYS, Blocked, Busy, Ran, shorten

NO_TIME = "Error: the time for commands is used up; answer without calling a tool."
BUSY = "Error: a program runs in the terminal. Send keys to it, or end it with the key C-c."


class _Tool(ABC):
    """What the tools share. They look nothing up before their first call: environments are made later."""

    def __init__(self, config: NoConfig, rollout: Rollout) -> None:
        del config
        self._rollout = rollout

    @property
    def session(self) -> Session:
        return Session.of(self._rollout)

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        try:
            return await self._call(arguments)
        except Blocked as error:
            return ToolResult(f"Error: {error}.", is_error=True)

    @abstractmethod
    async def _call(self, arguments: dict[str, Any]) -> ToolResult: ...


class Bash(_Tool):
    """Runs a command in the rollout's shell."""

    name = "bash"
    description = (
        "Runs a command in the terminal's bash and returns its output and exit code. Folder, variables and "
        "background jobs stay from call to call."
    )
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "One line or many, as in a script."},
            "timeout_s": {
                "type": "number",
                "exclusiveMinimum": 0,
                "description": "Seconds after which it is stopped.",
            },
        },
        "required": ["command"],
        "additionalProperties": False,
    }

    async def _call(self, arguments: dict[str, Any]) -> ToolResult:
        session = self.session
        if session.left_s <= 0:
            return ToolResult(NO_TIME, is_error=True)
        try:
            ran = await session.run(arguments["command"], arguments.get("timeout_s"))
        except Busy:
            return ToolResult(BUSY, is_error=True)
        return ToolResult(tell(ran, session.config.max_output_chars))


class SendKeys(_Tool):
    """Types into the terminal."""

    name = "send_keys"
    description = "Types into the terminal, waits, and returns the screen, for programs that fill it."
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "keys": {
                "type": "array",
                "items": {"type": "string"},
                "minItems": 1,
                "description": f"Each is text, or C-c and its like, or one of {', '.join(KEYS)}.",
            },
            "wait_s": {
                "type": "number",
                "minimum": 0,
                "maximum": 60,
                "description": "Seconds before the screen is read; 0.5 unless said.",
            },
        },
        "required": ["keys"],
        "additionalProperties": False,
    }

    async def _call(self, arguments: dict[str, Any]) -> ToolResult:
        session = self.session
        if session.left_s <= 0:
            return ToolResult(NO_TIME, is_error=True)
        return ToolResult(await session.press(arguments["keys"], arguments.get("wait_s", 0.5)))


class ReadScreen(_Tool):
    """Reads the terminal."""

    name = "read_screen"
    description = "Returns what the terminal shows."
    parameters: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

    async def _call(self, arguments: dict[str, Any]) -> ToolResult:
        del arguments
        return ToolResult(await self.session.screen())


def tell(ran: Ran, limit: int) -> str:
    """A command's end as the model reads it."""
    output = shorten(ran.output, limit)
    ending = f"[exit code {ran.exit_code}]"
    if ran.stopped == "time":
        ending = "[stopped: it did not end in its time]"
    elif ran.stopped == "output":
        ending = "[stopped: it wrote too much]"
    elif ran.lost:
        ending = "[the shell ended]"
    if ran.lost:
        ending += " [a new shell was started; files are kept, processes and variables are lost]"
    return f"{output}\n{ending}" if output else ending
