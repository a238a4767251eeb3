"""A stand-in for slime's calling side, strict where slime is strict.

    args = make_args(engine.url, tokenizer.name_or_path, rollhook={"default": {"verifier": "number"}})
    trainer = Trainer(args, [("2 + 2?", "4", {})])
    with trainer.loaded():  # slime's modules, as a process has them that slime runs
        batch = await trainer.rollout(rollhook.slime.generate_rollout, 0)
        batch = await trainer.stock_rollout(1)  # slime's own loop over rollhook.generate
        batches = await trainer.stock_fully_async(3)  # and its fully asynchronous one
        report = await trainer.evaluate(rollhook.slime.generate_rollout, 1)
    batch.samples, batch.rewards, batch.metrics  # what a training step would see

Training calls end in `convert`, which raises AssertionError for whatever slime would crash on or train
wrongly. After every call `args` and the shared sampling dict must be what they were. Rollout functions run in
a thread, since they block. Written from how slime 0.3 behaves, not from its text.
"""

from __future__ import annotations

import asyncio
import copy
import importlib
import inspect
import math
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import aiohttp

from tests.slime.slime_types import (
    Args,
    DataSource,
    RolloutFnEvalOutput,
    RolloutFnTrainOutput,
    Row,
    SlimeSample,
    SlimeStatus,
)

ABORT_DEADLINE_S = 10.0
"""slime waits for ever; a test must not."""


class _Singleton(type):
    _instances: ClassVar[dict[Any, Any]] = {}


class GenerateState(metaclass=_Singleton):
    """slime's state of a generation: the semaphore, the shared sampling parameters, and whether it aborts."""

    def __init__(self, args: Args) -> None:
        self.semaphore = asyncio.Semaphore(getattr(args, "sglang_server_concurrency", 64))
        self.sampling_params = {
            "temperature": getattr(args, "rollout_temperature", 1.0),
            "top_p": getattr(args, "rollout_top_p", 1.0),
            "top_k": getattr(args, "rollout_top_k", -1),
            "max_new_tokens": getattr(args, "rollout_max_response_len", 64),
            "stop": getattr(args, "rollout_stop", None),
            "stop_token_ids": getattr(args, "rollout_stop_token_ids", None),
            "skip_special_tokens": False,
            "no_stop_trim": True,
            "spaces_between_special_tokens": False,
        }
        self.pendings: set[asyncio.Task[Any]] = set()
        self.aborted = False


@dataclass
class TrainBatch:
    """What a training step sees. rewards: after normalisation. trained_tokens: those with mask 1."""

    samples: list[Any]
    rewards: list[float]
    metrics: dict[str, Any]

    @property
    def trained_tokens(self) -> int:
        return sum(sum(sample.loss_mask) for sample in self.samples)


