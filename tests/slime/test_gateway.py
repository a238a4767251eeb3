"""A real gateway before several workers: who gets which turn, what arrives, and what is said at the start."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from rollhook import ConfigError, RunConfig, Runtime, Sample, Status, run_rollout
from rollhook.gateway import check_gateway
from rollhook.testing import Fault, Reply, ScriptedEngine
from rollhook.testing.replies import ScriptedRequest
from tests.slime.gateways import MortalWorker, asked, engines, gateway, homes, needs_gateway
from tests.unit.engines import PROMPT, SAMPLING, STREAMED, TEXT, ask, client_of, until
from tests.unit.worlds import plugins

pytestmark = needs_gateway

TURNS = 3
CALL = '<tool_call>\n{"name": "echo", "arguments": {"text": "on"}}\n</tool_call>'


def talk(request: ScriptedRequest) -> Reply:
    """Two tool calls and an answer, with some time between them."""
    calls = request.prompt.count("echo: on")  # not the request's turn, which a worker counts for itself
    return Reply(CALL, delay_s=0.05) if calls < TURNS - 1 else Reply("done, 4", delay_s=1.0)


def rows(count: int) -> list[Sample]:
    run = {"tools": "w/echo", "verifier": "w/contains"}
    return [
        Sample(
            index=i, group_index=0, prompt="2+2?", label="4", session_id=f"s{i}", metadata={"rollhook": run}
        )
        for i in range(count)
    ]


@asynccontextmanager
async def opened(url: str, tokenizer: Any, **config: Any) -> AsyncIterator[Runtime]:
    settings = RunConfig(**{"engine": url, "tool_parser": "qwen25", **config})
    async with Runtime(settings, plugins=plugins(), tokenizer=tokenizer) as runtime:
        yield runtime


async def play(runtime: Runtime, samples: list[Sample]) -> list[Sample]:
    played = await asyncio.gather(*(run_rollout(runtime, sample, {}) for sample in samples))
    return [sample for siblings in played for sample in siblings]


async def test_all_turns_of_a_session_land_on_one_worker_and_sessions_spread(qwen3_tokenizer: Any) -> None:
    async with (
        engines(qwen3_tokenizer, talk, 3) as workers,
        gateway(worker.url for worker in workers) as url,
        opened(url, qwen3_tokenizer) as runtime,
    ):
        samples = await play(runtime, rows(24))

    assert Counter((sample.status, sample.reward) for sample in samples) == {(Status.COMPLETED, 1.0): 24}
    assert {session: len(places) for session, places in homes(workers).items()} == dict.fromkeys(
        (f"s{i}" for i in range(24)), 1
    )
    assert sum(len(asked(worker)) for worker in workers) == 24 * TURNS
    assert all(asked(worker) for worker in workers)


async def test_a_killed_worker_moves_only_its_own_sessions_and_loses_nothing(qwen3_tokenizer: Any) -> None:
    async with AsyncExitStack() as stack:
        workers = await stack.enter_async_context(engines(qwen3_tokenizer, talk, 3))
        ways = [await stack.enter_async_context(MortalWorker(worker)) for worker in workers]
        url = await stack.enter_async_context(gateway(way.url for way in ways))
        runtime = await stack.enter_async_context(opened(url, qwen3_tokenizer))
        playing = asyncio.create_task(play(runtime, rows(24)))
        await until(lambda: len(homes(workers)) == 24 and workers[0].in_flight)
        ways[0].die()
        samples = await playing

    moved = [places for places in homes(workers).values() if len(places) > 1]
    assert moved
    assert all(0 in places for places in moved)
    assert Counter((sample.status, sample.reward) for sample in samples) == {(Status.COMPLETED, 1.0): 24}
    assert [sum(sample.loss_mask or []) for sample in samples] == [trained(qwen3_tokenizer)] * 24


def trained(tokenizer: Any) -> int:
    """How many tokens `talk` samples in all."""
    said = [CALL] * (TURNS - 1) + ["done, 4"]
    return sum(len(tokenizer.encode(text, add_special_tokens=False)) + 1 for text in said)


@pytest.mark.parametrize("streamed", STREAMED)
async def test_an_abort_reaches_the_worker_and_keeps_the_part(smollm2_tokenizer: Any, streamed: bool) -> None:
    async with (
        engines(smollm2_tokenizer, {"": Reply(TEXT, fault=Fault.hang(3))}, 2) as workers,
        gateway(worker.url for worker in workers) as url,
        client_of(url) as client,
    ):
        ending = asyncio.create_task(ask(client, streamed=streamed, session="a"))
        going_on = asyncio.create_task(ask(client, streamed=streamed, session="b"))
        await until(lambda: sum(worker.in_flight for worker in workers) == 2)
        await client.abort("a")
        part = await ending
        assert not going_on.done()
        await client.abort()
        await going_on

    assert part.token_ids == smollm2_tokenizer.encode(TEXT, add_special_tokens=False)[:3]
    assert (part.finish_reason, len(part.log_probs)) == ("abort", 3)


async def test_a_cancelled_request_ends_on_its_worker(smollm2_tokenizer: Any) -> None:
    async with (
        engines(smollm2_tokenizer, {"": Reply(TEXT, fault=Fault.hang())}, 2) as workers,
        gateway(worker.url for worker in workers) as url,
        client_of(url) as client,
    ):
        asking = asyncio.create_task(ask(client))
        await until(lambda: any(worker.in_flight for worker in workers))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: not any(worker.in_flight for worker in workers))

    [request] = [request for worker in workers for request in worker.requests]
    assert all(worker.aborted == [request.rid] for worker in workers)


async def test_what_training_needs_passes_the_gateway(smollm2_tokenizer: Any) -> None:
    sampling = {
        **SAMPLING,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "stop": ["x"],
        "stop_token_ids": [7],
        "sampling_seed": 11,
        "custom_params": {"return_top_p_token_ids": True},
    }
    async with (
        engines(smollm2_tokenizer, {"": TEXT}, 2) as workers,
        gateway(worker.url for worker in workers) as url,
        client_of(url) as client,
    ):
        completion = await client.generate(
            PROMPT, sampling, session="s", extra={"return_routed_experts": True}
        )

    [request] = [request for worker in workers for request in worker.requests]
    assert request.rid == completion.request_id
    assert (request.session, request.input_ids) == ("s", PROMPT)
    exact = {"no_stop_trim": True, "skip_special_tokens": False}
    assert request.sampling == {**sampling, **exact}
    assert (request.body["return_logprob"], request.body["return_routed_experts"]) == (True, True)


async def said_at_start(url: str, caplog: pytest.LogCaptureFixture, **options: Any) -> list[str]:
    """What the check of a gateway logs."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="rollhook.gateway"):
        await check_gateway(url, **{"sampling": {}, "extra": {}, "policy": None, **options})
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("policy", "warned"),
    [
        ("consistent_hashing", None),
        ("manual", None),
        ("round_robin", "sends the turns of one rollout to different workers"),
        ("random", "sends the turns of one rollout to different workers"),
        ("cache_aware", "sends the turns of one rollout to different workers"),
        ("passthrough", "sends every rollout to the same one of its 2 workers"),
    ],
)
async def test_a_policy_without_affinity_is_seen_at_the_start(
    smollm2_tokenizer: Any, caplog: pytest.LogCaptureFixture, policy: str, warned: str | None
) -> None:
    async with (
        engines(smollm2_tokenizer, {"": "hi"}, 2) as workers,
        gateway((worker.url for worker in workers), policy=policy) as url,
    ):
        said = await said_at_start(url, caplog)

    assert len(said) == (warned is not None)
    assert all(f"the gateway at {url} {warned}" in message for message in said)


