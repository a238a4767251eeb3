"""One rollout's Python: its state lasts from call to call.

Invariant: every call of `run` gives a text for the model, whatever its code did; after code that had to be
killed, the text says that the variables are lost.
"""

from __future__ import annotations

import asyncio

from rollhook import Rollout
from rollhook_retool.config import InterpreterConfig
from rollhook_retool.warm import Opened, Workers
from rollhook_retool.worker import Worker, WorkerDied

KEY = "retool/interpreter"
NOTHING = "(no output)"
LOST = "The interpreter was restarted: variables, functions and imports are lost."
_GRACE_S = 2.0
_BYTES_OF_A_CHAR = 4


class Interpreter:
    """Python in a sandbox of its own, taken from the stock by the first call."""

    def __init__(self, config: InterpreterConfig, workers: Workers, rollout: Rollout) -> None:
        self._config = config
        self._workers = workers
        self._rollout = rollout
        self._worker: Worker | None = None
        self._turn = asyncio.Lock()
        self.calls = 0
        self.restarts = 0

    @classmethod
    def of(cls, opened: Opened, rollout: Rollout) -> Interpreter:
        """The rollout's interpreter; its environment and its tool share one."""
        made: Interpreter = rollout.shared.setdefault(KEY, cls(*opened, rollout))
        return made

    async def run(self, code: str) -> str:
        """What the model is shown for `code`. Calls at once run one after the other."""
        async with self._turn:
            self.calls += 1
            if self._worker is None:
                self._worker = await self._workers.take()
                self._rollout.at_end(self._worker.close)
            try:
                return await self._output(self._worker, code)
            except WorkerDied as died:
                self.restarts += 1
                if died.late:
                    return f"Error: the code did not end within {self._config.timeout_s:g} s. {LOST}"
                return f"Error: the code ended the interpreter. {LOST}"

    async def _output(self, worker: Worker, code: str) -> str:
        limit = self._config.max_output_chars
        question = {
            "code": code,
            "timeout_s": self._config.timeout_s,
            "limit": limit * _BYTES_OF_A_CHAR,
        }
        answer = await worker.ask(question, timeout_s=self._config.timeout_s + _GRACE_S)
        output = answer.get("output")
        if not isinstance(output, str):
            raise WorkerDied("it answered without output")
        return shorten(output.rstrip("\n"), limit) or NOTHING


def shorten(text: str, limit: int) -> str:
    """`text` in at most about `limit` characters: of a longer one its beginning and its end."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... ({len(text) - 2 * half} characters left out) ...\n{text[-half:]}"
