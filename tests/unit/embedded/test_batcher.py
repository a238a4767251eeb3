from __future__ import annotations

from typing import Any

import pytest
import torch

from rollhook.embedded.params import InvalidRequest
from tests.unit.embedded.conftest import Bench

PROMPT = [(31 * n) % 2000 + 20 for n in range(100)]


def plain_logprobs(reference: Any, prompt: list[int], output: list[int], temperature: float) -> list[float]:
    """What one forward pass over the whole sequence gives the output's ids."""
    with torch.inference_mode():
        logits = reference(input_ids=torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
    logprobs = (logits / temperature).log_softmax(-1)
    values: list[float] = logprobs.gather(1, torch.tensor(output)[:, None])[:, 0].tolist()
    return values


def test_greedy_output_is_that_of_generate(bench: Bench, reference: Any) -> None:
    expected = reference.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
        max_new_tokens=40,
        do_sample=False,
        pad_token_id=0,
    )

    answer = bench.answer(PROMPT, temperature=0.0, max_new_tokens=40)
    assert answer.ids == expected[0].tolist()


def test_log_probs_agree_with_a_plain_forward_pass(bench: Bench, reference: Any) -> None:
    answer = bench.answer(PROMPT, temperature=0.7, top_p=0.9, seed=1, max_new_tokens=40, ignore_eos=True)

    expected = plain_logprobs(reference, PROMPT, answer.output_ids, 0.7)
    assert answer.logprobs == pytest.approx(expected, abs=1e-3)


def test_requests_with_different_settings_share_a_batch_and_answer_as_if_alone(bench: Bench) -> None:
    settings: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.7, "seed": 1},
        {"temperature": 1.3, "top_k": 20, "seed": 2},
        {"top_p": 0.8, "seed": 3},
        {"min_p": 0.1, "seed": 4, "max_new_tokens": 3},
        {"seed": 5, "max_new_tokens": 1},
    ]
    prompts = [PROMPT[n : 40 + 10 * n] for n in range(len(settings))]
    params = [{"max_new_tokens": 12, "ignore_eos": True, **each} for each in settings]
    alone = [bench.answer(ids, **each).output_ids for ids, each in zip(prompts, params, strict=True)]

    batcher = bench.batcher(max_batch=4, chunk_tokens=16)
    together = [bench.add(batcher, ids, **each) for ids, each in zip(prompts, params, strict=True)]
    bench.finish(batcher)

    assert [each.output_ids for each in together] == alone


def test_the_next_turn_of_a_session_computes_only_what_is_new(bench: Bench) -> None:
    batcher = bench.batcher()
    first = bench.add(batcher, PROMPT, seed=1, max_new_tokens=8, ignore_eos=True)
    bench.finish(batcher)
    second = bench.add(batcher, [*first.ids, 50, 51], seed=2, max_new_tokens=8, ignore_eos=True)
    bench.finish(batcher)

    # the last sampled token was never fed to the model
    assert (first.cached_tokens, second.cached_tokens) == (0, len(first.ids) - 1)
    fresh = bench.answer([*first.ids, 50, 51], seed=2, max_new_tokens=8, ignore_eos=True)
    assert second.output_ids == fresh.output_ids
    assert second.logprobs == pytest.approx(fresh.logprobs, abs=1e-4)


def test_a_fork_reuses_the_shared_part_and_leaves_the_other_branch_whole(bench: Bench) -> None:
    batcher = bench.batcher()
    trunk = bench.add(batcher, PROMPT, seed=1, max_new_tokens=4, ignore_eos=True)
    bench.finish(batcher)
    fork = bench.add(batcher, [*PROMPT[:60], 7, 8, 9], seed=2, max_new_tokens=4, ignore_eos=True)
    bench.finish(batcher)
    again = bench.add(batcher, [*trunk.ids, 50], seed=3, max_new_tokens=4, ignore_eos=True)
    bench.finish(batcher)

    assert (fork.cached_tokens, again.cached_tokens) == (60, len(trunk.ids) - 1)
    assert (
        again.output_ids
        == bench.answer([*trunk.ids, 50], seed=3, max_new_tokens=4, ignore_eos=True).output_ids
    )


def test_samples_of_one_prompt_that_arrive_together_compute_it_once(bench: Bench) -> None:
    batcher = bench.batcher()
    samples = [bench.add(batcher, PROMPT, seed=n, max_new_tokens=4, ignore_eos=True) for n in range(4)]
    bench.finish(batcher)

    assert [each.cached_tokens for each in samples] == [0, *[len(PROMPT) - 1] * 3]
    assert [each.output_ids for each in samples] == [
        bench.answer(PROMPT, seed=n, max_new_tokens=4, ignore_eos=True).output_ids for n in range(4)
    ]


def test_a_long_prompt_does_not_stop_an_answer_being_written(bench: Bench) -> None:
    batcher = bench.batcher(chunk_tokens=16)
    short = bench.add(batcher, PROMPT[:5], max_new_tokens=30, ignore_eos=True)
    batcher.step()
    bench.add(batcher, PROMPT, max_new_tokens=1)

    for expected in range(2, 8):  # the long prompt takes seven steps
        batcher.step()
        assert len(short.output_ids) == expected


