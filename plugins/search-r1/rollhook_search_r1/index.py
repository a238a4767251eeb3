"""The embedded index: BM25 over a corpus, built once and kept on disk by the corpus' content.

Invariant: an index directory is complete or absent: it is built beside its place and moved there by one
rename, so any number of runs may build at once, and one that is killed leaves nothing that others read.
Everything here blocks; the retriever calls it in threads.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rollhook_search_r1.protocol import Passage

FORMAT = 1
MAX_QUERY_WORDS = 64
WRITER_HEAP_BYTES = 64 * 2**20


class EmbeddedIndex:
    """Searches one opened index."""

    def __init__(self, index: Any) -> None:
        self._index = index
        self._searcher = index.searcher()

    @property
    def passages(self) -> int:
        """How many passages it holds."""
        return int(self._searcher.num_docs)

    async def search(self, query: str, topk: int) -> list[Passage]:
        """The passages that match best, any of the query's words being enough."""
        return await asyncio.to_thread(self._search, query, topk)

    def _search(self, query: str, topk: int) -> list[Passage]:
        # Bare lower-case words: nothing a model writes is read as query syntax.
        words = re.findall(r"\w+", query.lower())[:MAX_QUERY_WORDS]
        if not words:
            return []
        parsed = self._index.parse_query(" ".join(words), ["contents"])
        found = self._searcher.search(parsed, topk).hits
        return [Passage.of(self._searcher.doc(address).get_first("contents")) for _, address in found]


def open_index(corpus: Path, cache: Path | None) -> EmbeddedIndex:
    """The index of `corpus`, built if the cache has none for this content.

    cache: None means `$ROLLHOOK_CACHE`, else `~/.cache/rollhook`.
    Raises ValueError, naming file and line, for a corpus that cannot be read; RuntimeError without tantivy.
    """
    try:
        import tantivy
    except ImportError as error:
        raise RuntimeError(
            "an embedded index needs tantivy; try: pip install 'rollhook-search-r1[index]'"
        ) from error

    place = (cache or _default_cache()) / "search-r1" / _content_key(corpus, tantivy.__version__)
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".building-") as building:
            made = Path(building) / "index"
            made.mkdir()
            _build(tantivy, corpus, made)
            try:
                made.rename(place)
            except OSError:
                if not place.is_dir():  # else another run was first; its index is as good
                    raise
    return EmbeddedIndex(tantivy.Index.open(str(place)))


def read_corpus(corpus: Path) -> Iterator[Passage]:
    """The passages of a JSONL file: `{"title", "text"}` or `{"contents": "Title\\ntext"}` a line.

    Blank lines are skipped, other keys ignored. Raises ValueError naming file and line, and for a file
    without passages.
    """
    number = 0
    empty = True
    with corpus.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                empty = False
                yield _read_line(line, f"{corpus}, line {number}")
    if empty:
        raise ValueError(f"{corpus}: no passages in {number} lines")


def _read_line(line: str, where: str) -> Passage:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where}: not JSON: {error}") from error
    match row:
        case {"contents": str(contents)}:
            return Passage.of(contents)
        case {"title": str(title), "text": str(text)}:
            return Passage(" ".join(title.split()), text.strip())
    keys = sorted(row) if isinstance(row, Mapping) else type(row).__name__
    raise ValueError(f'{where}: expected strings "title" and "text", or "contents"; got {keys}')


def _build(tantivy: Any, corpus: Path, place: Path) -> None:
    schema = tantivy.SchemaBuilder()
    schema.add_text_field("contents", stored=True, tokenizer_name="en_stem", index_option="freq")
    index = tantivy.Index(schema.build(), path=str(place))
    writer = index.writer(WRITER_HEAP_BYTES, 1)  # one thread: equal scores come in the corpus' order
    try:
        for passage in read_corpus(corpus):
            writer.add_document(tantivy.Document(contents=f"{passage.title}\n{passage.text}"))
        writer.commit()
    finally:
        writer.wait_merging_threads()  # else they still write while the directory is moved or removed


def _content_key(corpus: Path, tantivy_version: str) -> str:
    digest = hashlib.sha256(f"{FORMAT} {tantivy_version} ".encode())
    with corpus.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()[:32]


def _default_cache() -> Path:
    configured = os.environ.get("ROLLHOOK_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "rollhook"
