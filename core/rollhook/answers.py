"""Rows that hold answers already, as Samples to be scored: a data set with responses, or an exported run.

Invariant: every row becomes one Sample or one BadRow, in order; rows of one prompt that follow each other
share a group_index, the export's own where there is one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollhook.data import BadRow, DataKeys, Row, read_rows
from rollhook.errors import RolloutError
from rollhook.sample import Sample, Status
from rollhook.siblings import RESULT_KEY

_EXPORTED = ("group_index", "rollout_id", "index", "status", "loss_mask")
"""What an exported row has beside prompt, label, metadata and response."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. line: of its file. failed: why its rollout came to none, None where there is an answer."""

    line: int
    sample: Sample
    failed: RolloutError | None = None


def read_answers(path: Path, keys: DataKeys, response_key: str) -> Iterator[Answer | BadRow]:
    """The answers of a `.jsonl` or `.parquet` file. Raises DataError when it cannot be read as a whole."""
    group, last_prompt = -1, ""
    for row in read_rows(path, keys, also=(response_key, *_EXPORTED)):
        if isinstance(row, BadRow):
            yield row
            continue
        problem = _problem(row.data, response_key)
        if problem:
            yield BadRow(row.line, response_key, problem)
            continue
        prompt = json.dumps(row.data[keys.input], sort_keys=True)
        if group < 0 or prompt != last_prompt:
            group, last_prompt = group + 1, prompt
        yield _answer(row, keys, response_key, group)


def _problem(data: Mapping[str, Any], response_key: str) -> str | None:
    if response_key not in data:
        return f"no such key in the row (it has: {', '.join(data)})"
    response = data[response_key]
    return None if isinstance(response, str) else f"a response is text, not {type(response).__name__}"


def _answer(row: Row, keys: DataKeys, response_key: str, group: int) -> Answer:
    data = row.data
    exported = all(key in data for key in _EXPORTED)
    prompt, label = data[keys.input], data.get(keys.label)
    sample = Sample(
        group_index=data["group_index"] if exported and data["group_index"] is not None else group,
        index=row.line,
        rollout_id=data["rollout_id"] if exported else None,
        prompt=_decoded(prompt) if exported else prompt,
        label=_decoded(label) if exported else label,
        response=data[response_key],
        metadata=data[keys.metadata],
    )
    return Answer(row.line, sample, _failure(data) if exported else None)


def _decoded(cell: Any) -> Any:
    """A cell of an export, where lists and objects may be JSON text: Parquet's columns have one type."""
    if not isinstance(cell, str) or not cell.startswith(("[", "{")):
        return cell
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return cell


def _failure(data: Mapping[str, Any]) -> RolloutError | None:
    if data["status"] not in (Status.FAILED.value, Status.ABORTED.value):
        return None
    cause = ((data.get("metadata") or {}).get(RESULT_KEY) or {}).get("error") or {}
    why = f": {cause['message']}" if cause.get("message") else ""
    return RolloutError(f"its rollout {data['status']}{why}", plugin=cause.get("plugin"))
