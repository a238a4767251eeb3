"""The engine client against real HTTP: a scripted engine, or a raw server for what no engine should do."""

from __future__ import annotations

import asyncio
from array import array
from typing import Any

import pytest
from aiohttp import web

from rollhook.engine import Delta, SGLangClient
from rollhook.errors import ConfigError, EngineRejected, EngineUnavailable
from rollhook.testing import Fault, Reply, ScriptedEngine, scripted_log_prob
from tests.unit.engines import (
    PROMPT,
    SAMPLING,
    STREAMED,
    TEXT,
    app_server,
    ask,
    client_of,
    until,
    unused_port,
    wire_server,
)

# what is sent and what comes back


@pytest.mark.parametrize("input_ids", [PROMPT, tuple(PROMPT), array("i", PROMPT)])
async def test_a_request_carries_ids_exact_sampling_and_the_routing_key(
    smollm2_tokenizer: Any, input_ids: Any
) -> None:
    async with ScriptedEngine(smollm2_tokenizer, [TEXT]) as engine, client_of(engine.url) as client:
        completion = await client.generate(
            input_ids,
            {**SAMPLING, "no_stop_trim": False},
            session="rollout-7",
            extra={"return_routed_experts": True, "rid": "mine"},
        )

    [request] = engine.requests
    assert request.body == {
        "rid": completion.request_id,
        "input_ids": PROMPT,
        "sampling_params": {
            "max_new_tokens": 64,
            "temperature": 1.0,
            "no_stop_trim": True,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
        },
        "return_logprob": True,
        "return_routed_experts": True,
        "stream": False,
    }
    assert request.headers["X-SMG-Routing-Key"] == "rollout-7"


@pytest.mark.parametrize("streamed", STREAMED)
async def test_a_completion_holds_what_was_sampled(smollm2_tokenizer: Any, streamed: bool) -> None:
    reply = Reply(TEXT, weight_version="step-3", meta={"cached_tokens": 2, "num_retractions": 0})
    async with ScriptedEngine(smollm2_tokenizer, [reply]) as engine, client_of(engine.url) as client:
        completion = await ask(client, streamed=streamed)

    ids = [*smollm2_tokenizer.encode(TEXT, add_special_tokens=False), smollm2_tokenizer.eos_token_id]
    assert completion.token_ids == ids
    assert completion.log_probs == [
        scripted_log_prob(position, ids[position]) for position in range(len(ids))
    ]
    assert completion.text == TEXT + "<|im_end|>"
    assert completion.finish_reason == "stop"
    assert completion.matched == smollm2_tokenizer.eos_token_id
    assert completion.weight_versions == ["step-3"]
    assert (completion.prompt_tokens, completion.cached_tokens) == (len(PROMPT), 2)
    assert completion.meta_info["num_retractions"] == 0
    assert "output_token_logprobs" not in completion.meta_info


@pytest.mark.parametrize("incremental", [False, True])
async def test_a_stream_gives_the_same_turn_as_a_plain_request(
    smollm2_tokenizer: Any, incremental: bool
) -> None:
    deltas: list[Delta] = []
    async with (
        ScriptedEngine(smollm2_tokenizer, [TEXT, TEXT], incremental=incremental) as engine,
        client_of(engine.url) as client,
    ):
        plain = await ask(client)
        streamed = await client.generate(PROMPT, SAMPLING, session="s", on_delta=deltas.append)

    assert streamed.token_ids == plain.token_ids
    assert streamed.log_probs == plain.log_probs
    assert (streamed.text, streamed.finish_reason, streamed.matched) == (
        plain.text,
        plain.finish_reason,
        plain.matched,
    )
    assert [token_id for delta in deltas for token_id in delta.token_ids] == plain.token_ids
    assert [log_prob for delta in deltas for log_prob in delta.log_probs] == plain.log_probs
    assert "".join(delta.text for delta in deltas) == plain.text
    assert engine.requests[1].body["stream"] is True


async def test_a_prompt_and_a_stream_larger_than_any_buffer_pass(smollm2_tokenizer: Any) -> None:
    token_ids = [500 + position for position in range(9000)]
    reply = Reply(token_ids=token_ids, finish="length")
    sampling = {"max_new_tokens": 10_000}
    async with (
        ScriptedEngine(smollm2_tokenizer, [reply], stream_interval=3000) as engine,
        client_of(engine.url) as client,
    ):
        completion = await client.generate(
            [40_000] * 200_000, sampling, session="s", on_delta=lambda delta: None
        )

    assert completion.token_ids == token_ids
    assert completion.prompt_tokens == 200_000


