"""The engine client against real HTTP: a scripted engine, or a raw server for what no engine should do."""

from __future__ import annotations

import asyncio
import socket
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from rollhook.engine import Completion, Delta, SGLangClient
from rollhook.errors import ConfigError, EngineProtocolError, EngineRejected, EngineUnavailable
from rollhook.testing import Fault, Reply, ScriptedEngine, scripted_log_prob

PROMPT = [1, 9690, 198, 2683]
SAMPLING = {"max_new_tokens": 64, "temperature": 1.0}
TEXT = "The sum is 42, ça va? 日本 😀"

STREAMED = [pytest.param(False, id="plain"), pytest.param(True, id="streamed")]


def client_of(url: str, **options: Any) -> SGLangClient:
    return SGLangClient(url, **{"backoff_s": 0.01, "request_timeout_s": 20.0} | options)


async def ask(
    client: SGLangClient, *, streamed: bool = False, session: str = "s", **options: Any
) -> Completion:
    on_delta = (lambda delta: None) if streamed else None
    return await client.generate(PROMPT, SAMPLING, session=session, on_delta=on_delta, **options)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


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


@pytest.mark.parametrize(
    ("meta", "versions"),
    [
        ({"weight_version": "7"}, ["7"]),
        ({"weight_version": "8", "weight_versions": ["7", "8", "7"]}, ["7", "8"]),
        (
            {
                "weight_versions": [
                    {"version": "7", "start": 0, "end": 3},
                    {"version": "8", "start": 3, "end": 4},
                ]
            },
            ["7", "8"],
        ),
        ({"weight_version": None}, []),
        ({}, []),
    ],
)
async def test_weight_versions_are_distinct_and_in_order(meta: dict[str, Any], versions: list[str]) -> None:
    answer = {
        "text": "a",
        "output_ids": [5],
        "meta_info": {
            "finish_reason": {"type": "length", "length": 1},
            "output_token_logprobs": [[-1.0, 5, None]],
            **meta,
        },
    }
    async with wire_server(lambda: web.json_response(answer)) as url, client_of(url) as client:
        completion = await ask(client)

    assert completion.weight_versions == versions


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


# answers that cannot be trained on


@pytest.mark.parametrize("streamed", STREAMED)
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault.missing_logprobs(), "has no output_token_logprobs"),
        (Fault.nan_logprob(), "the log-probability of output token [0-9]+ is nan"),
        (Fault.wrong_ids(), r"output_ids \([0-9]+\) and the ids of output_token_logprobs \([0-9]+\) differ"),
        (Fault.truncated_json(), "the engine's answer is not JSON"),
    ],
)
async def test_an_answer_without_what_training_needs_is_an_error_and_not_retried(
    smollm2_tokenizer: Any, fault: Fault, message: str, streamed: bool
) -> None:
    reply = Reply(TEXT, fault=fault)
    async with ScriptedEngine(smollm2_tokenizer, [reply]) as engine, client_of(engine.url) as client:
        with pytest.raises(EngineProtocolError, match=message):
            await ask(client, streamed=streamed)

    assert len(engine.requests) == 1


@pytest.mark.parametrize("streamed", STREAMED)
async def test_an_empty_turn_is_an_error(smollm2_tokenizer: Any, streamed: bool) -> None:
    reply = Reply(token_ids=[], end_token=False)
    async with ScriptedEngine(smollm2_tokenizer, [reply]) as engine, client_of(engine.url) as client:
        with pytest.raises(EngineProtocolError, match="finished with 'stop' and no token at all"):
            await ask(client, streamed=streamed)


@pytest.mark.parametrize("streamed", STREAMED)
async def test_a_request_aborted_in_the_waiting_queue_is_an_empty_aborted_turn(
    smollm2_tokenizer: Any, streamed: bool
) -> None:
    reply = Reply(token_ids=[], end_token=False, finish="abort", fault=Fault.missing_logprobs())
    async with ScriptedEngine(smollm2_tokenizer, [reply]) as engine, client_of(engine.url) as client:
        completion = await ask(client, streamed=streamed)

    assert (completion.token_ids, completion.finish_reason) == ([], "abort")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([], "has no meta_info"),
        ({"text": "a"}, "has no meta_info"),
        ({"meta_info": {}}, "no known finish_reason but None"),
        ({"meta_info": {"finish_reason": {"type": "tired"}}}, "no known finish_reason"),
        (
            {"meta_info": {"finish_reason": {"type": "stop"}, "output_token_logprobs": [[None, 5, None]]}},
            "the log-probability of output token 0 is None",
        ),
        (
            {"meta_info": {"finish_reason": {"type": "stop"}, "output_token_logprobs": [[-1.0, None, None]]}},
            "the id of output token 0 is None",
        ),
        (
            {"meta_info": {"finish_reason": {"type": "stop"}, "output_token_logprobs": [-1.0]}},
            r"is not a list of \[log_prob, id, text\]",
        ),
        (
            {
                "meta_info": {
                    "finish_reason": {"type": "stop"},
                    "completion_tokens": 2,
                    "output_token_logprobs": [[-1.0, 5, None]],
                }
            },
            "counts 2 completion tokens and gave log-probabilities for 1",
        ),
    ],
)
async def test_an_answer_of_another_form_is_named(answer: Any, message: str) -> None:
    async with wire_server(lambda: web.json_response(answer)) as url, client_of(url) as client:
        with pytest.raises(EngineProtocolError, match=message):
            await ask(client)


# deadlines, cancellation, abort


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


def test_a_url_without_its_scheme_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="engine URL 'localhost:30000' must begin with http://"):
        SGLangClient("localhost:30000")


async def test_a_client_that_is_not_open_says_so() -> None:
    with pytest.raises(RuntimeError, match="use it inside `async with`"):
        await ask(SGLangClient("http://127.0.0.1:1"))


# the rest of the API


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


# servers that no engine should be


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def app_server(routes: list[web.RouteDef]) -> AsyncIterator[str]:
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def wire_server(answer: Callable[[], web.Response | Awaitable[web.Response]]) -> AsyncIterator[str]:
    """A server that knows /generate only and answers it with `answer()`."""

    async def generate(request: web.Request) -> web.Response:
        await request.read()
        made = answer()
        return made if isinstance(made, web.Response) else await made

    async with app_server([web.post("/generate", generate)]) as url:
        yield url


@asynccontextmanager
async def raw_server(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
