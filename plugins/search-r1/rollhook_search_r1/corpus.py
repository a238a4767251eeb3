"""A corpus of passages, and where what is made of it is kept.

Invariant: a kept directory is complete or absent: it is built beside its place and moved there by one rename,
so any number of runs may build at once, and one that is killed leaves nothing that others read. Its name is
the content it was made of, so a changed corpus is never mistaken for the old one. Everything here blocks.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rollhook_search_r1.protocol import Passage


def read_corpus(corpus: Path) -> Iterator[Passage]:
    """The passages of a JSONL file: `{"title", "text"}` or `{"contents": "Title\\ntext"}` a line.

    An `id` is kept; blank lines are skipped, other keys ignored. Raises ValueError naming file and line, and
    for a file without passages.
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


def kept(corpus: Path, cache: Path | None, made_by: str, build: Callable[[Path], None]) -> Path:
    """The directory that `build` filled for this content of `corpus`, now or in an earlier run.

    cache: None means `$ROLLHOOK_CACHE`, else `~/.cache/rollhook`. made_by: names everything else that what
    `build` writes depends on. `build` gets an empty directory, which is gone if it raises.
    """
    place = (cache or _default_cache()) / "search-r1" / _key(corpus, made_by)
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".building-") as building:
            made = Path(building) / "index"
            made.mkdir()
            build(made)
            try:
                made.rename(place)
            except OSError:
                if not place.is_dir():  # else another run was first; its index is as good
                    raise
    return place


def hash_file(digest: hashlib._Hash, path: Path) -> None:
    """Feed a file's content to `digest`."""
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)


def _read_line(line: str, where: str) -> Passage:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where}: not JSON: {error}") from error
    name = row.get("id") if isinstance(row, Mapping) else None
    named = None if name is None else str(name)
    match row:
        case {"contents": str(contents)}:
            return Passage.of(contents, named)
        case {"title": str(title), "text": str(text)}:
            return Passage(" ".join(title.split()), text.strip(), named)
    keys = sorted(row) if isinstance(row, Mapping) else type(row).__name__
    raise ValueError(f'{where}: expected strings "title" and "text", or "contents"; got {keys}')


def _key(corpus: Path, made_by: str) -> str:
    digest = hashlib.sha256(f"{made_by} ".encode())
    hash_file(digest, corpus)
    return digest.hexdigest()[:32]


def _default_cache() -> Path:
    configured = os.environ.get("ROLLHOOK_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "rollhook"