# retries


async def test_a_refused_connection_is_retried_until_the_engine_is_up(smollm2_tokenizer: Any) -> None:
    port = unused_port()
    async with client_of(f"http://127.0.0.1:{port}", retries=50) as client:
        asking = asyncio.create_task(ask(client))
        await asyncio.sleep(0.05)
        async with ScriptedEngine(smollm2_tokenizer, [TEXT], port=port) as engine:
            completion = await asking

    assert completion.text == TEXT + "<|im_end|>"
    assert len(engine.requests) == 1


async def test_an_engine_that_stays_away_is_named_with_the_attempts() -> None:
    url = f"http://127.0.0.1:{unused_port()}"
    async with client_of(url, retries=2) as client:
        with pytest.raises(EngineUnavailable, match=rf"{url}: cannot connect: .* \(after 3 attempts\)"):
            await ask(client)


@pytest.mark.parametrize(
    ("fault", "streamed"),
    [
        *((fault, streamed) for fault in (Fault.status(500), Fault.drop()) for streamed in (False, True)),
        (Fault.status(503), False),
        (Fault.cut(after_tokens=0), True),
    ],
)
async def test_an_attempt_that_failed_before_any_token_is_repeated_with_a_fresh_rid(
    smollm2_tokenizer: Any, fault: Fault, streamed: bool
) -> None:
    async with (
        ScriptedEngine(smollm2_tokenizer, [Reply(TEXT, fault=fault)]) as engine,
        client_of(engine.url) as client,
    ):
        completion = await ask(client, streamed=streamed)
        await until(lambda: engine.aborted)

    first, second = engine.requests
    assert completion.text == TEXT + "<|im_end|>"
    assert completion.request_id == second.rid != first.rid
    assert {**first.body, "rid": ""} == {**second.body, "rid": ""}
    assert engine.aborted == [first.rid]  # it might still have been alive behind a gateway


async def test_an_engine_that_always_fails_is_given_up_with_its_own_words(smollm2_tokenizer: Any) -> None:
    reply = Reply(TEXT, fault=Fault.status(500, times=None, message="CUDA error"))
    async with (
        ScriptedEngine(smollm2_tokenizer, [reply]) as engine,
        client_of(engine.url, retries=3) as client,
    ):
        with pytest.raises(EngineUnavailable, match=r"status 500: CUDA error \(after 4 attempts\)"):
            await ask(client)

    assert len(engine.requests) == 4
    assert len({request.rid for request in engine.requests}) == 4


async def test_retry_after_replaces_the_backoff(smollm2_tokenizer: Any) -> None:
    reply = Reply(TEXT, fault=Fault.status(429, retry_after_s=0))
    async with (
        ScriptedEngine(smollm2_tokenizer, [reply]) as engine,
        client_of(engine.url, backoff_s=3600.0) as client,
    ):
        assert (await ask(client)).text == TEXT + "<|im_end|>"

    assert len(engine.requests) == 2
    assert engine.aborted == []


async def test_retry_after_is_waited_for_within_the_call_deadline(smollm2_tokenizer: Any) -> None:
    reply = Reply(TEXT, fault=Fault.status(429, retry_after_s=3600))
    async with ScriptedEngine(smollm2_tokenizer, [reply]) as engine, client_of(engine.url) as client:
        with pytest.raises(EngineUnavailable, match=r"no complete answer in 0.2 s and 1 attempts"):
            await ask(client, timeout_s=0.2)

    assert len(engine.requests) == 1


@pytest.mark.parametrize("code", [400, 404, 422])
async def test_a_refusal_is_not_retried(smollm2_tokenizer: Any, code: int) -> None:
    message = "The input (9 tokens) is longer than the model's context length (8 tokens)."
    reply = Reply(TEXT, fault=Fault.status(code, message=message))
    async with ScriptedEngine(smollm2_tokenizer, [reply]) as engine, client_of(engine.url) as client:
        with pytest.raises(EngineRejected) as caught:
            await ask(client)

    assert str(caught.value) == f"{engine.url}/generate: status {code}: {message}"
    assert len(engine.requests) == 1
    assert engine.aborted == []


