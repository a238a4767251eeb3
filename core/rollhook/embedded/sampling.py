"""The sampler: one distribution, one random stream and one log-probability per request.

Invariant: a log-probability is log_softmax(logits / T) over the whole vocabulary, before top-k, top-p and
min-p narrow the choice, with T = 1 at temperature 0: what SGLang reports and a trainer recomputes.
Each request draws from its own generator, so its batch mates cannot change its answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rollhook.embedded.params import SamplingParams


@dataclass(frozen=True)
class Sampler:
    """How one request's tokens are chosen."""

    params: SamplingParams
    generator: torch.Generator

    @classmethod
    def of(cls, params: SamplingParams) -> Sampler:
        """A sampler seeded as the request asks, else from the operating system's randomness."""
        generator = torch.Generator()
        if params.sampling_seed is None:
            generator.seed()
        else:
            generator.manual_seed(params.sampling_seed)
        return cls(params, generator)


def sample(logits: torch.Tensor, samplers: Sequence[Sampler]) -> list[tuple[int, float]]:
    """The next token of N requests and its log-probability.

    logits: [N, vocabulary], any float type. Returns N pairs (token id, log-probability in nats).
    """
    divisors = [1.0 if each.params.greedy else each.params.temperature for each in samplers]
    scaled = logits.float() / torch.tensor(divisors)[:, None]
    logprobs = torch.log_softmax(scaled, dim=-1)
    tokens = [
        int(row.argmax()) if each.params.greedy or each.params.top_k == 1 else _draw(row, each)
        for row, each in zip(logprobs, samplers, strict=True)
    ]
    chosen = logprobs.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
    return list(zip(tokens, chosen, strict=True))


def _draw(logprobs: torch.Tensor, sampler: Sampler) -> int:
    """One token, by a race: each token's exponential clock runs at its probability, the first to ring wins.

    Every token has its own noise, so that rounding in the logits changes the winner only in a dead heat; with
    one uniform number over the cumulative distribution it would move the edges of all tokens at once.
    """
    weights = logprobs.exp()
    if narrows(sampler.params):
        descending, order = weights.sort(descending=True)
        weights[order[excluded(descending, sampler.params)]] = 0.0
    uniform = torch.rand(weights.shape, generator=sampler.generator, dtype=torch.float64)
    clocks = uniform.neg_().log1p_().neg_()  # in float64: a coarser grid would favour rare tokens
    # a clock at zero would let a token of weight zero win
    return int((weights / clocks.clamp_min_(torch.finfo(clocks.dtype).tiny)).argmax())


def narrows(params: SamplingParams) -> bool:
    """Whether the choice is narrowed at all; sorting the vocabulary costs more than the draw."""
    return params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0


def excluded(descending: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """What top-k, top-p and min-p exclude of probabilities in descending order: a mask of [vocabulary].

    A token stays under top-p while the mass before it is at most top_p; min_p is relative to the most likely
    token. As in SGLang, nothing is renormalised between.
    """
    out = (descending.cumsum(0) - descending) > params.top_p
    out |= descending < descending[0] * params.min_p
    if params.top_k > 0:
        out[params.top_k :] = True
    return out
