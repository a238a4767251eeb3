"""Questions of many rollouts to one source that counts what it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollhook_search_r1.batching import Batched
from rollhook_search_r1.protocol import Hit, Passage


def hits(query: str, topk: int) -> list[Hit]:
    return [Hit(Passage(f"{query} {number}", ""), 1.0) for number in range(topk)]


class Source:
    """Answers what it is asked when `open` is set, and remembers what that was."""

    def __init__(self, *, refuses: str = "") -> None:
        self.asked: list[tuple[list[str], int]] = []
        self.cancelled: list[list[str]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.refuses = refuses

    async def __call__(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        self.asked.append((list(queries), topk))
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled.append(list(queries))
            raise
        if self.refuses in queries:
            raise ValueError(f"I will not look for {self.refuses}")
        return [hits(query, topk) for query in queries]


def batched(source: Source, *, at_once: int = 1, max_batch: int = 8, kept: int = 100) -> Batched:
    return Batched(source, at_once=at_once, max_batch=max_batch, kept=kept)


async def ask_all(questions: Batched, queries: Sequence[str], topk: int = 1) -> list[tuple[Hit, ...]]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(questions.find(query, topk)) for query in queries]
    return [task.result() for task in tasks]


async def test_what_is_asked_at_once_goes_together_and_each_gets_its_own_answer() -> None:
    source = Source()
    answers = await ask_all(batched(source), ["a", "b", "c"])

    assert source.asked == [(["a", "b", "c"], 1)]
    assert answers == [tuple(hits(query, 1)) for query in "abc"]


async def test_a_question_in_flight_is_not_asked_again() -> None:
    source = Source()
    answers = await ask_all(batched(source), ["a"] * 64)

    assert source.asked == [(["a"], 1)]
    assert answers == [tuple(hits("a", 1))] * 64


async def test_an_answer_is_kept_and_the_least_recently_used_goes_first() -> None:
    source = Source()
    questions = batched(source, kept=2)
    for query in ("a", "b", "a", "c", "a", "b"):
        await questions.find(query, 1)

    assert [queries for queries, _ in source.asked] == [["a"], ["b"], ["c"], ["b"]]


async def test_nothing_is_kept_where_nothing_may_be() -> None:
    source = Source()
    questions = batched(source, kept=0)
    for _ in range(2):
        await questions.find("a", 1)

    assert len(source.asked) == 2


async def test_questions_for_other_numbers_of_passages_go_apart() -> None:
    source = Source()
    questions = batched(source)
    async with asyncio.TaskGroup() as group:
        one = group.create_task(questions.find("a", 1))
        two = group.create_task(questions.find("a", 2))

    assert source.asked == [(["a"], 1), (["a"], 2)]
    assert (len(one.result()), len(two.result())) == (1, 2)


async def test_what_comes_while_the_source_is_busy_makes_the_next_batches() -> None:
    source = Source()
    source.open.clear()
    questions = batched(source, at_once=2, max_batch=3)
    async with asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(questions.find(str(number), 1))
        await asyncio.sleep(0.01)
        in_flight = len(source.asked)
        source.open.set()

    assert in_flight == 2
    assert [len(queries) for queries, _ in source.asked] == [3, 3, 3, 1]


async def test_a_question_that_spoils_its_batch_fails_alone() -> None:
    source = Source(refuses="b")
    questions = batched(source)
    answers = await asyncio.gather(*(questions.find(query, 1) for query in "abc"), return_exceptions=True)

    assert answers[::2] == [tuple(hits("a", 1)), tuple(hits("c", 1))]
    assert str(answers[1]) == "I will not look for b"
    assert source.asked == [(["a", "b", "c"], 1), (["a"], 1), (["b"], 1), (["c"], 1)]


async def test_a_failure_is_not_kept() -> None:
    source = Source(refuses="a")
    questions = batched(source)
    with pytest.raises(ValueError, match="I will not"):
        await questions.find("a", 1)
    source.refuses = ""

    assert await questions.find("a", 1) == tuple(hits("a", 1))


async def test_too_few_answers_are_an_error_and_never_somebody_elses() -> None:
    async def short(queries: Sequence[str], topk: int) -> list[list[Hit]]:
        return []

    with pytest.raises(ValueError, match="shorter"):
        await Batched(short, at_once=1, max_batch=8, kept=0).find("a", 1)


async def test_a_question_nobody_waits_for_is_not_asked() -> None:
    source = Source()
    source.open.clear()
    questions = batched(source)
    first = asyncio.create_task(questions.find("first", 1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second = asyncio.create_task(questions.find("second", 1))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    source.open.set()
    await first

    assert source.asked == [(["first"], 1)]
    assert questions.in_flight == 0


async def test_a_batch_is_given_up_when_its_last_asker_leaves_and_not_before() -> None:
    source = Source()
    source.open.clear()
    questions = batched(source)
    tasks = [asyncio.create_task(questions.find(query, 1)) for query in "ab"]
    await asyncio.sleep(0.01)
    tasks[0].cancel()
    await asyncio.sleep(0.01)
    before = list(source.cancelled)
    tasks[1].cancel()
    await asyncio.wait(tasks)
    await asyncio.sleep(0.01)

    assert before == []
    assert source.cancelled == [["a", "b"]]
    assert questions.in_flight == 0


async def test_one_asker_leaving_takes_nothing_from_another() -> None:
    source = Source()
    source.open.clear()
    questions = batched(source)
    tasks = [asyncio.create_task(questions.find("a", 1)) for _ in range(2)]
    await asyncio.sleep(0.01)
    tasks[0].cancel()
    await asyncio.sleep(0.01)
    source.open.set()

    assert await tasks[1] == tuple(hits("a", 1))
    assert len(source.asked) == 1


async def test_a_question_given_up_may_be_asked_again_while_its_batch_goes_on() -> None:
    source = Source()
    source.open.clear()
    questions = batched(source)
    given_up = asyncio.create_task(questions.find("a", 1))
    other = asyncio.create_task(questions.find("b", 1))
    await asyncio.sleep(0.01)
    given_up.cancel()
    await asyncio.sleep(0.01)
    again = asyncio.create_task(questions.find("a", 1))
    await asyncio.sleep(0.01)
    source.open.set()

    assert [await again, await other] == [tuple(hits("a", 1)), tuple(hits("b", 1))]
    assert source.asked == [(["a", "b"], 1)]


async def test_closing_ends_every_task_and_tells_who_still_waits() -> None:
    source = Source()
    source.open.clear()
    questions = batched(source)
    waiting = asyncio.create_task(questions.find("a", 1))
    await asyncio.sleep(0.01)
    await questions.close()

    with pytest.raises(ConnectionError, match="the source of passages was closed"):
        await waiting
    with pytest.raises(ConnectionError, match="the source of passages is closed"):
        await questions.find("b", 1)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@given(
    queries=st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 3)), max_size=30),
    at_once=st.integers(1, 3),
    max_batch=st.integers(1, 4),
    kept=st.integers(0, 3),
)
def test_every_question_gets_its_own_answer(
    queries: list[tuple[str, int]], at_once: int, max_batch: int, kept: int
) -> None:
    async def play() -> list[tuple[Hit, ...]]:
        questions = batched(Source(), at_once=at_once, max_batch=max_batch, kept=kept)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(questions.find(*query)) for query in queries]
        assert questions.in_flight == 0
        return [task.result() for task in tasks]

    assert asyncio.run(play()) == [tuple(hits(*query)) for query in queries]
