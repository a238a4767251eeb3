from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from rollhook_search_r1.index import EmbeddedIndex, open_index, read_corpus
from rollhook_search_r1.protocol import Passage

EXAMPLES = Path(__file__).parents[1] / "examples"
LIMA = {"id": "1", "title": "Lima", "text": "Lima is the capital of Peru."}
QUITO = {"contents": "Quito\nQuito is the capital of Ecuador."}


def corpus_of(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n", encoding="utf-8")
    return path


async def test_the_passage_that_shares_most_words_comes_first(tmp_path: Path) -> None:
    index = open_index(corpus_of(tmp_path / "c.jsonl", LIMA, QUITO), tmp_path)

    found = await index.search("Which city is Ecuador's capital?", 2)
    assert found == [
        Passage("Quito", "Quito is the capital of Ecuador."),
        Passage("Lima", "Lima is the capital of Peru."),
    ]
    assert await index.search("capitals", 1) == [Passage("Lima", "Lima is the capital of Peru.")]


@pytest.mark.parametrize(
    "query",
    ['title:"', "+-*/()[]{}^~", "AND OR NOT", "contents:[a TO", "IN [", "ecuador AND (", "\x00", "é" * 5000],
)
async def test_no_query_is_read_as_query_syntax(tmp_path: Path, query: str) -> None:
    index = open_index(corpus_of(tmp_path / "c.jsonl", LIMA, QUITO), tmp_path)

    assert len(await index.search(query, 3)) <= 2


async def test_an_index_is_built_once_for_one_content(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "c.jsonl", LIMA)
    cache = tmp_path / "cache"
    open_index(corpus, cache)
    [place] = (cache / "search-r1").iterdir()
    before = sorted((file.name, file.stat().st_mtime_ns) for file in place.iterdir())

    moved = corpus.rename(tmp_path / "elsewhere.jsonl")
    assert open_index(moved, cache).passages == 1
    assert [place] == list((cache / "search-r1").iterdir())
    assert before == sorted((file.name, file.stat().st_mtime_ns) for file in place.iterdir())


async def test_a_changed_corpus_is_another_index(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "c.jsonl", LIMA)
    open_index(corpus, tmp_path / "cache")

    assert open_index(corpus_of(corpus, LIMA, QUITO), tmp_path / "cache").passages == 2


async def test_builders_at_once_end_with_one_whole_index(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "c.jsonl", *[LIMA, QUITO] * 200)
    cache = tmp_path / "cache"

    async def build() -> EmbeddedIndex:
        return await asyncio.to_thread(open_index, corpus, cache)

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
        open_index(corpus, tmp_path / "cache")
    assert list((tmp_path / "cache" / "search-r1").iterdir()) == []


def test_a_corpus_without_passages_is_an_error(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("\n\n", encoding="utf-8")

    with pytest.raises(ValueError, match="no passages in 2 lines"):
        list(read_corpus(corpus))


async def test_the_example_corpus_answers_the_example_questions(tmp_path: Path) -> None:
    index = open_index(EXAMPLES / "corpus.jsonl", tmp_path)
    questions = [json.loads(line) for line in (EXAMPLES / "questions.jsonl").read_text("utf-8").splitlines()]

    async def is_found(question: str, answers: list[str]) -> bool:
        shown = " ".join(f"{found.title} {found.text}" for found in await index.search(question, 3))
        return any(answer in shown for answer in answers)

    found = [await is_found(row["prompt"], row["label"]["target"]) for row in questions]
    assert (len(questions), index.passages) == (24, 62)
    assert sum(found) >= 20  # the others need a second search, which is the point of them
