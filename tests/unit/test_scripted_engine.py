"""The scripted engine: SGLang's wire form, and scripts that say what a test means."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from textwrap import dedent
from typing import Any

import aiohttp
import pytest

from rollhook.engine import Completion, SGLangClient
from rollhook.errors import EngineRejected
from rollhook.testing import Fault, Reply, ScriptedEngine, ScriptedRequest, scripted_log_prob


async def ask(
    engine: ScriptedEngine, prompt: str = "Hello", *, session: str = "s", **sampling: Any
) -> Completion:
    ids = engine.tokenizer.encode(prompt, add_special_tokens=False)
    async with SGLangClient(engine.url, backoff_s=0.01, request_timeout_s=10.0) as client:
        return await client.generate(ids, {"max_new_tokens": 64} | sampling, session=session)


async def post(engine: ScriptedEngine, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    async with aiohttp.ClientSession() as http, http.post(engine.url + path, json=body) as response:
        return response.status, await response.read()


# scripts


async def test_a_list_is_served_in_order(smollm2_tokenizer: Any) -> None:
    script: list[Reply | str] = ["one", Reply("two")]
    async with ScriptedEngine(smollm2_tokenizer, script) as engine:
        texts = [(await ask(engine)).text for _ in range(2)]

    assert texts == ["one<|im_end|>", "two<|im_end|>"]


async def test_a_function_sees_prompt_session_and_turn(smollm2_tokenizer: Any) -> None:
    def script(request: ScriptedRequest) -> str:
        return f"{request.session} {request.turn} {request.prompt} {request.sampling['temperature']}"

    async with ScriptedEngine(smollm2_tokenizer, script) as engine:
        for prompt, session in [("<|im_start|>x", "a"), ("y", "b"), ("z", "a")]:
            await ask(engine, prompt, session=session, temperature=0.5)

    texts = [smollm2_tokenizer.decode(sampled.token_ids[:-1]) for sampled in engine.sampled]
    assert texts == ["a 0 <|im_start|>x 0.5", "b 0 y 0.5", "a 1 z 0.5"]


async def test_a_mapping_answers_by_the_prompts_text(smollm2_tokenizer: Any) -> None:
    script = {"weather": ["sunny", "rainy"], "": "what?"}
    async with ScriptedEngine(smollm2_tokenizer, script) as engine:
        texts = [(await ask(engine, prompt)).text for prompt in ("the weather", "hm", "weather?", "hm")]

    assert texts == ["sunny<|im_end|>", "what?<|im_end|>", "rainy<|im_end|>", "what?<|im_end|>"]


async def test_a_script_that_runs_out_is_refused_at_once_and_fails_the_test(smollm2_tokenizer: Any) -> None:
    engine = ScriptedEngine(smollm2_tokenizer, ["one"])
    await engine.__aenter__()
    await ask(engine)
    with pytest.raises(EngineRejected, match="the script has 1 replies and no more"):
        await ask(engine, "and now?", session="late")

    assert len(engine.requests) == 2
    with pytest.raises(AssertionError, match="session 'late', turn 0, prompt ending 'and now"):
        await engine.__aexit__(None, None, None)


def test_one_string_is_no_script(smollm2_tokenizer: Any) -> None:
    with pytest.raises(TypeError, match=r"not one string; try \['hello'\]"):
        ScriptedEngine(smollm2_tokenizer, "hello")


async def test_a_script_that_raises_is_named(smollm2_tokenizer: Any) -> None:
    def script(request: ScriptedRequest) -> str:
        raise ValueError("no such question")

    async with ScriptedEngine(smollm2_tokenizer, script) as engine:
        with pytest.raises(EngineRejected, match="ValueError: no such question"):
            await ask(engine)
        assert engine.errors == ["scripted engine: ValueError: no such question"]
        engine.errors.clear()


async def test_a_retry_gets_the_reply_it_missed_and_keeps_its_turn(smollm2_tokenizer: Any) -> None:
    script: list[Reply | str] = [Reply("first", fault=Fault.status(500, times=2)), "second"]
    async with ScriptedEngine(smollm2_tokenizer, script) as engine:
        texts = [(await ask(engine)).text for _ in range(2)]

    assert texts == ["first<|im_end|>", "second<|im_end|>"]
    assert [request.turn for request in engine.requests] == [0, 0, 0, 1]


# sampling rules


async def test_log_probs_are_fixed_by_position_and_id(smollm2_tokenizer: Any) -> None:
    async with ScriptedEngine(smollm2_tokenizer, ["a b a b", "a b a b"]) as engine:
        first, second = await ask(engine), await ask(engine)

    assert first.log_probs == second.log_probs
    assert first.log_probs == [scripted_log_prob(t, token_id) for t, token_id in enumerate(first.token_ids)]
    assert all(-3.02 < log_prob < 0 for log_prob in first.log_probs)


async def test_a_stop_string_cuts_the_ids_after_the_one_that_completes_it(qwen3_tokenizer: Any) -> None:
    text = "<search>cats</search>\nand more"
    async with ScriptedEngine(qwen3_tokenizer, [text]) as engine:
        completion = await ask(engine, stop=["</search>", "more"])

    assert completion.matched == "</search>"
    assert completion.text == "<search>cats</search>"
    assert qwen3_tokenizer.decode(completion.token_ids) == "<search>cats</search>\n"


async def test_a_stop_string_is_trimmed_from_the_text_only_when_asked(smollm2_tokenizer: Any) -> None:
    body = {
        "rid": "r",
        "input_ids": [5],
        "sampling_params": {"stop": "</a>", "max_new_tokens": 64},
        "return_logprob": True,
    }
    async with ScriptedEngine(smollm2_tokenizer, ["<a>x</a> y", "<a>x</a> y"]) as engine:
        _, trimmed = await post(engine, "/generate", body)
        body["sampling_params"] = {"stop": "</a>", "max_new_tokens": 64, "no_stop_trim": True}
        _, kept = await post(engine, "/generate", body)

    assert json.loads(trimmed)["text"] == "<a>x"
    assert json.loads(kept)["text"] == "<a>x</a>"
    assert json.loads(trimmed)["output_ids"] == json.loads(kept)["output_ids"]


async def test_a_stop_token_ends_the_turn_and_stays_in_it(smollm2_tokenizer: Any) -> None:
    ids = smollm2_tokenizer.encode("one two three", add_special_tokens=False)
    async with ScriptedEngine(smollm2_tokenizer, ["one two three"]) as engine:
        completion = await ask(engine, stop_token_ids=[ids[1]])

    assert (completion.token_ids, completion.matched) == (ids[:2], ids[1])


async def test_a_stop_beats_the_length_limit_at_the_same_token(smollm2_tokenizer: Any) -> None:
    ids = smollm2_tokenizer.encode("one two", add_special_tokens=False)
    async with ScriptedEngine(smollm2_tokenizer, ["one two", "one two"]) as engine:
        by_token = await ask(engine, max_new_tokens=len(ids), stop_token_ids=[ids[-1]])
        by_string = await ask(engine, max_new_tokens=len(ids), stop_token_ids=[ids[-1]], stop="two")

    assert (by_token.finish_reason, by_token.matched) == ("stop", ids[-1])
    assert (by_string.finish_reason, by_string.matched) == ("stop", "two")


async def test_max_new_tokens_cuts_real_ids(smollm2_tokenizer: Any) -> None:
    ids = smollm2_tokenizer.encode("one two three four", add_special_tokens=False)
    async with ScriptedEngine(smollm2_tokenizer, ["one two three four"]) as engine:
        completion = await ask(engine, max_new_tokens=3)

    assert (completion.token_ids, completion.finish_reason) == (ids[:3], "length")


async def test_an_end_token_inside_the_text_ends_the_turn(smollm2_tokenizer: Any) -> None:
    async with ScriptedEngine(smollm2_tokenizer, ["a<|im_end|>b", "a<|im_end|>b"]) as engine:
        ended = await ask(engine)
        ignored = await ask(engine, ignore_eos=True)

    assert ended.text == "a<|im_end|>"
    assert ignored.text == "a<|im_end|>b<|im_end|>"


async def test_a_reply_may_be_exact_ids_without_an_end_token(smollm2_tokenizer: Any) -> None:
    reply = Reply(token_ids=[504, 2028], end_token=False, weight_version="9", meta={"spec_verify_ct": 4})
    async with ScriptedEngine(smollm2_tokenizer, [reply]) as engine:
        completion = await ask(engine)

    assert (completion.token_ids, completion.finish_reason, completion.matched) == ([504, 2028], "stop", None)
    assert completion.weight_versions == ["9"]
    assert completion.meta_info["spec_verify_ct"] == 4


async def test_the_weight_version_can_change_between_turns(smollm2_tokenizer: Any) -> None:
    async with ScriptedEngine(smollm2_tokenizer, ["a", "b"], weight_version="1") as engine:
        first = await ask(engine)
        engine.weight_version = "2"
        second = await ask(engine)

    assert (first.weight_versions, second.weight_versions) == (["1"], ["2"])


# the wire


async def test_a_stream_repeats_everything_so_far_and_holds_back_half_characters(
    smollm2_tokenizer: Any,
) -> None:
    body = {"rid": "r", "input_ids": [5], "stream": True, "return_logprob": True}
    async with ScriptedEngine(smollm2_tokenizer, ["a 日!"]) as engine:
        _, raw = await post(engine, "/generate", body)

    *events, done = [line.removeprefix(b"data: ") for line in raw.split(b"\n\n") if line]
    answers = [json.loads(event) for event in events]
    ids = engine.sampled[0].token_ids
    assert done == b"[DONE]"
    assert [answer["output_ids"] for answer in answers] == [ids[: n + 1] for n in range(len(ids))]
    assert [len(answer["meta_info"]["output_token_logprobs"]) for answer in answers] == [
        n + 1 for n in range(len(ids))
    ]
    assert [answer["meta_info"]["finish_reason"] for answer in answers[:-1]] == [None] * (len(ids) - 1)
    assert not any("\ufffd" in answer["text"] for answer in answers)


async def test_an_abort_during_a_delay_returns_the_part(smollm2_tokenizer: Any) -> None:
    reply = Reply("one two three four five six", delay_s=600.0)
    async with ScriptedEngine(smollm2_tokenizer, [reply]) as engine, asyncio.TaskGroup() as group:
        asking = group.create_task(ask(engine))
        while not engine.in_flight:
            await asyncio.sleep(0.005)
        await post(engine, "/abort_request", {"rid": engine.requests[0].rid})

    assert asking.result().finish_reason == "abort"
    assert engine.sampled[0].token_ids == asking.result().token_ids
    assert engine.aborted == [engine.requests[0].rid]


async def test_abort_all_ends_every_request(smollm2_tokenizer: Any) -> None:
    script = {"": Reply("never", fault=Fault.hang())}
    async with ScriptedEngine(smollm2_tokenizer, script) as engine, asyncio.TaskGroup() as group:
        asking = [group.create_task(ask(engine, session=session)) for session in "ab"]
        while engine.in_flight < 2:
            await asyncio.sleep(0.005)
        await post(engine, "/abort_request", {"rid": "", "abort_all": True})

    assert [task.result().finish_reason for task in asking] == ["abort", "abort"]
    assert engine.peak_in_flight == 2


async def test_a_rid_that_is_alive_is_refused(smollm2_tokenizer: Any) -> None:
    body = {"rid": "twin", "input_ids": [5], "return_logprob": True}
    script = {"": Reply("never", fault=Fault.hang())}
    async with ScriptedEngine(smollm2_tokenizer, script) as engine, asyncio.TaskGroup() as group:
        group.create_task(post(engine, "/generate", body))
        while not engine.in_flight:
            await asyncio.sleep(0.005)
        status, answer = await post(engine, "/generate", body)
        await post(engine, "/abort_request", {"rid": "twin"})

    assert status == 400
    assert json.loads(answer)["error"]["message"] == "Duplicate request ID detected: twin"


@pytest.mark.parametrize("ids", [None, [], "text", ["a"]])
async def test_input_ids_must_be_ids(smollm2_tokenizer: Any, ids: Any) -> None:
    async with ScriptedEngine(smollm2_tokenizer, []) as engine:
        status, answer = await post(engine, "/generate", {"rid": "r", "input_ids": ids})

    assert status == 400
    assert b"at least one token id" in answer


async def test_log_probs_come_only_when_asked(smollm2_tokenizer: Any) -> None:
    async with ScriptedEngine(smollm2_tokenizer, ["a"]) as engine:
        _, answer = await post(engine, "/generate", {"rid": "r", "input_ids": [5]})

    assert "output_token_logprobs" not in json.loads(answer)["meta_info"]


async def test_the_control_endpoints_answer(smollm2_tokenizer: Any) -> None:
    async with ScriptedEngine(smollm2_tokenizer, []) as engine, aiohttp.ClientSession() as http:
        statuses = []
        for path in ("/health", "/get_model_info", "/model_info", "/flush_cache"):
            async with http.get(engine.url + path) as response:
                statuses.append(response.status)

    assert statuses == [200, 200, 200, 200]


async def test_leaving_the_context_ends_hanging_requests(smollm2_tokenizer: Any) -> None:
    reply = Reply("never", fault=Fault.hang())
    async with ScriptedEngine(smollm2_tokenizer, [reply]) as engine:
        asking = asyncio.create_task(ask(engine))
        while not engine.in_flight:
            await asyncio.sleep(0.005)

    assert (await asking).finish_reason == "abort"


# the pytest plugin


async def test_the_factory_fixture_starts_engines(scripted_engine: Any, qwen3_tokenizer: Any) -> None:
    engine = await scripted_engine(qwen3_tokenizer, ["hi"], weight_version="4")

    assert (await ask(engine)).text == "hi<|im_end|>"


def test_the_plugin_is_light_to_import() -> None:
    code = (
        "import sys, rollhook.testing.fixtures; "
        "print(sorted({'transformers', 'torch', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


async def test_the_example_in_the_docstring_runs(qwen3_tokenizer: Any) -> None:
    _, example = (ScriptedEngine.__doc__ or "").split("A complete test of a plugin's turn:\n")
    block, _ = example.split("\n    url: where it listens")
    names: dict[str, Any] = {}
    exec(dedent(block), names)

    await names["test_the_model_answers"](qwen3_tokenizer)
