"""One rollout's task in progress: its sandbox, its shell, the time it used, and its grade.

Invariant: the agent's processes are dead before its work is looked at, and tests run where none of them was.
"""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass
from typing import Any

from rollhook import Rollout, Sandbox
from rollhook_terminal.config import TerminalConfig
from rollhook_terminal.shell import Ran, Shell
from rollhook_terminal.task import Task

KEY = "terminal/session"
REWARD_TXT = "/logs/verifier/reward.txt"
REWARD_JSON = "/logs/verifier/reward.json"
NO_WORK = "the agent's folder is gone, unreadable or too large"


@dataclass(frozen=True, slots=True)
class Grade:
    """What the tests said. timed_out: they did not end in time. output: the end of what they printed."""

    reward: float
    timed_out: bool
    output: str


class Session:
    """A task being worked on."""

    def __init__(self, config: TerminalConfig, task: Task, rollout: Rollout) -> None:
        self.config = config
        self.task = task
        self._rollout = rollout
        self._sandbox: Sandbox | None = None
        self._shell: Shell | None = None
        self._turn = asyncio.Lock()
        self._grade: Grade | None = None
        self.workdir = task.setup.workdir or ""  # of an image it is known once that runs
        self.commands = 0
        self.used_s = 0.0

    @classmethod
    def of(cls, rollout: Rollout) -> Session:
        """The rollout's session. Raises LookupError in a row without the environment `terminal`."""
        session: Session | None = rollout.shared.get(KEY)
        if session is None:
            raise LookupError("this needs the environment terminal, and a live rollout of it")
        return session

    @property
    def left_s(self) -> float:
        """Seconds of commands that are left; what the model needs to think does not count."""
        return max(0.0, self.task.agent_timeout_s - self.used_s)

    async def open(self) -> None:
        """Put the task's files in place."""
        self._sandbox = await self._new_sandbox()
        size = (self.config.rows, self.config.columns)
        self._shell = Shell(self._sandbox, size=size, cwd=self.workdir, env=self.task.setup.env)

    async def run(self, command: str, timeout_s: float | None) -> Ran:
        """Run a command for the agent, in at most the time that is left. Raises shell.Busy."""
        limit = min(timeout_s or self.config.command_timeout_s, self.config.command_timeout_s, self.left_s)
        async with self._turn:
            began = asyncio.get_running_loop().time()
            try:
                self.commands += 1
                return await self._open_shell().run(command, limit)
            finally:
                self.used_s += asyncio.get_running_loop().time() - began

    async def press(self, keys: list[str], wait_s: float) -> str:
        """Type for the agent; returns the screen."""
        async with self._turn:
            wait_s = min(wait_s, self.left_s)
            self.used_s += wait_s
            shell = self._open_shell()
            await shell.press(keys, wait_s)
            return await shell.screen()

    async def type(self, keystrokes: str, wait_s: float) -> str:
        """Type for the agent; returns what the terminal showed since, after at most `wait_s` seconds."""
        async with self._turn:
            began = asyncio.get_running_loop().time()
            try:
                self.commands += 1
                return await self._open_shell().type(keystrokes, min(wait_s, self.left_s))
            finally:
                self.used_s += asyncio.get_running_loop().time() - began

    async def screen(self) -> str:
        """The screen as it is."""
        async with self._turn:
            return await self._open_shell().screen()

    async def grade(self) -> Grade:
        """Run the tests on what the agent left, once; later calls give the same."""
        async with self._turn:
            if self._grade is None:
                work = await self._work()
                empty = Grade(0.0, timed_out=False, output=NO_WORK)
                self._grade = empty if work is None else await self._test(work)
            return self._grade

    async def _work(self) -> bytes | None:
        """The agent's folder, after all that it started has died; None where there is none to move."""
        if self._sandbox is None:
            raise LookupError("the task was never opened")
        await self._sandbox.kill()
        self._shell = None
        try:
            return await self._sandbox.snapshot(self.workdir)
        except ConnectionError:
            raise
        except OSError:
            return None
        finally:
            await self._sandbox.close()

    async def _test(self, work: bytes) -> Grade:
        task = self.task
        fresh = await self._new_sandbox()
        await fresh.exec(["find", self.workdir, "-mindepth", "1", "-delete"])
        await fresh.restore(self.workdir, work)
        await fresh.restore("/tests", task.tests)
        await fresh.exec(["mkdir", "-p", "/logs/verifier"])
        env = {**task.setup.env, "HOME": "/tmp", "PYTEST_ADDOPTS": "--rootdir=/tests -p no:cacheprovider"}
        done = await fresh.exec(
            ["bash", "/tests/test.sh"],
            cwd=self.workdir,
            env={**env, **task.verifier_env},
            timeout_s=task.verifier_timeout_s,
        )
        await fresh.kill()
        output = (done.stdout + done.stderr).decode(errors="replace")[-4000:]
        if done.exit_code is None:
            return Grade(0.0, timed_out=True, output=output)
        reward = await _reward(fresh)
        if reward is None and done.exit_code == 0:
            raise ValueError(f"task {task.name}: test.sh wrote neither reward.txt nor reward.json")
        return Grade(reward or 0.0, timed_out=False, output=output)

    async def _new_sandbox(self) -> Sandbox:
        """One with the task's files in place."""
        image = self.task.image
        if image is None:
            sandbox = await self._rollout.sandbox(packages=self.config.packages)
            await sandbox.exec(["mkdir", "-p", self.workdir], cwd="/")
            await sandbox.restore("/", self.task.files)
            return sandbox
        sandbox = await self._rollout.sandbox(image=image)
        self.workdir = self.workdir or (await sandbox.exec(["pwd"])).stdout.decode().rstrip("\n")
        return sandbox

    def _open_shell(self) -> Shell:
        if self._shell is None:
            raise LookupError("the task is over")
        return self._shell


async def _reward(sandbox: Sandbox) -> float | None:
    """What the tests wrote, None when they wrote nothing. Raises ValueError for what is no reward."""
    text = await _read(sandbox, REWARD_JSON)
    if text is not None:
        return _finite(_main_value(json.loads(text)), REWARD_JSON)
    text = await _read(sandbox, REWARD_TXT)
    return None if text is None else _finite(text.strip(), REWARD_TXT)


async def _read(sandbox: Sandbox, path: str) -> str | None:
    try:
        return (await sandbox.read_file(path)).decode(errors="replace")
    except FileNotFoundError:
        return None


def _main_value(told: Any) -> Any:
    """The reward in a reward.json: its "reward", else its only value."""
    if not isinstance(told, dict):
        return told
    if "reward" in told:
        return told["reward"]
    if len(told) == 1:
        return next(iter(told.values()))
    raise ValueError(f'{REWARD_JSON} has no "reward" among {", ".join(map(str, told)) or "nothing"}')


def _finite(value: Any, path: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} holds {value!r:.100}, which is no number") from error
    if not math.isfinite(number):
        raise ValueError(f"{path} holds {number}, which is not finite")
    return number