@pytest.mark.parametrize(("limit", "length"), [(3, 3), (None, 156)])
def test_an_answer_ends_at_its_own_limit_or_where_the_room_ends(
    bench: Bench, limit: int | None, length: int
) -> None:
    batcher = bench.batcher(max_tokens=256)
    answer = bench.add(batcher, PROMPT, ignore_eos=True, max_new_tokens=limit)
    bench.finish(batcher)

    assert answer.finish == {"type": "length", "length": length}
    assert len(answer.output_ids) == len(answer.logprobs) == length


def test_a_stop_token_ends_the_answer_and_stays_in_its_ids(bench: Bench) -> None:
    free = bench.answer(PROMPT, temperature=0.0, max_new_tokens=10, ignore_eos=True).output_ids
    wanted = free[4]
    stopped = bench.answer(PROMPT, temperature=0.0, max_new_tokens=10, stop_token_ids=[wanted])

    assert stopped.finish == {"type": "stop", "matched": wanted}
    assert stopped.output_ids == free[: free.index(wanted) + 1]


def test_ignore_eos_goes_past_stop_tokens_too(bench: Bench) -> None:
    free = bench.answer(PROMPT, temperature=0.0, max_new_tokens=10, ignore_eos=True)
    kept = bench.answer(
        PROMPT, temperature=0.0, max_new_tokens=10, ignore_eos=True, stop_token_ids=free.output_ids
    )

    assert kept.output_ids == free.output_ids


@pytest.mark.parametrize(
    ("ids", "params", "words"),
    [
        (PROMPT, {"max_new_tokens": 413}, "100 prompt tokens and 413 new ones, over the limit of 512"),
        (PROMPT * 6, {"max_new_tokens": None}, "600 prompt tokens and some new ones, over the limit of 512"),
        ([1, 49152], {}, "49152 is no token id of this model \\(0 to 49151\\)"),
        ([-1], {}, "-1 is no token id"),
    ],
)
def test_a_request_that_can_never_be_served_is_refused_with_the_numbers(
    bench: Bench, ids: list[int], params: dict[str, Any], words: str
) -> None:
    batcher = bench.batcher()

    with pytest.raises(InvalidRequest, match=words):
        bench.add(batcher, ids, **params)
    assert batcher.idle


def test_caches_stay_within_the_memory_they_may_take(bench: Bench) -> None:
    batcher = bench.batcher(max_tokens=512)
    answers = [
        bench.add(batcher, [n, *PROMPT[: 20 + 9 * n]], max_new_tokens=40, ignore_eos=True) for n in range(10)
    ]
    while not batcher.idle:
        batcher.step()
        assert batcher.held_tokens <= 512

    assert [len(each.output_ids) for each in answers] == [40] * 10


def test_the_least_recently_used_cache_makes_room(bench: Bench) -> None:
    batcher = bench.batcher(max_tokens=512)
    sessions = [[n, *PROMPT] for n in range(3)]
    for ids in (sessions[0], sessions[1], [*sessions[0], 5], sessions[2], [9, *PROMPT]):
        bench.add(batcher, ids, max_new_tokens=1)
        bench.finish(batcher)
    kept = bench.add(batcher, [*sessions[0], 5, 6], max_new_tokens=1)
    lost = bench.add(batcher, [*sessions[1], 6], max_new_tokens=1)
    bench.finish(batcher)

    assert (kept.cached_tokens, lost.cached_tokens) == (len(PROMPT) + 2, 0)


def test_abort_ends_a_running_request_with_its_part_and_a_waiting_one_with_none(bench: Bench) -> None:
    batcher = bench.batcher(max_batch=1)
    running = bench.add(batcher, PROMPT, "a", max_new_tokens=100, ignore_eos=True)
    waiting = bench.add(batcher, PROMPT, "b")
    for _ in range(3):
        batcher.step()

    assert batcher.abort("b") == [waiting]
    assert batcher.abort("a") == [running]
    assert batcher.idle
    for sequence, tokens in ((running, 3), (waiting, 0)):
        snapshot = batcher.snapshot(sequence)
        assert snapshot.finish is not None
        assert (snapshot.finish["type"], len(snapshot.output_ids)) == ("abort", tokens)
    assert batcher.abort("a") == []


def test_an_aborted_neighbour_does_not_hold_up_who_waited_for_its_prefix(bench: Bench) -> None:
    batcher = bench.batcher(chunk_tokens=16)
    bench.add(batcher, PROMPT, "first")
    second = bench.add(batcher, PROMPT, "second", max_new_tokens=2, ignore_eos=True)
    batcher.step()
    batcher.abort("first")
    bench.finish(batcher)

    assert (second.cached_tokens, len(second.output_ids)) == (16, 2)


def test_flush_drops_the_kept_caches_but_not_under_a_live_request(bench: Bench) -> None:
    batcher = bench.batcher()
    bench.add(batcher, PROMPT, max_new_tokens=1)
    assert not batcher.flush()
    bench.finish(batcher)
    assert batcher.flush()
    again = bench.add(batcher, PROMPT, max_new_tokens=1)
    bench.finish(batcher)

    assert again.cached_tokens == 0
