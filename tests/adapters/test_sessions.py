"""Sessions: keys, caps, reuse, expiry, and who trains."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import openai
import pytest

from rollhook import Sample
from rollhook.adapters import AdapterSession, UnknownSession
from rollhook.errors import RolloutError
from rollhook.testing import Fault, Reply
from tests.adapters.worlds import CHAT_TOOL, World, call, sampled, trained, world

USER: Any = {"role": "user", "content": "Hi"}


async def say(w: World, session: AdapterSession, text: str = "Hi", **extra: Any) -> str:
    async with w.openai(session) as client:
        answer = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": text}], **extra
        )
    return answer.choices[0].message.content or ""


async def test_an_id_is_free_again_after_finish_and_after_drop(qwen3_tokenizer: Any) -> None:
    async with world(qwen3_tokenizer, ["one", "two", "three"]) as w:
        first = w.adapter.open_session("rollout-7")
        await say(w, first)
        await w.adapter.finish_session("rollout-7")
        second = w.adapter.open_session("rollout-7")
        await say(w, second)
        await w.adapter.drop_session("rollout-7")
        third = w.adapter.open_session("rollout-7")
        await say(w, third)
        segments = await w.adapter.finish_session("rollout-7")

    assert len({first.api_key, second.api_key, third.api_key}) == 3
    assert [ids for ids, _ in trained(segments)] == [w.engine.sampled[2].token_ids]


async def test_the_key_of_an_earlier_attempt_does_not_reach_the_retried_rollout(qwen3_tokenizer: Any) -> None:
    async with world(qwen3_tokenizer, ["one"]) as w:
        stale = w.adapter.open_session("rollout-7")
        await w.adapter.drop_session("rollout-7")
        w.adapter.open_session("rollout-7")
        with pytest.raises(openai.NotFoundError, match="is not open any more"):
            await say(w, stale)


async def test_attempts_at_one_rollout_are_routed_alike(qwen3_tokenizer: Any) -> None:
    async with world(qwen3_tokenizer, ["one", "two", "three"]) as w:
        first = w.adapter.open_session(routing_key="sample-7")
        await say(w, first)
        await w.adapter.drop_session(first.session_id)
        second = w.adapter.open_session(routing_key="sample-7")
        await say(w, second)
        other = w.adapter.open_session()
        await say(w, other)

    assert len({first.session_id, second.session_id, other.session_id}) == 3
    assert [request.session for request in w.engine.requests] == ["sample-7", "sample-7", other.session_id]


async def test_an_id_that_is_open_cannot_be_opened_again(qwen3_tokenizer: Any) -> None:
    async with world(qwen3_tokenizer, []) as w:
        w.adapter.open_session("rollout-7")
        with pytest.raises(
            RolloutError, match="session 'rollout-7' is open already; finish or drop it first"
        ):
            w.adapter.open_session("rollout-7")


async def test_closing_an_unknown_session_says_so(qwen3_tokenizer: Any) -> None:
    async with world(qwen3_tokenizer, []) as w:
        with pytest.raises(UnknownSession, match="no session 'x' is open"):
            await w.adapter.finish_session("x")
        with pytest.raises(UnknownSession, match="no session 'x' is open"):
            await w.adapter.drop_session("x")


async def test_sessions_at_once_stay_apart(qwen3_tokenizer: Any) -> None:
    async with world(qwen3_tokenizer, lambda request: f"for {request.session}") as w:
        sessions = [w.adapter.open_session() for _ in range(8)]
        answers = await asyncio.gather(*(say(w, session) for session in sessions))
        finished = [await w.adapter.finish_session(session.session_id) for session in sessions]

    assert answers == [f"for {session.session_id}" for session in sessions]
    for session, segments in zip(sessions, finished, strict=True):
        [(ids, _)] = trained(segments)
        assert qwen3_tokenizer.decode(ids) == f"for {session.session_id}<|im_end|>"


async def test_the_session_id_is_a_key_only_where_that_was_asked_for(qwen3_tokenizer: Any) -> None:
    async with world(qwen3_tokenizer, ["one"], session_key="id") as w:
        session = w.adapter.open_session("rollout-7")
        assert session.api_key == "rollout-7"
        assert await say(w, session) == "one"
    async with world(qwen3_tokenizer, []) as w:
        session = w.adapter.open_session("rollout-7")
        with pytest.raises(openai.AuthenticationError):
            await say(w, AdapterSession("rollout-7", "rollout-7", session.base_url))


async def test_an_idle_session_expires_and_one_in_use_does_not(qwen3_tokenizer: Any) -> None:
    script = {"busy": Reply("x", fault=Fault.hang()), "Hi": "one"}
    async with world(qwen3_tokenizer, script, idle_s=2.0) as w:
        busy = w.adapter.open_session("busy")
        request = asyncio.create_task(say(w, busy, "busy"))
        while not w.engine.in_flight:
            await asyncio.sleep(0.01)
        w.adapter.open_session("idle")
        while w.adapter.open_sessions == 2:
            await asyncio.sleep(0.02)
        assert w.adapter.session_record("busy")["turns"] == 0
        with pytest.raises(UnknownSession):
            w.adapter.session_record("idle")
        request.cancel()
        await asyncio.wait([request])


async def test_a_finished_session_frees_its_memory(qwen3_tokenizer: Any) -> None:
    async with world(qwen3_tokenizer, ["one"]) as w:
        session = w.adapter.open_session("rollout-7")
        await say(w, session)
        live = weakref.ref(w.adapter._sessions.get("rollout-7"))
        await w.adapter.finish_session("rollout-7")
        gc.collect()

        assert live() is None
        assert w.adapter.open_sessions == 0


async def test_calls_without_tools_beside_a_conversation_do_not_train(qwen3_tokenizer: Any) -> None:
    script = {"title": "A title", "Hi": call(city="Oslo")}
    async with world(qwen3_tokenizer, script) as w:
        session = w.adapter.open_session()
        await say(w, session, "Make a title.")
        await say(w, session, "Hi", tools=[CHAT_TOOL])
        segments = await w.adapter.finish_session(session.session_id)

    assert [(segment.role, any(segment.loss_mask)) for segment in segments] == [
        ("main", True),
        ("side", False),
    ]


async def test_side_calls_train_where_the_run_says_so_and_where_there_is_nothing_else(
    qwen3_tokenizer: Any,
) -> None:
    script = {"title": "A title", "Hi": call(city="Oslo")}
    async with world(qwen3_tokenizer, script, train_side_calls=True) as w:
        session = w.adapter.open_session()
        await say(w, session, "Hi", tools=[CHAT_TOOL])
        await say(w, session, "Make a title.")
        both = await w.adapter.finish_session(session.session_id)
        session = w.adapter.open_session()
        await say(w, session, "Make a title.")
        alone = await w.adapter.finish_session(session.session_id)

    assert [(segment.role, any(segment.loss_mask)) for segment in both] == [("main", True), ("side", True)]
    assert [(segment.role, any(segment.loss_mask)) for segment in alone] == [("main", True)]


async def test_an_answer_whose_form_was_forced_never_trains(qwen3_tokenizer: Any) -> None:
    schema = {"name": "s", "schema": {"type": "object"}}
    async with world(qwen3_tokenizer, ["{}", "free"]) as w:
        session = w.adapter.open_session()
        await say(w, session, response_format={"type": "json_schema", "json_schema": schema})
        await say(w, session)
        segments = await w.adapter.finish_session(session.session_id)

    assert w.engine.requests[0].sampling["json_schema"] == '{"type": "object"}'
    assert [segment.role for segment in segments if any(segment.loss_mask)] == ["main"]
    assert trained(segments)[0][0] == w.engine.sampled[1].token_ids


async def test_the_same_request_sent_again_trains_once(qwen3_tokenizer: Any) -> None:
    async with world(qwen3_tokenizer, ["one", "two", "three"]) as w:
        session = w.adapter.open_session()
        async with w.openai(session) as client:
            await client.chat.completions.create(model="m", messages=[USER])
            kept = await client.chat.completions.create(model="m", messages=[USER])
            said: Any = [USER, {"role": "assistant", "content": kept.choices[0].message.content}, USER]
            await client.chat.completions.create(model="m", messages=said)
        segments = await w.adapter.finish_session(session.session_id)

    [(ids, _)] = trained(segments)
    assert ids == w.engine.sampled[1].token_ids + w.engine.sampled[2].token_ids


async def test_the_runs_sampling_reaches_the_engine_and_the_clients_is_recorded(qwen3_tokenizer: Any) -> None:
    async with world(qwen3_tokenizer, ["one", "two"], sampling={"temperature": 1.0, "top_k": 5}) as w:
        session = w.adapter.open_session(sampling_defaults={"temperature": 0.7, "max_new_tokens": 100})
        await say(w, session, temperature=0.0, top_p=0.1, stop=["o"], seed=3, max_tokens=40)
        await say(w, session, "more", max_tokens=4000)
        asked = w.adapter.session_record(session.session_id)["asked"]

    first, second = (dict(request.sampling) for request in w.engine.requests)
    assert {name: first.get(name) for name in ("temperature", "top_k", "top_p", "stop", "sampling_seed")} == {
        "temperature": 0.7, "top_k": 5, "top_p": None, "stop": None, "sampling_seed": None,
    }  # fmt: skip
    assert (first["max_new_tokens"], second["max_new_tokens"]) == (40, 100)
    assert asked[0] == {
        "model": "m", "temperature": 0.0, "top_p": 0.1, "stop": ["o"], "seed": 3, "max_tokens": 40, "turn": 0,
    }  # fmt: skip


async def test_a_chain_of_thousands_of_stored_responses_needs_no_recursion(qwen3_tokenizer: Any) -> None:
    async with world(qwen3_tokenizer, ["one"]) as w:
        session = w.adapter.open_session()
        stored = w.adapter._sessions.get(session.session_id).responses
        stored["0"] = (None, [USER])
        for n in range(1, 3000):
            stored[str(n)] = (str(n - 1), [{"role": "assistant", "content": "a"}, USER])
        async with w.openai(session) as client:
            answer = await client.responses.create(model="m", input="x", previous_response_id="resp_2999")

    assert answer.output_text == "one"
    assert w.engine.requests[0].prompt.count("<|im_start|>user") == 3001


async def test_the_context_limits_what_is_sampled(qwen3_tokenizer: Any) -> None:
    async with world(qwen3_tokenizer, ["one two three four five six seven"]) as w:
        session = w.adapter.open_session(max_context_tokens=12)
        async with w.openai(session) as client:
            answer = await client.chat.completions.create(model="m", messages=[USER])

    assert len(w.engine.requests[0].input_ids) + w.engine.requests[0].sampling["max_new_tokens"] == 12
    assert answer.choices[0].finish_reason == "length"


async def test_finishing_with_a_base_sample_gives_certified_siblings(qwen3_tokenizer: Any) -> None:
    async with world(qwen3_tokenizer, [call(city="Oslo"), Reply("cut", finish="length")]) as w:
        session = w.adapter.open_session()
        async with w.openai(session) as client:
            first = await client.chat.completions.create(model="m", messages=[USER], tools=[CHAT_TOOL])
            await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "Other"}], tools=[CHAT_TOOL]
            )
        base = Sample(index=3, prompt="Hi", label="x", metadata={"row": 1})
        samples = await w.adapter.finish_session(
            session.session_id, base_sample=base, reward=0.5, extra_metadata={"task": "t"}
        )

    assert first.choices[0].finish_reason == "tool_calls"
    assert [(s.rollout_id, s.reward, s.label) for s in samples] == [(3, 0.5, "x")] * 2
    assert [s.status for s in samples] == [Sample.Status.COMPLETED, Sample.Status.TRUNCATED]
    assert [s.metadata["task"] for s in samples] == ["t", "t"]
    assert samples[0].metadata["rollhook_adapter"]["turns"] == 2
    assert base.metadata == {"row": 1}
    assert [sum(s.loss_mask or ()) for s in samples] == [len(turn.token_ids) for turn in w.engine.sampled]


@pytest.mark.parametrize("limits", [{"max_turns_per_session": 1}, {"max_context_tokens": 22}])
async def test_a_session_that_ran_out_of_turns_or_room_is_truncated(
    qwen3_tokenizer: Any, limits: dict[str, int]
) -> None:
    async with world(qwen3_tokenizer, ["one"], **limits) as w:
        session = w.adapter.open_session()
        await say(w, session)
        with pytest.raises(openai.APIStatusError):
            await say(w, session, "and so on, and so on, and so on, and so on, and so on, and so on")
        [sample] = await w.adapter.finish_session(session.session_id, base_sample=Sample(index=3), reward=1.0)

    assert (sample.status, sample.reward) == (Sample.Status.TRUNCATED, 1.0)


async def test_a_session_that_sampled_nothing_is_a_failed_sample(qwen3_tokenizer: Any) -> None:
    async with world(qwen3_tokenizer, []) as w:
        session = w.adapter.open_session()
        [sample] = await w.adapter.finish_session(session.session_id, base_sample=Sample(index=3), reward=1.0)

    assert (sample.status, sample.reward) == (Sample.Status.FAILED, 0.0)
    assert "nothing was sampled" in sample.metadata["rollhook_result"]["error"]["message"]


async def test_a_session_whose_last_turn_was_aborted_gives_aborted_samples(qwen3_tokenizer: Any) -> None:
    async with world(qwen3_tokenizer, ["one", Reply("half", finish="abort")]) as w:
        session = w.adapter.open_session()
        await say(w, session)
        with pytest.raises(openai.InternalServerError, match="was aborted"):
            async with w.openai(session, max_retries=0) as client:
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "B"}])
        samples = await w.adapter.finish_session(session.session_id, base_sample=Sample(index=3), reward=1.0)

    assert [(s.status, s.reward) for s in samples] == [(Sample.Status.ABORTED, 0.0)]
    assert sampled(w.engine)[0] == [*w.engine.sampled[0].token_ids, *w.engine.sampled[1].token_ids]
