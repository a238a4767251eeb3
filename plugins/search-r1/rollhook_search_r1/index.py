"""The index by words: BM25 over a corpus, by tantivy, built once and memory-mapped.

Invariant: nothing a model writes is read as query syntax. Everything here blocks;
`rollhook_search_r1.sources` calls it in threads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollhook_search_r1.corpus import kept, read_corpus
from rollhook_search_r1.protocol import Hit, Passage

FORMAT = 2
MAX_QUERY_WORDS = 64
WRITER_HEAP_BYTES = 64 * 2**20


class WordIndex:
    """Searches one opened index. Its pages are the kernel's to load and drop, and processes share them."""

    def __init__(self, index: Any) -> None:
        self._index = index
        self._searcher = index.searcher()

    @property
    def passages(self) -> int:
        """How many passages it holds."""
        return int(self._searcher.num_docs)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """For each query the passages that match best, any of its words being enough."""
        return [self._search(query, topk) for query in queries]

    def _search(self, query: str, topk: int) -> list[Hit]:
        words = re.findall(r"\w+", query.lower())[:MAX_QUERY_WORDS]  # bare and lower-case: never operators
        if not words:
            return []
        parsed = self._index.parse_query(" ".join(words), ["contents"])
        found = self._searcher.search(parsed, topk).hits
        return [Hit(_passage(self._searcher.doc(address)), float(score)) for score, address in found]


def open_word_index(corpus: Path, cache: Path | None) -> WordIndex:
    """The index of `corpus`, built if the cache (see `corpus.kept`) has none for this content.

    Raises ValueError, naming file and line, for a corpus that cannot be read; RuntimeError without tantivy.
    """
    try:
        import tantivy
    except ImportError as error:
        raise RuntimeError(
            "an embedded index needs tantivy; try: pip install 'rollhook-search-r1[index]'"
        ) from error

    made_by = f"bm25 {FORMAT} {tantivy.__version__}"
    place = kept(corpus, cache, made_by, lambda place: _build(tantivy, corpus, place))
    return WordIndex(tantivy.Index.open(str(place)))


def _passage(document: Any) -> Passage:
    name = document.get_first("id")
    return Passage.of(document.get_first("contents"), None if name is None else bytes(name).decode())


def _build(tantivy: Any, corpus: Path, place: Path) -> None:
    schema = tantivy.SchemaBuilder()
    schema.add_text_field("contents", stored=True, tokenizer_name="en_stem", index_option="freq")
    schema.add_bytes_field("id", stored=True, indexed=False)
    index = tantivy.Index(schema.build(), path=str(place))
    writer = index.writer(WRITER_HEAP_BYTES, 1)  # one thread: equal scores come in the corpus' order
    try:
        for passage in read_corpus(corpus):
            document = tantivy.Document(contents=passage.contents)
            if passage.id is not None:
                document.add_bytes("id", passage.id.encode())
            writer.add_document(document)
        writer.commit()
    finally:
        writer.wait_merging_threads()  # else they still write while the directory is moved or removed
