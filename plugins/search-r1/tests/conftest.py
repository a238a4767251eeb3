"""A retrieval service in a process of its own, as people start it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

PASSAGES = [
    {"id": 1, "title": "Lima", "text": "Lima is the capital of Peru."},
    {"id": 2, "title": "Quito", "text": "Quito is the capital of Ecuador."},
    {"title": "Peru", "text": "Peru is a country."},
]


@dataclass(frozen=True, slots=True)
class Served:
    """A running service. url: its endpoint."""

    url: str
    process: subprocess.Popen[str]


Serve = Callable[..., Served]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path)


def write_corpus(folder: Path) -> Path:
    path = folder / "corpus.jsonl"
    path.write_text("\n".join(json.dumps(passage) for passage in PASSAGES), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Starts `rollhook-search-r1 serve` over the three passages, with further options; ends it afterwards."""
    folder = tmp_path_factory.mktemp("served")
    with ExitStack() as stack:

        def start(*options: str) -> Served:
            command = [sys.executable, "-m", "rollhook_search_r1", "serve", "--port", "0", *options]
            command += ["--corpus", str(write_corpus(folder)), "--cache", str(folder)]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"is served at (http://127\.0\.0\.1:\d+/retrieve);", line)
            assert found is not None, line
            return Served(found[1], process)

        yield start