@pytest.mark.parametrize("streamed", STREAMED)
async def test_an_abort_with_status_400_is_a_refusal(smollm2_tokenizer: Any, streamed: bool) -> None:
    reason = {"type": "abort", "status_code": 400, "message": "bad grammar"}
    reply = Reply(token_ids=[], end_token=False, meta={"finish_reason": reason})
    async with ScriptedEngine(smollm2_tokenizer, [reply]) as engine, client_of(engine.url) as client:
        with pytest.raises(EngineRejected, match="status 400: bad grammar"):
            await ask(client, streamed=streamed)


@pytest.mark.parametrize("streamed", STREAMED)
async def test_an_abort_with_status_503_is_retried(smollm2_tokenizer: Any, streamed: bool) -> None:
    reason = {"type": "abort", "status_code": 503, "message": "queue is full"}
    replies = [Reply(token_ids=[], end_token=False, meta={"finish_reason": reason}), Reply(TEXT)]
    async with ScriptedEngine(smollm2_tokenizer, replies) as engine, client_of(engine.url) as client:
        assert (await ask(client, streamed=streamed)).text == TEXT + "<|im_end|>"

    assert len(engine.requests) == 2


async def test_an_error_event_inside_a_stream_is_a_refusal() -> None:
    events = b'data: {"error": {"message": "input is too long"}}\n\ndata: [DONE]\n\n'
    async with (
        wire_server(lambda: web.Response(body=events, content_type="text/event-stream")) as url,
        client_of(url) as client,
    ):
        with pytest.raises(EngineRejected, match="status 400: input is too long"):
            await ask(client, streamed=True)


@pytest.mark.parametrize("streamed", STREAMED)
async def test_an_answer_cut_after_tokens_is_not_sampled_again(
    smollm2_tokenizer: Any, streamed: bool
) -> None:
    reply = Reply(TEXT, fault=Fault.cut(after_tokens=3))
    async with ScriptedEngine(smollm2_tokenizer, [reply]) as engine, client_of(engine.url) as client:
        with pytest.raises(
            EngineUnavailable, match="cut after 3 tokens" if streamed else "cut after [0-9]+ bytes"
        ):
            await ask(client, streamed=streamed)

    assert len(engine.requests) == 1
    assert engine.aborted == [engine.requests[0].rid]


async def test_a_connection_that_was_closed_while_idle_costs_a_retry_and_no_error(
    smollm2_tokenizer: Any,
) -> None:
    replies = [Reply(TEXT), Reply(TEXT, fault=Fault.drop())]
    async with ScriptedEngine(smollm2_tokenizer, replies) as engine, client_of(engine.url) as client:
        first, second = await ask(client), await ask(client)

    assert first.token_ids == second.token_ids
    assert len(engine.requests) == 3


# the rest of the API


def test_a_url_without_its_scheme_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="engine URL 'localhost:30000' must begin with http://"):
        SGLangClient("localhost:30000")


async def test_a_client_that_is_not_open_says_so() -> None:
    with pytest.raises(RuntimeError, match="use it inside `async with`"):
        await ask(SGLangClient("http://127.0.0.1:1"))


async def test_wait_ready_returns_when_the_engine_comes_up(smollm2_tokenizer: Any) -> None:
    port = unused_port()
    async with client_of(f"http://127.0.0.1:{port}") as client:
        waiting = asyncio.create_task(client.wait_ready(10, poll_s=0.01))
        await asyncio.sleep(0.03)
        async with ScriptedEngine(smollm2_tokenizer, [], port=port):
            await waiting


async def test_wait_ready_gives_up_with_the_last_cause() -> None:
    async with client_of(f"http://127.0.0.1:{unused_port()}") as client:
        with pytest.raises(EngineUnavailable, match=r"not ready after 0.1 s \(.*Cannot connect"):
            await client.wait_ready(0.1, poll_s=0.01)


async def test_model_info_names_the_tokenizer(smollm2_tokenizer: Any) -> None:
    async with ScriptedEngine(smollm2_tokenizer, []) as engine, client_of(engine.url) as client:
        info = await client.model_info()

    assert info["tokenizer_path"] == smollm2_tokenizer.name_or_path


async def test_model_info_is_found_under_its_newer_name() -> None:
    async def info(request: web.Request) -> web.Response:
        return web.json_response({"model_path": "m"})

    async with app_server([web.get("/model_info", info)]) as url, client_of(url) as client:
        assert await client.model_info() == {"model_path": "m"}
