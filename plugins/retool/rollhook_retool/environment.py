"""The environment `retool`: the model thinks, runs code and answers in one open turn."""

from __future__ import annotations

from typing import Any

from rollhook import Message, Observation, Rollout, Turn
from rollhook_retool.config import EnvironmentConfig
from rollhook_retool.interpreter import Interpreter
from rollhook_retool.protocol import NO_CODE, STOP_STRINGS, instruct, interpreter, read_code
from rollhook_retool.warm import Workers


class Retool:
    """One problem's world. What it writes continues the turn and is masked."""

    def __init__(self, opened: tuple[EnvironmentConfig, Workers], rollout: Rollout) -> None:
        self._instructs = not opened[0].prompt_has_instruction
        self._python = Interpreter.of(opened, rollout)

    async def reset(self, rollout: Rollout) -> Observation:
        """The row's messages, the protocol explained around the last user message: the problem."""
        if not self._instructs:
            return Observation()
        return Observation(messages=_instructed([dict(message) for message in rollout.messages]))

    async def step(self, turn: Turn) -> Observation:
        """Run the code that ended the turn; a turn that ended otherwise is the answer."""
        if turn.matched not in STOP_STRINGS:
            return Observation(done=True, info=self._info())
        code = read_code(turn.text)
        shown = NO_CODE if code is None else await self._python.run(code)
        return Observation(text=interpreter(shown), info=self._info())

    async def close(self) -> None:
        """Nothing: the sandbox ends with the rollout."""

    def _info(self) -> dict[str, Any]:
        return {"calls": self._python.calls, "restarts": self._python.restarts}


def _instructed(messages: list[Message]) -> list[Message]:
    for message in reversed(messages):
        if message["role"] == "user":
            if not isinstance(message["content"], str):
                raise ValueError(f"the last user message is {type(message['content']).__name__}, not text")
            message["content"] = instruct(message["content"])
            return messages
    raise ValueError("the prompt has no user message to take the problem from")
