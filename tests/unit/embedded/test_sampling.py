from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from rollhook.embedded.params import SamplingParams
from rollhook.embedded.sampling import Sampler, sample

PROBABILITIES = [0.05, 0.4, 0.15, 0.3, 0.1]
LOGITS = torch.tensor(PROBABILITIES).log()


def draws(count: int, **fields: Any) -> list[tuple[int, float]]:
    sampler = Sampler.of(SamplingParams(sampling_seed=0, **fields))
    return [sample(LOGITS[None], [sampler])[0] for _ in range(count)]


@pytest.mark.parametrize(
    ("fields", "support"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 1}, {1}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.5}, {1, 3}),  # 0.4 alone is not over 0.5, so the next one is in
        ({"top_p": 0.39}, {1}),
        ({"top_p": 0.8}, {1, 2, 3}),
        ({"min_p": 0.3}, {1, 2, 3}),  # at least 0.3 of 0.4
        ({"top_p": 0.8, "top_k": 2}, {1, 3}),
        ({"top_k": 4, "min_p": 0.5}, {1, 3}),
        ({"temperature": 0.0}, {1}),
    ],
)
def test_only_tokens_of_the_support_are_drawn_and_all_of_them(
    fields: dict[str, Any], support: set[int]
) -> None:
    assert {token for token, _ in draws(300, **fields)} == support


@pytest.mark.parametrize("narrowing", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}])
def test_log_probs_are_those_of_the_whole_vocabulary(narrowing: dict[str, Any]) -> None:
    for token, logprob in draws(20, **narrowing):
        assert logprob == pytest.approx(math.log(PROBABILITIES[token]), abs=1e-6)


def test_temperature_divides_the_logits_and_zero_counts_as_one() -> None:
    heated = (LOGITS / 0.5).log_softmax(0)

    assert all(
        logprob == pytest.approx(float(heated[token])) for token, logprob in draws(20, temperature=0.5)
    )
    ((token, logprob),) = draws(1, temperature=0.0)
    assert (token, round(logprob, 6)) == (1, round(math.log(0.4), 6))


def test_tokens_come_as_often_as_their_probability_says() -> None:
    counts = Counter(token for token, _ in draws(5000))

    for token, probability in enumerate(PROBABILITIES):
        assert counts[token] / 5000 == pytest.approx(probability, abs=0.03)


def test_a_seed_gives_the_same_tokens_whoever_shares_the_batch() -> None:
    alone = [token for token, _ in draws(50, top_p=0.9)]
    mine = Sampler.of(SamplingParams(sampling_seed=0, top_p=0.9))
    others = [Sampler.of(SamplingParams(sampling_seed=seed)) for seed in (1, 2)]
    batch = [sample(LOGITS.expand(3, -1), [others[0], mine, others[1]])[1][0] for _ in range(50)]

    assert batch == alone


def test_two_requests_without_a_seed_differ() -> None:
    first, second = (
        [sample(LOGITS[None], [sampler])[0] for _ in range(60)]
        for sampler in (Sampler.of(SamplingParams()), Sampler.of(SamplingParams()))
    )

    assert first != second


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    logits = torch.tensor([-math.inf, 0.0, -math.inf])
    sampler = Sampler.of(SamplingParams(sampling_seed=1))

    assert {sample(logits[None], [sampler])[0] for _ in range(50)} == {(1, 0.0)}