class Trainer:
    """slime's RolloutManager and its `sglang_rollout`, in one process. state: of the stock calls."""

    def __init__(self, args: Args, rows: Sequence[Row]) -> None:
        self.args = args
        self.source = DataSource(args, rows)
        self.state = GenerateState(args)

    # -- as RolloutManager calls -------------------------------------------------------------------------

    async def rollout(self, function: Callable[..., Any], rollout_id: int) -> TrainBatch:
        """Call a rollout function for training, check what it returns, and convert it."""
        with self._unchanged():
            output = await asyncio.to_thread(function, self.args, rollout_id, self.source, evaluation=False)
        assert isinstance(output, RolloutFnTrainOutput), type(output)
        assert all(len(group) == self.args.n_samples_per_prompt for group in output.samples)
        assert len(output.samples) == self.args.rollout_batch_size
        return self.convert(output.samples, output.metrics or {})

    async def evaluate(self, function: Callable[..., Any], rollout_id: int) -> dict[str, dict[str, Any]]:
        """Call a rollout function for an evaluation, and check its report."""
        with self._unchanged():
            output = await asyncio.to_thread(function, self.args, rollout_id, self.source, evaluation=True)
        assert isinstance(output, RolloutFnEvalOutput), type(output)
        for report in output.data.values():
            assert set(report) == {"rewards", "truncated", "samples"}
            assert len(report["rewards"]) == len(report["truncated"]) == len(report["samples"])
            assert all(type(sample) is SlimeSample for sample in report["samples"])
            assert all(sample.session_id is None for sample in report["samples"])
            assert all(isinstance(reward, int | float) for reward in report["rewards"])
        return output.data

    def convert(self, data: list[Any], metrics: dict[str, Any] | None = None) -> TrainBatch:
        """slime's way from groups to a training batch."""
        shapes = {isinstance(item, list) for group in data for item in group}
        assert shapes in ({True}, {False}), "a batch mixes Samples and lists"
        flat: list[Any] = data
        while isinstance(flat[0], list):
            assert all(part for part in flat), "an empty list vanishes from the batch"
            flat = [sample for part in flat for sample in part]
        for sample in flat:
            self._check(sample, first=flat[0])
        ids = list(dict.fromkeys(sample.rollout_id for sample in flat))
        self._check_siblings(data)
        wanted = getattr(self.args, "global_batch_size", None) or len(ids)
        assert len(ids) >= wanted, f"{len(ids)} distinct rollout_ids for global_batch_size {wanted}"
        kept = set(ids[: len(ids) // wanted * wanted])
        flat = [sample for sample in flat if sample.rollout_id in kept]
        rewards = self._post_process(flat)
        for sample in flat:
            if sample.remove_sample:
                sample.loss_mask = [0] * sample.response_length
        return TrainBatch(flat, rewards, metrics or {})

    # -- as sglang_rollout calls rollhook.generate -------------------------------------------------------

    async def stock_rollout(self, rollout_id: int) -> TrainBatch:
        """slime's synchronous rollout over the run's generate function."""
        args, state = self.args, self.state
        data: list[Any] = []
        dynamic_filter = load(getattr(args, "dynamic_sampling_filter_path", None))
        remaining = 0
        with self._unchanged():
            while len(data) < args.rollout_batch_size:
                while remaining < args.rollout_batch_size:
                    drawn = self.source.get_samples(
                        getattr(args, "over_sampling_batch_size", args.rollout_batch_size)
                    )
                    state.pendings |= {asyncio.create_task(self.generate_and_rm_group(g)) for g in drawn}
                    remaining += len(drawn)
                done, state.pendings = await asyncio.wait(state.pendings, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    group = task.result()
                    assert len(group) == args.n_samples_per_prompt
                    answer = dynamic_filter(args, group) if dynamic_filter else True
                    if not getattr(answer, "keep", answer):
                        remaining -= 1
                    elif len(data) < args.rollout_batch_size:
                        data.append(group)
            if aborted := await self.abort(rollout_id):
                self.source.add_samples(aborted)
        state.aborted = False
        return self.convert(sorted(data, key=_index))

    async def stock_fully_async(self, batches: int) -> list[TrainBatch]:
        """slime's fully asynchronous worker over the run's generate function.

        It keeps a batch's number of groups in flight over all batches, and puts ABORTED ones back. A call
        that raises would hang the job; here it raises. What is left over at the end is put back.
        """
        wanted = batches * self.args.rollout_batch_size
        made: list[list[Any]] = []
        running: dict[asyncio.Task[list[Any]], list[Any]] = {}
        with self._unchanged():
            while len(made) < wanted:
                while len(running) < self.args.rollout_batch_size:
                    [rows] = self.source.get_samples(1)
                    running[asyncio.create_task(self.generate_and_rm_group(rows))] = rows
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    del running[task]
                    group = task.result()
                    if any(sample.status is SlimeStatus.ABORTED for sample in group):
                        self.source.add_samples([group])
                    else:
                        made.append(group)
            await asyncio.gather(*running)
            self.source.add_samples([*running.values(), *made[wanted:]])
        size = self.args.rollout_batch_size
        return [self.convert(made[start : start + size]) for start in range(0, wanted, size)]

    async def generate_and_rm_group(
        self, group: list[Any], sampling: dict[str, Any] | None = None, evaluation: bool = False
    ) -> list[Any]:
        """One group: its members at once, then the group's reward."""
        if self.state.aborted:
            return group
        for sample in group:
            if sample.session_id is None:
                sample.session_id = str(uuid.uuid4())
        shared = sampling or self.state.sampling_params
        made = await asyncio.gather(
            *(self.generate_and_rm(sample, dict(shared), evaluation) for sample in group)
        )
        if getattr(self.args, "group_rm", False) and not self.state.aborted:
            rewards = await load(self.args.custom_rm_path)(self.args, made)
            for sample, reward in zip(made, rewards, strict=False):
                sample.reward = reward
        return made

    async def generate_and_rm(self, sample: Any, sampling: dict[str, Any], evaluation: bool = False) -> Any:
        """One member: generate with the semaphore held, then the reward of what has none."""
        args = self.args
        if sample.status in (SlimeStatus.COMPLETED, SlimeStatus.TRUNCATED):
            assert sample.reward is not None or getattr(args, "group_rm", False)
            return sample
        async with self.state.semaphore:
            if self.state.aborted:
                sample.status = SlimeStatus.ABORTED
                return sample
            generate = load(sample.generate_function_path or args.custom_generate_function_path)
            names = inspect.signature(generate).parameters
            assert list(names)[:3] == ["args", "sample", "sampling_params"]
            told = {"evaluation": evaluation} if "evaluation" in names else {}
            made = await generate(args, sample, sampling, **told)
        assert made is not None
        assert made != [], "an empty list crashes slime"
        if getattr(args, "group_rm", False):
            return made
        reward = load(args.custom_rm_path)
        assert inspect.iscoroutinefunction(reward), "a reward function must be async"
        if isinstance(made, list):
            if any(one.status is SlimeStatus.ABORTED for one in made):
                return made
            missing = [one for one in made if one.reward is None]
            for one, value in zip(missing, await reward(args, missing), strict=False):
                one.reward = value
        elif made.status is not SlimeStatus.ABORTED and made.reward is None:
            made.reward = await reward(args, made)
        return made

    async def abort(self, rollout_id: int) -> list[list[Any]]:
        """End all pending calls. With partial_rollout their groups are given back, as slime does."""
        partial = getattr(self.args, "partial_rollout", False)
        self.state.aborted = True
        if not partial:
            for task in self.state.pendings:
                task.cancel()
        url = f"http://{self.args.sglang_router_ip}:{self.args.sglang_router_port}/abort_request"
        async with aiohttp.ClientSession() as http, http.post(url, json={"abort_all": True}):
            pass
        if self.state.pendings:
            done, late = await asyncio.wait(self.state.pendings, timeout=ABORT_DEADLINE_S)
            assert not late, f"{len(late)} pending calls did not return from an abort"
        else:
            done = set()
        self.state.pendings = set()
        if not partial:
            return []
        groups = [task.result() for task in done]
        for sample in (sample for group in groups for sample in group):
            if sample.response:
                sample.metadata.setdefault("start_rollout_id", rollout_id)
        return groups

    # -- what a process has that slime runs --------------------------------------------------------------

    @contextmanager
    def loaded(self) -> Iterator[None]:
        """slime's modules are in `sys.modules`, with this trainer's state."""
        modules: dict[str, dict[str, Any]] = {
            "slime.utils.types": {"Sample": SlimeSample},
            "slime.rollout.base_types": {
                "RolloutFnTrainOutput": RolloutFnTrainOutput,
                "RolloutFnEvalOutput": RolloutFnEvalOutput,
            },
            "slime.rollout.sglang_rollout": {"GenerateState": GenerateState},
        }
        _Singleton._instances[GenerateState] = self.state
        for name, contents in modules.items():
            module = ModuleType(name)
            vars(module).update(contents)
            sys.modules[name] = module
        try:
            yield
        finally:
            for name in modules:
                del sys.modules[name]
            _Singleton._instances.clear()

    # -- checks ------------------------------------------------------------------------------------------

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        before = copy.deepcopy((vars(self.args), self.state.sampling_params))
        yield
        assert (vars(self.args), self.state.sampling_params) == before, "args or sampling_params changed"

    def _check(self, sample: Any, *, first: Any) -> None:
        """What slime reads of one Sample."""
        assert type(sample) is SlimeSample, f"slime gets {type(sample)}"
        length = sample.response_length
        assert length >= 1
        assert len(sample.tokens) - length >= 1
        assert sample.loss_mask is not None
        assert len(sample.loss_mask) == length, f"loss mask {len(sample.loss_mask)} != response {length}"
        assert set(sample.loss_mask) <= {0, 1}
        assert sample.rollout_log_probs is not None
        assert len(sample.rollout_log_probs) == length
        assert all(
            math.isfinite(log_prob) and (bit or log_prob == 0.0)
            for bit, log_prob in zip(sample.loss_mask, sample.rollout_log_probs, strict=True)
        )
        assert sample.rollout_id is not None
        assert sample.reward is not None, f"{sample.status} without a reward"
        assert sample.status is not SlimeStatus.FAILED or (sample.remove_sample and sample.reward == 0.0)
        for name in ("rollout_top_p_token_ids", "rollout_routed_experts", "train_metadata"):
            assert (getattr(first, name) is None) == (getattr(sample, name) is None), f"{name} of some only"
        if sample.rollout_top_p_token_offsets is not None:
            offsets = sample.rollout_top_p_token_offsets
            assert len(offsets) == length + 1
            assert offsets[-1] == len(sample.rollout_top_p_token_ids)

    def _check_siblings(self, data: list[Any]) -> None:
        """One rollout_id for all siblings, and for nobody else."""
        rollouts = [item if isinstance(item, list) else [item] for group in data for item in group]
        ids = [{sample.rollout_id for sample in siblings} for siblings in rollouts]
        assert all(len(own) == 1 for own in ids), "siblings with different rollout_ids"
        assert len(set.union(*ids)) == len(ids), "two rollouts share a rollout_id"

    def _post_process(self, samples: list[Any]) -> list[float]:
        path = getattr(self.args, "custom_reward_post_process_path", None)
        if path is None:
            return [sample.reward for sample in samples]
        raw, rewards = load(path)(self.args, samples)
        assert len(raw) == len(rewards) == len(samples)
        return list(rewards)


def load(path: str | None) -> Any:
    """slime's load_function."""
    if path is None:
        return None
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _index(group: list[Any]) -> int:
    first = group[0][0] if isinstance(group[0], list) else group[0]
    index: int = first.index
    return index
