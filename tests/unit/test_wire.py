"""Answers read strictly: what training needs is there and agrees, or the engine is named for it."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from rollhook.errors import EngineProtocolError
from rollhook.testing import Fault, Reply, ScriptedEngine
from tests.unit.engines import (
    STREAMED,
    TEXT,
    ask,
    client_of,
    wire_server,
)


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
