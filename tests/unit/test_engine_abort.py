"""Deadlines, cancellation and abort: every call ends, and nothing stays behind on the engine."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from aiohttp import web

from rollhook.engine import Completion, Delta
from rollhook.errors import EngineProtocolError, EngineRejected, EngineUnavailable
from rollhook.testing import Fault, Reply, ScriptedEngine
from tests.unit.engines import (
    PROMPT,
    SAMPLING,
    STREAMED,
    TEXT,
    ask,
    client_of,
    raw_server,
    until,
    wire_server,
)


@pytest.mark.parametrize("streamed", STREAMED)
@pytest.mark.parametrize("after_tokens", [0, 3])
async def test_a_hang_ends_at_the_deadline_with_the_request_aborted(
    smollm2_tokenizer: Any, after_tokens: int, streamed: bool
) -> None:
    reply = Reply(TEXT, fault=Fault.hang(after_tokens))
    async with ScriptedEngine(smollm2_tokenizer, [reply]) as engine, client_of(engine.url) as client:
        with pytest.raises(EngineUnavailable, match=r"no complete answer in 0.3 s and 1 attempts; aborted"):
            await ask(client, streamed=streamed, timeout_s=0.3)
        await until(lambda: engine.in_flight == 0)

    assert engine.aborted == [engine.requests[0].rid]


async def test_an_engine_that_accepts_and_never_answers_ends_at_the_deadline() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with raw_server(silent) as url, client_of(url) as client:
        with pytest.raises(EngineUnavailable, match=r"no complete answer in 0\.1 s"):
            await ask(client, timeout_s=0.1)


@pytest.mark.parametrize("streamed", STREAMED)
async def test_cancellation_aborts_the_request_and_leaves_nothing_behind(
    smollm2_tokenizer: Any, streamed: bool
) -> None:
    reply = Reply(TEXT, fault=Fault.hang(2))
    async with ScriptedEngine(smollm2_tokenizer, [reply]) as engine, client_of(engine.url) as client:
        asking = asyncio.create_task(ask(client, streamed=streamed))
        await until(lambda: engine.in_flight == 1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

        assert engine.aborted == [engine.requests[0].rid]
        await until(lambda: engine.in_flight == 0)


async def test_cancelling_twice_still_delivers_the_abort(smollm2_tokenizer: Any) -> None:
    reply = Reply(TEXT, fault=Fault.hang())
    async with ScriptedEngine(smollm2_tokenizer, [reply]) as engine:
        async with client_of(engine.url) as client:
            asking = asyncio.create_task(ask(client))
            await until(lambda: engine.in_flight == 1)
            asking.cancel()
            await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

        assert engine.aborted == [engine.requests[0].rid]


async def test_a_callback_that_raises_aborts_the_request(smollm2_tokenizer: Any) -> None:
    def refuse(delta: Delta) -> None:
        raise TimeoutError("the listener's own")

    reply = Reply(TEXT, fault=Fault.hang(2))
    async with ScriptedEngine(smollm2_tokenizer, [reply]) as engine, client_of(engine.url) as client:
        with pytest.raises(TimeoutError, match="the listener's own"):
            await client.generate(PROMPT, SAMPLING, session="s", on_delta=refuse)

        assert engine.aborted == [engine.requests[0].rid]


@pytest.mark.parametrize("streamed", STREAMED)
async def test_abort_ends_one_session_and_returns_the_part(smollm2_tokenizer: Any, streamed: bool) -> None:
    script = {"": Reply(TEXT, fault=Fault.hang(3))}
    async with ScriptedEngine(smollm2_tokenizer, script) as engine, client_of(engine.url) as client:
        ending = asyncio.create_task(ask(client, streamed=streamed, session="a"))
        going_on = asyncio.create_task(ask(client, streamed=streamed, session="b"))
        await until(lambda: engine.in_flight == 2)
        await client.abort("a")
        part = await ending
        assert not going_on.done()
        await client.abort()
        await going_on

    assert part.token_ids == smollm2_tokenizer.encode(TEXT, add_special_tokens=False)[:3]
    assert len(part.log_probs) == 3
    assert (part.finish_reason, part.matched) == ("abort", None)
    assert part.text == smollm2_tokenizer.decode(part.token_ids)


async def test_abort_ends_a_call_that_waits_between_attempts(smollm2_tokenizer: Any) -> None:
    reply = Reply(TEXT, fault=Fault.status(500))
    async with (
        ScriptedEngine(smollm2_tokenizer, [reply]) as engine,
        client_of(engine.url, backoff_s=3600.0) as client,
    ):
        asking = asyncio.create_task(ask(client))
        await until(lambda: engine.aborted)
        await client.abort("s")
        completion = await asking

    assert (completion.token_ids, completion.finish_reason) == ([], "abort")
    assert len(engine.requests) == 1


async def test_abort_ends_a_call_that_waits_for_a_connection(smollm2_tokenizer: Any) -> None:
    reply = Reply(TEXT, fault=Fault.hang())
    async with (
        ScriptedEngine(smollm2_tokenizer, [reply]) as engine,
        client_of(engine.url, connections=1) as client,
    ):
        running = asyncio.create_task(ask(client, session="a"))
        await until(lambda: engine.in_flight == 1)
        waiting = asyncio.create_task(ask(client, session="b"))
        await asyncio.sleep(0)
        await client.abort("b")
        assert (await waiting).finish_reason == "abort"
        assert not running.done()
        await client.abort("a")
        await running

    assert len(engine.requests) == 1


async def test_abort_through_a_gateway_that_does_not_know_it_closes_the_connection() -> None:
    arrived = asyncio.Event()

    async def hang() -> web.Response:
        arrived.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with wire_server(hang) as url, client_of(url) as client:
        asking = asyncio.create_task(ask(client))
        await arrived.wait()
        await client.abort()
        completion = await asking

    assert (completion.token_ids, completion.finish_reason) == ([], "abort")


async def test_closing_the_client_ends_what_is_live(smollm2_tokenizer: Any) -> None:
    reply = Reply(TEXT, fault=Fault.hang(1))
    async with ScriptedEngine(smollm2_tokenizer, [reply]) as engine:
        async with client_of(engine.url) as client:
            asking = asyncio.create_task(ask(client))
            await until(lambda: engine.in_flight == 1)

        assert (await asking).finish_reason == "abort"
        assert engine.in_flight == 0


@pytest.mark.parametrize("streamed", STREAMED)
async def test_calls_with_every_kind_of_fault_all_end_and_leave_nothing_in_flight(
    smollm2_tokenizer: Any, streamed: bool
) -> None:
    faults = [
        None,
        Fault.drop(times=2),
        Fault.status(500),
        Fault.status(400),
        Fault.hang(2),
        Fault.cut(3),
        Fault.nan_logprob(),
        Fault.truncated_json(),
    ]
    script = {f"<|im_start|>{k}": Reply(TEXT, fault=faults[k % len(faults)]) for k in range(10, 50)}
    async with ScriptedEngine(smollm2_tokenizer, script) as engine, client_of(engine.url) as client:
        outcomes = await asyncio.gather(
            *(
                client.generate(
                    smollm2_tokenizer.encode(f"<|im_start|>{k}"),
                    SAMPLING,
                    session=str(k),
                    timeout_s=2.0,
                    on_delta=(lambda delta: None) if streamed else None,
                )
                for k in range(10, 50)
            ),
            return_exceptions=True,
        )
        await until(lambda: engine.in_flight == 0)

    assert Counter(type(outcome) for outcome in outcomes) == {
        Completion: 15,
        EngineRejected: 5,
        EngineUnavailable: 10,
        EngineProtocolError: 10,
    }
    assert len({request.rid for request in engine.requests}) == len(engine.requests) == 55


async def test_connections_bound_the_requests_in_flight(smollm2_tokenizer: Any) -> None:
    script = {"": Reply(TEXT, delay_s=0.02)}
    async with (
        ScriptedEngine(smollm2_tokenizer, script) as engine,
        client_of(engine.url, connections=3) as client,
        asyncio.TaskGroup() as group,
    ):
        for session in range(12):
            group.create_task(ask(client, session=str(session)))

    assert len(engine.requests) == 12
    assert engine.peak_in_flight == 3
