"""Continuous batching: which tokens of which requests run in the next step.

Invariant: a request is in exactly one place (waiting, running, finished); every step moves each running one
by a token or a chunk of its prompt, except one that waits for a neighbour to compute the prefix they share.
The memory of running and kept caches stays under `max_tokens`, counted at each request's possible end.

Plain and synchronous: one thread calls it, and nothing here knows of threads or HTTP.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rollhook.embedded.kv import SequenceCache, common_prefix, padded
from rollhook.embedded.packed import PackedModel
from rollhook.embedded.params import GenerateRequest, InvalidRequest
from rollhook.embedded.sampling import Sampler, sample
from rollhook.embedded.text import matched_stop, visible_text

_WORTH_WAITING_TOKENS = 64  # a shared prefix at least this long is computed once, not side by side


@dataclass(frozen=True)
class Snapshot:
    """What a client may be told of a request at one moment; `finish` is None until its last."""

    text: str
    output_ids: list[int]
    logprobs: list[float]
    prompt_tokens: int
    cached_tokens: int
    finish: dict[str, Any] | None
    elapsed_s: float


@dataclass(eq=False)
class Generation:
    """One live request: its ids so far, and how many of them its cache holds."""

    request: GenerateRequest
    rid: str
    max_length: int
    sampler: Sampler
    ids: list[int]
    cache: SequenceCache | None = None
    cached_tokens: int = 0
    logprobs: list[float] = field(default_factory=list)
    finish: dict[str, Any] | None = None
    started: float = field(default_factory=time.monotonic)

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.input_ids)

    @property
    def output_ids(self) -> list[int]:
        return self.ids[self.prompt_tokens :]

    @property
    def computed(self) -> int:
        return len(self.cache.tokens) if self.cache else 0


class Batcher:
    """The requests of one model, and the caches of finished ones.

    max_batch: requests that run at once. max_tokens: token slots of all caches together. chunk_tokens: prompt
    tokens computed in one step at most, so that a long prompt does not hold up the answers being written.
    """

    def __init__(
        self, model: PackedModel, tokenizer: Any, *, max_batch: int, max_tokens: int, chunk_tokens: int = 128
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._max_batch = max_batch
        self._max_tokens = max_tokens
        self._chunk_tokens = chunk_tokens
        self._stop_ids = model.eos_token_ids | {tokenizer.eos_token_id}
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        self._kept: list[SequenceCache] = []  # the least recently used first

    @property
    def context_len(self) -> int:
        """The model's context, in tokens."""
        return self._model.context_len

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._waiting and not self._running

    @property
    def held_tokens(self) -> int:
        """Token slots that running and kept caches take at this moment."""
        caches = [*self._kept, *(each.cache for each in self._running if each.cache)]
        return sum(cache.capacity for cache in caches)

    def add(self, request: GenerateRequest, rid: str) -> Generation:
        """Queue a request. Raises InvalidRequest, with the numbers, if it can never fit."""
        limit = min(self._model.context_len, self._max_tokens)
        prompt, asked = len(request.input_ids), request.sampling_params.max_new_tokens
        length = limit if asked is None else prompt + asked
        if prompt >= limit or length > limit:
            raise InvalidRequest(
                f"the request needs {prompt} prompt tokens and {asked or 'some'} new ones, over the limit of "
                f"{limit} (model context {self._model.context_len}, cache {self._max_tokens}); "
                "shorten the prompt or lower max_new_tokens"
            )
        vocabulary = self._model.vocabulary
        if foreign := [token for token in request.input_ids if not 0 <= token < vocabulary]:
            raise InvalidRequest(
                f"input_ids: {foreign[0]} is no token id of this model (0 to {vocabulary - 1})"
            )
        generation = Generation(
            request=request,
            rid=rid,
            max_length=length,
            sampler=Sampler.of(request.sampling_params),
            ids=list(request.input_ids),
        )
        self._waiting.append(generation)
        return generation

    def abort(self, rid: str | None) -> list[Generation]:
        """End one request (None: all of them) where it stands. Returns those ended."""
        ended = [each for each in self._live() if rid is None or each.rid == rid]
        for generation in ended:
            generation.finish = {
                "type": "abort",
                "message": "Aborted",
                "status_code": None,
                "err_type": None,
            }
        self._retire()
        return ended

    def drop_all(self) -> list[Generation]:
        """Forget every request and every cache, after a step failed. Returns the requests forgotten."""
        dropped = list(self._live())
        self._waiting.clear()
        self._running.clear()
        self._kept.clear()
        return dropped

    def flush(self) -> bool:
        """Drop the kept caches; False, and nothing done, while requests are live."""
        if self.idle:
            self._kept.clear()
        return self.idle

    def step(self) -> list[Generation]:
        """Run one forward pass. Returns the requests that got a token, finished ones among them."""
        self._admit()
        plan = self._plan()
        if not plan:
            return []
        batch = []
        for generation, stop in plan:
            assert generation.cache is not None
            batch.append((generation.cache, generation.ids[generation.computed : stop]))
        logits = self._model.forward(batch)
        ready = [row for row, (generation, stop) in enumerate(plan) if stop == len(generation.ids)]
        if not ready:
            return []
        moved = [plan[row][0] for row in ready]
        for generation, (token, logprob) in zip(
            moved, sample(logits[ready], [each.sampler for each in moved]), strict=True
        ):
            generation.ids.append(token)
            generation.logprobs.append(logprob)
            generation.finish = self._finish_reason(generation)
        self._retire()
        return moved

    def snapshot(self, generation: Generation) -> Snapshot:
        """The request as it stands; safe to hand to another thread."""
        output_ids = generation.output_ids
        return Snapshot(
            text=visible_text(
                self._tokenizer, output_ids, generation.request.sampling_params, generation.finish
            ),
            output_ids=output_ids,
            logprobs=list(generation.logprobs),
            prompt_tokens=generation.prompt_tokens,
            cached_tokens=generation.cached_tokens,
            finish=generation.finish,
            elapsed_s=time.monotonic() - generation.started,
        )

    def _live(self) -> Iterator[Generation]:
        yield from self._running
        yield from self._waiting

    def _admit(self) -> None:
        """Move waiting requests into the batch, first come first served, while memory lasts."""
        while self._waiting and len(self._running) < self._max_batch:
            need = padded(self._waiting[0].max_length)
            running = sum(padded(each.max_length) for each in self._running)
            if self._running and running + need > self._max_tokens:
                return
            self._running.append(self._waiting.popleft())

    def _plan(self) -> list[tuple[Generation, int]]:
        """The step's work: which requests, and up to which of their ids."""
        plan: list[tuple[Generation, int]] = []
        budget = self._chunk_tokens
        for generation in self._running:
            if generation.cache is None and (budget == 0 or not self._open_cache(generation)):
                continue
            rest = len(generation.ids) - generation.computed
            if rest > 1:
                rest = min(rest, budget)
                budget -= rest
            if rest:
                plan.append((generation, generation.computed + rest))
        return plan

    def _open_cache(self, generation: Generation) -> bool:
        """Give a request its cache, with the longest prefix on offer; False if a longer one is coming."""
        prompt = generation.request.input_ids
        usable = len(prompt) - 1  # the last token is always computed: its logits are the first answer's
        donors = [each.cache for each in self._running if each.cache] + self._kept
        shared, donor = max(
            ((min(usable, common_prefix(prompt, each.tokens)), each) for each in donors),
            key=lambda pair: pair[0],
            default=(0, None),
        )
        coming = max(
            (
                min(usable, common_prefix(prompt, each.request.input_ids))
                for each in self._running
                if each.cache and each.computed < each.prompt_tokens
            ),
            default=0,
        )
        if coming - shared >= _WORTH_WAITING_TOKENS:
            return False
        if donor is None or shared == 0:
            generation.cache = SequenceCache(self._model.layout)
        elif donor in self._kept and shared == len(donor.tokens):
            # the generation goes on from the donor's end and offers all that the donor did: take it over
            self._kept.remove(donor)
            generation.cache = donor
        else:
            generation.cache = donor.copy_prefix(shared)
            self._touch(donor)
        generation.cached_tokens = shared
        self._evict()
        return True

    def _touch(self, cache: SequenceCache) -> None:
        if cache in self._kept:
            self._kept.remove(cache)
            self._kept.append(cache)

    def _evict(self) -> None:
        """Drop the least recently used caches until running requests and kept caches fit in memory."""
        running = sum(padded(each.max_length) for each in self._running)
        while self._kept and running + sum(each.capacity for each in self._kept) > self._max_tokens:
            self._kept.pop(0)

    def _retire(self) -> None:
        """Take the finished requests out, and keep their caches for whoever goes on from them."""
        for generation in self._running:
            if generation.finish is not None and generation.cache is not None:
                self._kept.append(generation.cache)
        self._running = [each for each in self._running if each.finish is None]
        self._waiting = deque(each for each in self._waiting if each.finish is None)
        self._evict()

    def _finish_reason(self, generation: Generation) -> dict[str, Any] | None:
        params, output_ids = generation.request.sampling_params, generation.output_ids
        stop = matched_stop(self._tokenizer, output_ids, params.stop_strings)
        if stop is not None:
            return {"type": "stop", "matched": stop}
        token = output_ids[-1]
        if not params.ignore_eos and (token in self._stop_ids or token in params.stop_token_ids):
            return {"type": "stop", "matched": token}
        if len(generation.ids) >= generation.max_length:
            return {"type": "length", "length": len(output_ids)}
        return None
