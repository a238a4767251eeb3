from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import torch

from rollhook.embedded.batcher import Batcher
from rollhook.embedded.packed import PackedModel
from rollhook.embedded.params import GenerateRequest, InvalidRequest, parse_request
from rollhook.embedded.worker import Worker
from rollhook.errors import EngineError, EngineUnavailable
from tests.unit.embedded.conftest import Bench


class FailsOnce:
    """A model whose first step ends like one that ran out of memory."""

    def __init__(self, model: PackedModel) -> None:
        self._model = model
        self._failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, batch: Any) -> torch.Tensor:
        if not self._failed:
            self._failed = True
            raise RuntimeError("not enough memory")
        return self._model.forward(batch)


def request(tokens: int = 3) -> GenerateRequest:
    return parse_request(
        {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}}
    )


async def finish(worker: Worker, rid: str) -> str:
    """How a request ends: its finish type."""
    async with asyncio.timeout(30):
        snapshots = [snapshot async for snapshot in await worker.submit(request(), rid)]
    finished = snapshots[-1].finish
    assert finished is not None
    return str(finished["type"])


async def test_a_step_that_fails_ends_its_requests_and_not_the_engine(
    tiny: PackedModel, smollm2_tokenizer: Any
) -> None:
    model: Any = FailsOnce(tiny)
    worker = Worker(lambda: Batcher(model, smollm2_tokenizer, max_batch=4, max_tokens=4096))
    await worker.start()

    with pytest.raises(EngineError, match="the engine failed: not enough memory"):
        await finish(worker, "a")
    assert await finish(worker, "b") == "length"
    await worker.stop()


async def test_what_stops_the_model_loading_reaches_the_caller_and_the_thread_ends() -> None:
    def load() -> Batcher:
        raise OSError("no such weights")

    worker = Worker(load)
    with pytest.raises(OSError, match="no such weights"):
        await worker.start()
    await worker.stop()

    assert not worker.alive


async def test_a_start_that_is_cancelled_leaves_a_thread_that_stops(bench: Bench) -> None:
    loading, go_on = threading.Event(), threading.Event()

    def load() -> Batcher:
        loading.set()
        assert go_on.wait(30)
        return bench.batcher()

    worker = Worker(load)
    start = asyncio.create_task(worker.start())
    assert await asyncio.to_thread(loading.wait, 30)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    go_on.set()
    await worker.stop()

    assert not worker.alive


async def test_a_request_that_can_never_be_served_raises_at_submission(bench: Bench) -> None:
    worker = Worker(bench.batcher)
    assert await worker.start() == 512

    with pytest.raises(InvalidRequest, match="over the limit of 512"):
        await worker.submit(request(tokens=1000), "a")
    assert await finish(worker, "b") == "length"
    await worker.stop()


async def test_after_stopping_requests_are_refused_and_stopping_again_is_nothing(bench: Bench) -> None:
    worker = Worker(bench.batcher)
    await worker.start()
    await worker.stop()
    await worker.stop()

    with pytest.raises(EngineUnavailable, match="the embedded engine has stopped"):
        await worker.submit(request(), "a")
