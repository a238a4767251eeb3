"""Rows in, scored rollouts out: what slime's `generate_and_rm` and `generate_and_rm_group` do.

Invariant: `run_group` gives one result for each row, all of the run's shape, each with a reward unless it was
aborted. A row's fault ends in its FAILED Sample; only a ConfigError and cancellation leave.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollhook.errors import RolloutAborted, RolloutError, VerifierError, boundary, first_leaf
from rollhook.generate import reward_samples, run_rollout
from rollhook.runtime import Runtime
from rollhook.sample import Sample, Status
from rollhook.siblings import mark_aborted, mark_failed
from rollhook.slime.flags import Hook, refuse_generate
from rollhook.slime.outputs import Made, flat, siblings

POLL_S = 0.05
START = "start_rollout_id"
"""slime's key in the metadata of an aborted Sample: the number of the call that began it."""


class RolloutRunner:
    """Runs rows through rollhook, each in one of `slots`.

    reward: the trainer's reward function for what generate left unscored; None for rollhook's verifiers.
    group_rm: it is asked once for the whole group.
    """

    def __init__(
        self,
        args: Any,
        runtime: Runtime,
        *,
        slots: asyncio.Semaphore,
        reward: Hook | None,
        group_rm: bool = False,
    ) -> None:
        self._args = args
        self._runtime = runtime
        self._slots = slots
        self._reward = reward
        self._group_rm = group_rm

    async def run_group(self, rows: Sequence[Sample]) -> list[Made]:
        """What became of each row of one prompt, in order. A session_id is set on rows that have none.

        Raises ConfigError for a row that names another generate function.
        """
        for row in rows:
            refuse_generate(getattr(row, "generate_function_path", None))
            if getattr(row, "session_id", None) is None:
                row.session_id = str(uuid.uuid4())
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(self._train(row)) for row in rows]
        except BaseExceptionGroup as stopped:
            cause = first_leaf(stopped) or stopped
            raise cause from cause.__cause__
        made = [task.result() for task in running]
        if self._group_rm and not is_aborted(made):
            await self._score(flat([made]), whole=True)
        return made

    async def evaluate(self, row: Sample, sampling: Mapping[str, Any]) -> Sample:
        """The one scored Sample of a row. What an abort meant for training rollouts ends runs again."""
        while True:
            async with self._slots:
                [sample] = await run_rollout(self._runtime, row, sampling, evaluation=True)
            await self._score([sample], whole=False)
            if sample.status.value != Status.ABORTED.value:
                return sample
            await self.allowed()

    async def allowed(self, unless: Callable[[], bool] = lambda: False) -> bool:
        """Whether rollouts may begin. Waits while an abort is in force, under which everything ends before it
        begins; False when `unless` comes true meanwhile."""
        while self._runtime.aborting:
            if unless():
                return False
            await asyncio.sleep(POLL_S)  # slime's own flag can only be asked
        return True

    async def _train(self, row: Sample) -> Made:
        async with self._slots:
            samples = await run_rollout(self._runtime, row, {})
        if not self._group_rm:
            await self._score(samples, whole=self._runtime.config.return_shape == "list")
        return samples[0] if self._runtime.config.return_shape == "sample" else samples

    async def _score(self, samples: Sequence[Sample], *, whole: bool) -> None:
        """Fill the rewards that are missing. whole: the trainer's function gets the list, not one Sample."""
        unscored = [sample for sample in samples if sample.reward is None]
        if not unscored:
            return
        if self._reward is None:
            rewards = await reward_samples(self._runtime, unscored)
        else:
            asked = self._ask(self._reward, unscored, whole=whole)
            try:
                rewards = await self._runtime.aborts.run(asked)
            except RolloutAborted:
                rewards = [mark_aborted(sample) for sample in unscored]
            except RolloutError as error:
                for sample in unscored:
                    mark_failed(sample, error)
                return
        for sample, reward in zip(unscored, rewards, strict=True):
            sample.reward = reward

    async def _ask(self, function: Hook, samples: list[Sample], *, whole: bool) -> list[Any]:
        name = f"{function.__module__}.{function.__qualname__}"
        async with boundary(VerifierError, name), asyncio.timeout(self._runtime.config.verifier_timeout_s):
            if not whole:
                return [_usable(await function(self._args, sample)) for sample in samples]
            rewards = list(await function(self._args, samples))
            if len(rewards) != len(samples):
                raise ValueError(f"{len(rewards)} rewards came back for {len(samples)} samples")
            return [_usable(reward) for reward in rewards]


def _usable(reward: Any) -> Any:
    if reward is None or (isinstance(reward, float) and not math.isfinite(reward)):
        raise ValueError(f"a reward is {reward}")
    return reward


def is_aborted(made: Sequence[Made]) -> bool:
    """Whether a group has a rollout that was aborted."""
    return any(sample.status.value == Status.ABORTED.value for sample in flat([list(made)]))


def failure_of(made: Sequence[Made]) -> str | None:
    """Why nothing of a group can be trained on; None when something can."""
    samples = flat([list(made)])
    if any(sample.status.value != Status.FAILED.value for sample in samples):
        return None
    error = samples[0].metadata["rollhook_result"]["error"]
    return f"{error['stage']}: {error['message']}"


def rows_to_redo(
    rows: Sequence[Sample], made: Sequence[Made], *, resume: bool, rollout_id: int
) -> list[Sample]:
    """The rows of a group that goes back to the data source: one for each, clean, or to be resumed.

    resume: what was made is kept, as slime's `--partial-rollout` does; a rollout that failed begins anew.
    """
    if not resume:
        return list(rows)
    redo = []
    for row, one in zip(rows, made, strict=True):
        [sample] = siblings(one)
        if sample.status.value == Status.FAILED.value:
            sample = row
        elif sample.response and sample.metadata is not None:
            sample.metadata.setdefault(START, rollout_id)
        redo.append(sample)
    return redo
