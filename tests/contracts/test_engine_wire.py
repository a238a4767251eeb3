"""What rollhook relies on in an engine's HTTP API, true of every engine alike."""

from __future__ import annotations

import asyncio
import itertools
import math
import uuid
from typing import Any

import pytest

from tests.contracts.conftest import Json, Wire

pytestmark = pytest.mark.asyncio(loop_scope="session")

QUESTION = "Count from one to twenty in words, separated by commas."


def output_logprobs(answer: Json) -> list[list[Any]]:
    triples: list[list[Any]] = answer["meta_info"]["output_token_logprobs"]
    return triples


def assert_aligned(answer: Json) -> None:
    meta, ids = answer["meta_info"], answer["output_ids"]
    assert [token for _, token, _ in output_logprobs(answer)] == ids
    assert meta["completion_tokens"] == len(ids)
    assert all(math.isfinite(logprob) and logprob <= 0.0 for logprob, _, _ in output_logprobs(answer))


async def test_an_answer_holds_what_training_needs(wire: Wire) -> None:
    ids = wire.prompt(QUESTION)
    answer = await wire.generate(ids, rid="contract-fields", max_new_tokens=5)
    meta = answer["meta_info"]

    assert_aligned(answer)
    assert (meta["id"], meta["prompt_tokens"], meta["completion_tokens"]) == ("contract-fields", len(ids), 5)
    assert meta["finish_reason"] == {"type": "length", "length": 5}
    assert meta["weight_versions"] == [{"version": meta["weight_version"], "start": 0, "end": 5}]
    assert 0 <= meta["cached_tokens"] < len(ids)
    assert answer["text"] == wire.tokenizer.decode(answer["output_ids"])


async def test_log_probs_are_left_out_unless_asked_for(wire: Wire) -> None:
    _, answer = await wire.post("/generate", {**wire.body(wire.prompt(QUESTION)), "return_logprob": False})

    assert "output_token_logprobs" not in answer["meta_info"]


async def test_greedy_is_deterministic(wire: Wire) -> None:
    first, second = [await wire.generate(wire.prompt(QUESTION)) for _ in range(2)]

    assert first["output_ids"] == second["output_ids"]


async def test_samples_of_one_prompt_differ(wire: Wire) -> None:
    ids = wire.prompt("Write a sentence about anything at all.")
    answers = await asyncio.gather(*(wire.generate(ids, temperature=1.0) for _ in range(4)))

    for answer in answers:
        assert_aligned(answer)
    assert len({tuple(answer["output_ids"]) for answer in answers}) > 1


async def test_a_seed_repeats_a_sample(wire: Wire) -> None:
    if wire.engine == "sglang":
        pytest.skip("SGLang honours seeds in its deterministic mode only, which no CPU backend of it offers")
    ids = wire.prompt("Write a sentence about anything at all.")
    first, second = [await wire.generate(ids, temperature=1.0, sampling_seed=7) for _ in range(2)]
    other = await wire.generate(ids, temperature=1.0, sampling_seed=8)

    assert first["output_ids"] == second["output_ids"] != other["output_ids"]


async def test_a_greedy_answers_log_probs_are_those_of_temperature_one(wire: Wire) -> None:
    ids = wire.prompt(QUESTION)
    greedy = await wire.generate(ids, max_new_tokens=1)
    (logprob, token, _) = output_logprobs(greedy)[0]
    narrowed = [await wire.generate(ids, max_new_tokens=1, temperature=1.0, top_p=1e-6) for _ in range(2)]

    for answer in narrowed:  # top-p leaves only one token, and its log-probability is still the model's
        assert output_logprobs(answer)[0][:2] == [pytest.approx(logprob, abs=0.05), token]


