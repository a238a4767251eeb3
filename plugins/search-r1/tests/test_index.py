from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from rollhook_search_r1.corpus import read_corpus
from rollhook_search_r1.index import WordIndex, open_word_index
from rollhook_search_r1.protocol import Passage

EXAMPLES = Path(__file__).parents[1] / "examples"
LIMA = {"id": "1", "title": "Lima", "text": "Lima is the capital of Peru."}
QUITO = {"contents": "Quito\nQuito is the capital of Ecuador."}


def found(index: WordIndex, query: str, topk: int) -> list[Passage]:
    [hits] = index.search([query], topk)
    return [hit.passage for hit in hits]


def corpus_of(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n", encoding="utf-8")
    return path


def test_the_passage_that_shares_most_words_comes_first(tmp_path: Path) -> None:
    index = open_word_index(corpus_of(tmp_path / "c.jsonl", LIMA, QUITO), tmp_path)
    lima = Passage("Lima", "Lima is the capital of Peru.", "1")

    assert found(index, "Which city is Ecuador's capital?", 2) == [
        Passage("Quito", "Quito is the capital of Ecuador."),
        lima,
    ]
    assert found(index, "capitals", 1) == [lima]


def test_every_query_gets_its_own_hits_with_falling_scores(tmp_path: Path) -> None:
    index = open_word_index(corpus_of(tmp_path / "c.jsonl", LIMA, QUITO), tmp_path)

    first, none, second = index.search(["Ecuador capital", "?!", "Peru"], 2)
    assert [hit.passage.title for hit in first] == ["Quito", "Lima"]
    assert [hit.passage.title for hit in second] == ["Lima"]
    assert none == []
    assert first[0].score > first[1].score > 0  # type: ignore[operator]  # an index scores every hit


@pytest.mark.parametrize(
    "query",
    ['title:"', "+-*/()[]{}^~", "AND OR NOT", "contents:[a TO", "IN [", "ecuador AND (", "\x00", "é" * 5000],
)
def test_no_query_is_read_as_query_syntax(tmp_path: Path, query: str) -> None:
    index = open_word_index(corpus_of(tmp_path / "c.jsonl", LIMA, QUITO), tmp_path)

    assert len(found(index, query, 3)) <= 2


def test_an_index_is_built_once_for_one_content(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "c.jsonl", LIMA)
    cache = tmp_path / "cache"
    open_word_index(corpus, cache)
    [place] = (cache / "search-r1").iterdir()
    before = sorted((file.name, file.stat().st_mtime_ns) for file in place.iterdir())

    moved = corpus.rename(tmp_path / "elsewhere.jsonl")
    assert open_word_index(moved, cache).passages == 1
    assert [place] == list((cache / "search-r1").iterdir())
    assert before == sorted((file.name, file.stat().st_mtime_ns) for file in place.iterdir())


def test_a_changed_corpus_is_another_index(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "c.jsonl", LIMA)
    open_word_index(corpus, tmp_path / "cache")

    assert open_word_index(corpus_of(corpus, LIMA, QUITO), tmp_path / "cache").passages == 2


async def test_builders_at_once_end_with_one_whole_index(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "c.jsonl", *[LIMA, QUITO] * 200)
    cache = tmp_path / "cache"

    async def build() -> WordIndex:
        return await asyncio.to_thread(open_word_index, corpus, cache)

    async with asyncio.TaskGroup() as group:
        builds = [group.create_task(build()) for _ in range(4)]
    assert [task.result().passages for task in builds] == [400] * 4
    assert len(list((cache / "search-r1").iterdir())) == 1


@pytest.mark.parametrize(
    ("second_line", "why"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", 'line 2: expected strings "title" and "text", or "contents"; got list'),
        ('{"title": "x"}', r'line 2: expected strings "title" and "text", or "contents"; got \[\'title\'\]'),
        ('{"contents": 3}', "line 2: expected strings"),
    ],
)
def test_a_bad_line_is_named_and_leaves_no_index(tmp_path: Path, second_line: str, why: str) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text(json.dumps(LIMA) + "\n" + second_line + "\n", encoding="utf-8")

    with pytest.raises(ValueError, match=why):
        open_word_index(corpus, tmp_path / "cache")
    assert list((tmp_path / "cache" / "search-r1").iterdir()) == []


def test_a_corpus_without_passages_is_an_error(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("\n\n", encoding="utf-8")

    with pytest.raises(ValueError, match="no passages in 2 lines"):
        list(read_corpus(corpus))


def test_the_example_corpus_answers_the_example_questions(tmp_path: Path) -> None:
    index = open_word_index(EXAMPLES / "corpus.jsonl", tmp_path)
    questions = [json.loads(line) for line in (EXAMPLES / "questions.jsonl").read_text("utf-8").splitlines()]

    def is_found(question: str, answers: list[str]) -> bool:
        shown = " ".join(passage.contents for passage in found(index, question, 3))
        return any(answer in shown for answer in answers)

    right = [is_found(row["prompt"], row["label"]["target"]) for row in questions]
    assert (len(questions), index.passages) == (24, 62)
    assert sum(right) >= 20  # the others need a second search, which is the point of them


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[WordIndex, Path]:
    """20,000 passages, and where their index is kept."""
    folder = tmp_path_factory.mktemp("large")
    rows = [
        {"id": n, "title": f"Entry {n}", "text": f"The entry about thing{n} of kind{n % 97}, as all are."}
        for n in range(20_000)
    ]
    return open_word_index(corpus_of(folder / "c.jsonl", *rows), folder / "cache"), folder / "cache"


def test_of_20_000_passages_each_query_finds_its_own(large: tuple[WordIndex, Path]) -> None:
    index, _ = large
    asked = range(0, 20_000, 199)

    answers = index.search([f"what is known about thing{n}?" for n in asked], 1)
    assert index.passages == 20_000
    assert [hits[0].passage.id for hits in answers] == [str(n) for n in asked]


def test_equal_scores_come_in_the_corpus_order(large: tuple[WordIndex, Path]) -> None:
    index, _ = large

    [hits] = index.search(["kind13"], 5)
    assert [hit.passage.id for hit in hits] == [str(13 + 97 * n) for n in range(5)]


@pytest.mark.skipif(sys.platform != "linux", reason="reads what is mapped from /proc")
def test_an_open_index_is_mapped_and_not_read_into_memory(large: tuple[WordIndex, Path]) -> None:
    index, cache = large
    index.search(["thing1"], 1)

    mapped = [line for line in Path("/proc/self/maps").read_text("utf-8").splitlines() if str(cache) in line]
    assert any(line.endswith(".store") for line in mapped)
    assert any(line.endswith(".term") for line in mapped)
