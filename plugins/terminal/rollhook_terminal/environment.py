"""The environment `terminal` and its verifier: a task to do in a terminal, and the reward of its tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rollhook import Observation, Rollout, Run, Score, Turn, View
from rollhook_terminal.config import TerminalConfig
from rollhook_terminal.session import KEY, Session
from rollhook_terminal.task import Task, load_task

PROMPT = """\
You work in a Linux terminal, without a network. Your folder is {workdir}. Do the task below by calling \
tools: `bash` runs a command and gives its output and exit code; `send_keys` and `read_screen` are for \
programs that want a terminal. What you leave in {workdir} is tested after you are done; processes are \
not kept. Commands may take {seconds:g} seconds in all. When the task is done, answer without calling a tool.

{instruction}"""


@asynccontextmanager
async def open_task(config: TerminalConfig, run: Run) -> AsyncIterator[tuple[TerminalConfig, Task]]:
    """The task, read once for all of its rollouts."""
    del run
    yield config, await asyncio.to_thread(load_task, config.tasks / config.task, config.image)


class Terminal:
    """One task's world. Its tools find it through the rollout."""

    def __init__(self, opened: tuple[TerminalConfig, Task], rollout: Rollout) -> None:
        self._session = rollout.shared[KEY] = Session(*opened, rollout)

    async def reset(self, rollout: Rollout) -> Observation:
        """The task's instruction; the row's own prompt is not shown."""
        del rollout
        task = self._session.task
        await self._session.open()
        prompt = PROMPT.format(
            workdir=self._session.workdir, seconds=task.agent_timeout_s, instruction=task.instruction
        )
        return Observation(messages=[{"role": "user", "content": prompt}])

    async def step(self, turn: Turn) -> Observation:
        """A turn without a tool call says that the task is done."""
        del turn
        info = {"commands": self._session.commands, "command_seconds": self._session.used_s}
        return Observation(done=True, info=info)

    async def close(self) -> None:
        """Nothing: its sandboxes end with the rollout."""


class Grader:
    """The reward that the task's tests write; 0.0 when they do not end, or fail before they write one."""

    def __init__(self, config: object, rollout: Rollout) -> None:
        del config
        self._rollout = rollout

    async def score(self, view: View) -> Score:
        """Test what the agent left. Raises LookupError for a finished Sample: its files are gone."""
        del view
        session = Session.of(self._rollout)
        grade = await session.grade()
        parts = {
            "tests": grade.reward,
            "tests_timed_out": float(grade.timed_out),
            "commands": float(session.commands),
            "command_seconds": session.used_s,
        }
        return Score(grade.reward, parts)