async def test_a_stop_string_is_kept_with_no_stop_trim_and_its_tokens_are_whole(wire: Wire) -> None:
    ids = wire.prompt(QUESTION)
    full = await wire.generate(ids, max_new_tokens=16)
    words = full["text"].split()
    stop = f"{words[3][1:]} {words[4][0]}"  # begins inside one word and ends inside the next
    kept = await wire.generate(ids, max_new_tokens=16, stop=[stop])
    trimmed = await wire.generate(ids, max_new_tokens=16, stop=stop, no_stop_trim=False)
    until = full["text"].index(stop)

    assert kept["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert kept["text"] == full["text"][: until + len(stop)]
    assert trimmed["text"] == full["text"][:until]
    assert kept["output_ids"] == trimmed["output_ids"] == full["output_ids"][: len(kept["output_ids"])]
    assert stop in wire.tokenizer.decode(kept["output_ids"])
    assert stop not in wire.tokenizer.decode(kept["output_ids"][:-1])
    assert_aligned(kept)


async def test_a_stop_token_ends_the_answer_and_is_in_its_ids(wire: Wire) -> None:
    ids = wire.prompt(QUESTION)
    full = await wire.generate(ids)
    wanted = full["output_ids"][5]
    answer = await wire.generate(ids, stop_token_ids=[wanted])

    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": wanted}
    assert answer["output_ids"] == full["output_ids"][: full["output_ids"].index(wanted) + 1]
    assert_aligned(answer)


async def test_the_end_of_turn_is_the_last_id_and_ignore_eos_goes_past_it(wire: Wire) -> None:
    ids = wire.prompt("What is 2+2? Answer shortly.")
    ended = await wire.generate(ids, max_new_tokens=64)
    past = await wire.generate(ids, max_new_tokens=len(ended["output_ids"]) + 4, ignore_eos=True)
    eos = wire.tokenizer.eos_token_id

    assert ended["meta_info"]["finish_reason"] == {"type": "stop", "matched": eos}
    assert ended["output_ids"][-1] == eos
    assert ended["text"].endswith(wire.tokenizer.eos_token)
    assert past["meta_info"]["finish_reason"]["type"] == "length"
    assert past["output_ids"][: len(ended["output_ids"])] == ended["output_ids"]


async def test_special_tokens_are_skipped_in_the_text_alone(wire: Wire) -> None:
    ids = wire.prompt("What is 2+2? Answer shortly.")
    shown = await wire.generate(ids, max_new_tokens=64)
    skipped = await wire.generate(ids, max_new_tokens=64, skip_special_tokens=True)

    assert skipped["output_ids"] == shown["output_ids"]
    assert skipped["text"] == shown["text"].removesuffix(wire.tokenizer.eos_token)


async def test_a_stream_repeats_the_answer_so_far_and_ends_as_the_plain_one(wire: Wire) -> None:
    ids = wire.prompt(QUESTION)
    plain = await wire.generate(ids, max_new_tokens=16)
    events = [event async for event in wire.events(ids, max_new_tokens=16)]
    last = events[-1]

    assert len(events) > 1
    for event, following in itertools.pairwise(events):
        assert event["meta_info"]["finish_reason"] is None
        assert_aligned(event)
        assert following["output_ids"][: len(event["output_ids"])] == event["output_ids"]
        assert following["text"].startswith(event["text"])
    assert (last["text"], last["output_ids"]) == (plain["text"], plain["output_ids"])
    assert last["meta_info"]["finish_reason"] == plain["meta_info"]["finish_reason"]
    assert_aligned(last)


async def test_the_next_turn_reports_the_prefix_it_did_not_compute(wire: Wire) -> None:
    ids = wire.prompt(f"{uuid.uuid4()} {QUESTION}")
    first = await wire.generate(ids, max_new_tokens=12, ignore_eos=True)
    turn = [*ids, *first["output_ids"], *wire.tokenizer.encode("\nGo on.", add_special_tokens=False)]
    second = await wire.generate(turn, max_new_tokens=2)

    assert second["meta_info"]["prompt_tokens"] == len(turn)
    assert second["meta_info"]["cached_tokens"] >= len(ids) + len(first["output_ids"]) - 1


async def test_abort_returns_the_part_that_was_sampled(wire: Wire) -> None:
    rid = uuid.uuid4().hex
    events = []
    async for event in wire.events(wire.prompt(QUESTION), rid=rid, max_new_tokens=4000, ignore_eos=True):
        events.append(event)
        if len(events) == 3:
            assert await wire.post("/abort_request", {"rid": rid}) == (200, None)
    last = events[-1]

    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    assert 3 <= len(last["output_ids"]) < 4000
    assert_aligned(last)


async def test_abort_all_ends_plain_requests_too(wire: Wire) -> None:
    asks = [
        asyncio.create_task(wire.generate(wire.prompt(QUESTION), max_new_tokens=4000, ignore_eos=True))
        for _ in range(2)
    ]
    async for _ in wire.events(wire.prompt(QUESTION), max_new_tokens=4):
        pass  # by then the two that came first are running
    assert await wire.post("/abort_request", {"abort_all": True}) == (200, None)

    for answer in await asyncio.gather(*asks):
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
        assert_aligned(answer)


async def test_abort_of_a_request_that_is_not_there_changes_nothing(wire: Wire) -> None:
    assert await wire.post("/abort_request", {"rid": "nobody"}) == (200, None)


async def test_a_rid_that_is_alive_is_refused(wire: Wire) -> None:
    rid = uuid.uuid4().hex
    refusals: list[tuple[int, Any]] = []
    async for _ in wire.events(wire.prompt(QUESTION), rid=rid, max_new_tokens=4000, ignore_eos=True):
        if not refusals:
            refusals.append(await wire.post("/generate", wire.body(wire.prompt(QUESTION), rid=rid)))
            await wire.post("/abort_request", {"rid": rid})
    ((status, answer),) = refusals

    assert status == 400
    assert rid in answer["error"]["message"]
    again = await wire.until_free(rid, wire.prompt(QUESTION))
    assert again["meta_info"]["id"] == rid


async def test_a_client_that_leaves_a_stream_ends_its_request(wire: Wire) -> None:
    rid = uuid.uuid4().hex
    async for _ in wire.events(wire.prompt(QUESTION), rid=rid, max_new_tokens=4000, ignore_eos=True):
        break

    answer = await wire.until_free(rid, wire.prompt(QUESTION))
    assert answer["meta_info"]["id"] == rid


async def test_a_client_that_leaves_a_plain_request_ends_it(wire: Wire) -> None:
    rid, ids = uuid.uuid4().hex, wire.prompt(QUESTION)
    ask = asyncio.create_task(wire.generate(ids, rid=rid, max_new_tokens=4000, ignore_eos=True))
    await wire.generate(ids, max_new_tokens=4)  # by its end the one that came first is running
    ask.cancel()

    answer = await wire.until_free(rid, ids)
    assert answer["meta_info"]["id"] == rid


@pytest.mark.parametrize(
    "bad",
    [
        {"sampling_params": {"top_p": 2.0}},
        {"sampling_params": {"temperature": -1.0}},
        {"sampling_params": {"max_new_tokens": -1}},
        {"sampling_params": {"no_such_parameter": 1}},
        {"sampling_params": {"max_new_tokens": 10**6}},
        {"input_ids": "text"},
    ],
)
async def test_what_cannot_be_served_is_a_client_error(wire: Wire, bad: Json) -> None:
    status, answer = await wire.post("/generate", {"input_ids": wire.prompt("Hello"), **bad})

    assert 400 <= status < 500, answer
    assert answer


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"null", b"[]"])
async def test_a_body_that_is_no_json_object_is_a_client_error(wire: Wire, data: bytes) -> None:
    async with wire.session.post(
        f"{wire.url}/generate", data=data, headers={"Content-Type": "application/json"}
    ) as response:
        assert 400 <= response.status < 500


async def test_the_server_says_what_it_serves(wire: Wire) -> None:
    async with wire.session.get(f"{wire.url}/get_model_info") as response:
        info = await response.json()

    assert info["is_generation"] is True
    assert info["model_path"]
    assert info["weight_version"]
    for path in ("/health", "/model_info", "/v1/models", "/get_server_info"):
        async with wire.session.get(f"{wire.url}{path}") as response:
            assert response.status == 200


async def test_flush_forgets_every_prefix(wire: Wire) -> None:
    ids = wire.prompt(QUESTION)
    await wire.generate(ids, max_new_tokens=1)
    async with wire.session.post(f"{wire.url}/flush_cache") as response:
        assert response.status == 200
    answer = await wire.generate(ids, max_new_tokens=1)

    assert answer["meta_info"]["cached_tokens"] == 0
