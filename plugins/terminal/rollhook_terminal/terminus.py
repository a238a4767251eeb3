"""The environment `terminus`: the same tasks in the text protocol of Terminal-Bench's agent Terminus 2.

Each turn is one JSON object, {"analysis", "plan", "commands": [{"keystrokes", "duration"}], "task_complete"};
the answer is what the terminal showed since. Source: the templates of Terminus 2 in Harbor.

Invariant: every turn is answered: one that is no such object by a sentence that says what is wrong with it.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from rollhook import Message, Observation, Rollout, Turn
from rollhook_terminal.config import TerminusConfig
from rollhook_terminal.session import KEY, Session
from rollhook_terminal.shell import Blocked, shorten
from rollhook_terminal.task import Task

PROMPT = """\
You work in a Linux terminal, without a network. Your folder is {workdir}; what you leave there is tested \
after you are done. Do the task below by typing into the terminal. Answer each time with one JSON object:

{{
  "analysis": "what the terminal shows, what is done, and what is left to do",
  "plan": "what you type next, and why",
  "commands": [
    {{"keystrokes": "ls -la\\n", "duration": 0.1}},
    {{"keystrokes": "make\\n", "duration": 30}}
  ],
  "task_complete": false
}}

"keystrokes" are typed exactly as they stand: end a command with \\n, or it does not run. C-c or C-d alone \
is that key. "duration" is how many seconds to wait for a command before the next one, 1 unless said and 60 \
at most; with empty keystrokes you only wait. Commands may take {seconds:g} seconds in all. When the task is \
done, set "task_complete" to true.

Task:
{instruction}

Terminal:
{screen}"""
WRONG = "Your answer could not be used: {why}\n\nAnswer with one JSON object as described."
CONFIRM = (
    "{output}\n\nIs the task complete? It will be tested, and you cannot go on after that. If so, answer "
    'with "task_complete": true once more.'
)
MAX_COMMANDS = 50
MAX_KEYSTROKES = 20_000
MAX_WAIT_S = 60.0
_TRIED_BRACES = 20


class Command(BaseModel):
    """Something to type. duration: seconds to wait for it."""

    keystrokes: str = Field(max_length=MAX_KEYSTROKES)
    duration: float = Field(1.0, ge=0, allow_inf_nan=False)


class Answer(BaseModel):
    """One turn of the model."""

    analysis: str
    plan: str
    commands: list[Command] = Field(max_length=MAX_COMMANDS)
    task_complete: bool = False


class Terminus:
    """One task's world."""

    def __init__(self, opened: tuple[TerminusConfig, Task], rollout: Rollout) -> None:
        self._config = opened[0]
        self._session = rollout.shared[KEY] = Session(*opened, rollout)
        self._asked = False
        self._wrong = 0

    async def reset(self, rollout: Rollout) -> Observation:
        """The protocol, the task's instruction and the terminal; the row's own prompt is not shown."""
        del rollout
        session = self._session
        await session.open()
        prompt = PROMPT.format(
            workdir=session.workdir,
            seconds=session.task.agent_timeout_s,
            instruction=session.task.instruction,
            screen=await session.screen(),
        )
        return Observation(messages=[_said(prompt)])

    async def step(self, turn: Turn) -> Observation:
        """Type what the turn says. Done once the task is said to be complete, or its time is used up."""
        try:
            answer = read_answer(turn.content)
        except ValueError as error:
            self._wrong += 1
            return self._observe(WRONG.format(why=error))
        output = await self._type(answer.commands)
        if self._session.left_s <= 0 or (answer.task_complete and (self._asked or not self._config.confirm)):
            return Observation(done=True, info=self._info())
        self._asked = answer.task_complete
        return self._observe(CONFIRM.format(output=output) if answer.task_complete else output)

    async def close(self) -> None:
        """Nothing: its sandboxes end with the rollout."""

    async def _type(self, commands: list[Command]) -> str:
        """What the terminal showed of them, as the model reads it."""
        try:
            shown = [
                await self._session.type(command.keystrokes, min(command.duration, MAX_WAIT_S))
                for command in commands
            ]
            text = "\n".join(filter(None, shown))
            if text:
                return f"New terminal output:\n{shorten(text, self._config.max_output_chars)}"
            return f"Terminal:\n{await self._session.screen()}"
        except Blocked as error:
            return f"Error: {error}."

    def _observe(self, text: str) -> Observation:
        return Observation(messages=[_said(text)], info=self._info())

    def _info(self) -> dict[str, Any]:
        session = self._session
        return {
            "commands": session.commands,
            "command_seconds": session.used_s,
            "wrong_answers": self._wrong,
        }


def read_answer(text: str) -> Answer:
    """The JSON object in a turn, whatever is around it. Raises ValueError, in words for the model."""
    found = _find_object(text)
    if found is None:
        raise ValueError("there is no JSON object in it, or it is not valid JSON")
    try:
        return Answer.model_validate(found, strict=True)
    except ValidationError as error:
        told = error.errors(include_url=False, include_input=False)
        faults = [f"{'.'.join(map(str, one['loc']))}: {one['msg'].lower()}" for one in told]
        raise ValueError("; ".join(faults[:5])) from error


def _find_object(text: str) -> dict[str, Any] | None:
    decoder = json.JSONDecoder(strict=False)  # line breaks inside strings are let pass
    at = -1
    for _ in range(_TRIED_BRACES):
        at = text.find("{", at + 1)
        if at < 0:
            return None
        try:
            found, _end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and "commands" in found:
            return found
    return None


def _said(text: str) -> Message:
    return {"role": "user", "content": text}