async def test_the_runtime_asks_the_gateway_when_it_opens(
    smollm2_tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        engines(smollm2_tokenizer, {"": "hi"}, 2) as workers,
        gateway((worker.url for worker in workers), policy="round_robin") as url,
        opened(url, smollm2_tokenizer),
    ):
        pass

    assert "start it with --policy consistent_hashing" in caplog.text


async def test_one_worker_needs_no_affinity(smollm2_tokenizer: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with (
        engines(smollm2_tokenizer, {"": "hi"}, 1) as workers,
        gateway((worker.url for worker in workers), policy="round_robin") as url,
    ):
        assert await said_at_start(url, caplog) == []


async def test_one_worker_of_each_kind_needs_no_affinity(
    smollm2_tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        engines(smollm2_tokenizer, {"": "hi"}, 2) as [decode, prefill],
        gateway([decode.url], prefill=[prefill.url], policy="round_robin") as url,
    ):
        assert await said_at_start(url, caplog) == []


async def test_a_plain_server_is_not_probed(smollm2_tokenizer: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with ScriptedEngine(smollm2_tokenizer, []) as engine:
        assert await said_at_start(engine.url, caplog) == []

    assert engine.requests == []


def replaying(request: ScriptedRequest) -> Reply:
    """A server that answers what it was asked for, as one that trainers replay does."""
    meta: dict[str, Any] = {}
    if request.body.get("return_routed_experts"):
        meta["routed_experts"] = ""
    if (request.sampling.get("custom_params") or {}).get("return_top_p_token_ids"):
        meta |= {"top_p_token_ids": [], "top_p_token_offsets": [0]}
    return Reply("hi", meta=meta)


@pytest.mark.parametrize(
    ("asks", "lacking"),
    [
        ({"extra": {"return_routed_experts": True}}, "routed_experts"),
        ({"sampling": {"custom_params": {"return_top_p_token_ids": True}}}, "top_p_token_ids"),
    ],
)
async def test_answers_that_lack_what_training_needs_stop_the_run_at_its_start(
    smollm2_tokenizer: Any, caplog: pytest.LogCaptureFixture, asks: Mapping[str, Any], lacking: str
) -> None:
    async with engines(smollm2_tokenizer, replaying, 1) as [worker], gateway([worker.url]) as url:
        assert await said_at_start(url, caplog, **asks) == []
    async with engines(smollm2_tokenizer, {"": "hi"}, 1) as [worker], gateway([worker.url]) as url:
        with pytest.raises(
            ConfigError, match=f"answers carry no {lacking}, though every request asks for it"
        ):
            await said_at_start(url, caplog, **asks)


async def test_a_whole_batch_is_aborted_at_once(smollm2_tokenizer: Any) -> None:
    async with (
        engines(smollm2_tokenizer, {"": Reply(TEXT, fault=Fault.hang(1))}, 4) as workers,
        gateway(worker.url for worker in workers) as url,
        client_of(url) as client,
    ):
        asking = [asyncio.create_task(ask(client, session=f"s{i}")) for i in range(128)]
        await until(lambda: sum(worker.in_flight for worker in workers) == 128)
        await client.abort()
        parts = await asyncio.gather(*asking)

    assert Counter((part.finish_reason, len(part.token_ids)) for part in parts) == {("abort", 1): 128}
