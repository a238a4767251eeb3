"""Questions of many rollouts to one source: asked together, asked once, and answers kept.

Invariant: a question gets the answer it would get alone; a question that nobody waits for any more is not
asked, or no longer; every task made here is gone after `close`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rollhook_search_r1.protocol import Hit

Ask = Callable[[Sequence[str], int], Awaitable[Sequence[Sequence[Hit]]]]
"""Of a source: for each of the queries its hits, best first, at most as many as the number."""


class Question(NamedTuple):
    """What is asked. Those with another `topk` go to the source apart: it may rank them otherwise."""

    query: str
    topk: int


@dataclass(slots=True, eq=False)
class _Asked:
    """A question in flight. waiting: how many wait for its answer. batch: None until it is sent."""

    answer: asyncio.Future[tuple[Hit, ...]]
    waiting: int = 0
    batch: _Batch | None = None


@dataclass(slots=True, eq=False)
class _Batch:
    """Questions that were sent together. wanted: how many of them somebody still waits for."""

    questions: list[Question]
    wanted: int
    task: asyncio.Task[None] | None = None


class Batched:
    """A source for many rollouts at once.

    ask: the source. at_once: how many batches it is given at a time; what comes meanwhile makes the next
    batches. max_batch: questions in one. kept: answers kept, the least recently used going first.
    """

    def __init__(self, ask: Ask, *, at_once: int, max_batch: int, kept: int) -> None:
        self._ask = ask
        self._at_once = at_once
        self._max_batch = max_batch
        self._kept_limit = kept
        self._kept: OrderedDict[Question, tuple[Hit, ...]] = OrderedDict()
        self._asked: dict[Question, _Asked] = {}
        self._unsent: dict[Question, _Asked] = {}
        self._batches: set[_Batch] = set()
        self._sending = False
        self._closed = False

    async def find(self, query: str, topk: int) -> tuple[Hit, ...]:
        """The source's answer to `query`. Raises what the source raised for it."""
        question = Question(query, topk)
        if question in self._kept:
            self._kept.move_to_end(question)
            return self._kept[question]
        if self._closed:
            raise ConnectionError("the source of passages is closed")
        asked = self._asked.get(question) or self._enter(question)
        asked.waiting += 1
        try:
            return await asyncio.shield(asked.answer)
        finally:
            asked.waiting -= 1
            if not asked.waiting and not asked.answer.done():
                self._abandon(question, asked)

    @property
    def in_flight(self) -> int:
        """Questions that are not answered yet."""
        return len(self._asked)

    async def close(self) -> None:
        """Stop asking. Whoever still waits gets a ConnectionError."""
        self._closed = True
        tasks = [batch.task for batch in self._batches if batch.task is not None]
        for task in tasks:
            task.cancel()
        for asked in self._asked.values():
            if not asked.answer.done():
                asked.answer.set_exception(ConnectionError("the source of passages was closed"))
        self._asked.clear()
        self._unsent.clear()
        if tasks:
            await asyncio.wait(tasks)

    def _enter(self, question: Question) -> _Asked:
        loop = asyncio.get_running_loop()
        asked = self._asked[question] = self._unsent[question] = _Asked(loop.create_future())
        if not self._sending:  # once more around the loop first: what others ask now goes along
            self._sending = True
            loop.call_soon(self._send)
        return asked

    def _send(self) -> None:
        """Give the source what is unsent, as far as it may be given more."""
        self._sending = False
        while self._unsent and len(self._batches) < self._at_once and not self._closed:
            topk = next(iter(self._unsent)).topk
            questions = [question for question in self._unsent if question.topk == topk][: self._max_batch]
            batch = _Batch(questions, len(questions))
            for question in questions:
                self._unsent.pop(question).batch = batch
            self._batches.add(batch)
            batch.task = asyncio.create_task(self._run(batch), name="search-r1 batch")

    async def _run(self, batch: _Batch) -> None:
        try:
            await self._answer(batch.questions)
        finally:
            self._batches.discard(batch)
            self._send()

    async def _answer(self, questions: Sequence[Question]) -> None:
        """Settle each question. Those whose batch failed are asked alone: a fault is one question's."""
        try:
            found = await self._ask([question.query for question in questions], questions[0].topk)
            answers = dict(zip(questions, map(tuple, found), strict=True))
        except Exception as error:  # noqa: BLE001  whoever asked gets it
            if len(questions) == 1:
                self._fail(questions[0], error)
                return
            async with asyncio.TaskGroup() as group:
                for question in questions:
                    if question in self._asked:
                        group.create_task(self._answer([question]))
            return
        for question, hits in answers.items():
            self._settle(question, hits)

    def _settle(self, question: Question, hits: tuple[Hit, ...]) -> None:
        if self._kept_limit:
            self._kept[question] = hits
            if len(self._kept) > self._kept_limit:
                self._kept.popitem(last=False)
        asked = self._leave(question)
        if asked is not None:
            asked.answer.set_result(hits)

    def _fail(self, question: Question, error: Exception) -> None:
        asked = self._leave(question)
        if asked is not None:
            asked.answer.set_exception(error)

    def _leave(self, question: Question) -> _Asked | None:
        """Take a question out; None when nobody waits for it."""
        self._unsent.pop(question, None)  # it may be asked anew while a batch that was given up answers it
        return self._asked.pop(question, None)

    def _abandon(self, question: Question, asked: _Asked) -> None:
        asked.answer.cancel()
        self._leave(question)
        if asked.batch is None:
            return
        asked.batch.wanted -= 1
        if not asked.batch.wanted and asked.batch.task is not None:
            asked.batch.task.cancel()
