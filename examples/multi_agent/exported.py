"""What `rollhook export` wrote, read again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_rollouts(exported: Path) -> Iterator[list[dict[str, Any]]]:
    """The exported samples, siblings together."""
    siblings: dict[int, list[dict[str, Any]]] = {}
    with exported.open(encoding="utf-8") as lines:
        for line in lines:
            sample = json.loads(line)
            siblings.setdefault(sample["index"], []).append(sample)
    yield from siblings.values()
