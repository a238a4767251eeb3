"""Rows of a data file, and the Samples they stand for.

Invariant: a row's number depends on the file alone. Row i, counted from 0 over the rows that are there, gives
the samples with group_index i and index i * samples_per_prompt + k, whatever was read before and wherever
reading stops. A row that cannot be used is a `BadRow` with its line, never an exception; nothing here holds
more than one row (JSONL) or one batch of rows (Parquet) in memory.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from rollhook.errors import DataError
from rollhook.sample import Sample

_PARQUET_BATCH_ROWS = 64


@dataclass(frozen=True, slots=True)
class DataKeys:
    """Which column of a row holds what."""

    input: str = "prompt"
    label: str = "label"
    metadata: str = "metadata"
    tools: str = "tools"


@dataclass(frozen=True, slots=True)
class Row:
    """One row. line: 1-based, the line of a JSONL file or the row of a Parquet file."""

    line: int
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be used. key: the column at fault, empty when the whole line is."""

    line: int
    key: str
    message: str


def read_rows(
    path: Path, keys: DataKeys | None = None, *, also: Collection[str] = ()
) -> Iterator[Row | BadRow]:
    """The rows of a `.jsonl` or `.parquet` file, in order, one at a time.

    Every Row has a usable prompt, and its metadata is a dict. Blank lines are skipped. also: columns of a
    Parquet file to read beside those of `keys`. Raises DataError when the file as a whole cannot be read.
    """
    keys = keys or DataKeys()
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    if path.suffix not in (".jsonl", ".parquet"):
        raise DataError(f"{path}: the name must end in .jsonl or .parquet, to say what is in it")
    for row in _jsonl_rows(path) if path.suffix == ".jsonl" else _parquet_rows(path, keys, also):
        yield _checked(row, keys) if isinstance(row, Row) else row


def make_samples(
    rows: Iterable[Row | BadRow], keys: DataKeys | None = None, *, samples_per_prompt: int = 1
) -> Iterator[Sample]:
    """`samples_per_prompt` Samples for each row.

    Each has an index and a group_index of its row; no session_id. `metadata["tools"]` holds the row's tools.
    Raises DataError at a BadRow: check the file first.
    """
    keys = keys or DataKeys()
    for number, row in enumerate(rows):
        if isinstance(row, BadRow):
            raise DataError(f"line {row.line}: {row.message}")
        for k in range(samples_per_prompt):
            yield Sample(
                group_index=number,
                index=number * samples_per_prompt + k,
                prompt=_copied(row.data[keys.input]),
                label=_copied(row.data.get(keys.label)),
                metadata=_metadata(row.data, keys),
            )


def data_digest(path: Path) -> str:
    """The SHA-256 of the file's content, in hex."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error


def _jsonl_rows(path: Path) -> Iterator[Row | BadRow]:
    try:
        with path.open("rb") as file:
            for line, raw in enumerate(file, start=1):
                text = raw.removeprefix(b"\xef\xbb\xbf") if line == 1 else raw
                if text.strip():
                    yield _jsonl_row(line, text)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error


def _jsonl_row(line: int, raw: bytes) -> Row | BadRow:
    try:
        data = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        return BadRow(line, "", f"not UTF-8 (byte {error.start})")
    except json.JSONDecodeError as error:
        return BadRow(line, "", f"not JSON: {error.msg} (column {error.colno})")
    except (ValueError, RecursionError) as error:
        return BadRow(line, "", f"not JSON: {error}")
    if not isinstance(data, dict):
        return BadRow(line, "", f"not a JSON object but a {type(data).__name__}")
    return Row(line, data)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _parquet_rows(path: Path, keys: DataKeys, also: Collection[str]) -> Iterator[Row]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DataError(
            f"{path}: reading Parquet needs pyarrow; try: pip install 'rollhook[parquet]'"
        ) from error
    try:
        with pq.ParquetFile(path) as file:
            present = file.schema_arrow.names
            if keys.input not in present:
                raise DataError(f"{path}: no column {keys.input!r} (columns: {', '.join(present)})")
            wanted = [keys.input, keys.label, keys.metadata, keys.tools, *also]
            wanted = [key for key in dict.fromkeys(wanted) if key in present]
            line = 0
            for batch in file.iter_batches(batch_size=_PARQUET_BATCH_ROWS, columns=wanted):
                for data in batch.to_pylist():
                    line += 1
                    yield Row(line, _without_fill(data, keys))
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: not a readable Parquet file: {error}") from error


def _without_fill(data: dict[str, Any], keys: DataKeys) -> dict[str, Any]:
    """`data` as JSON could hold it.

    Parquet fills nulls into messages and tools that lack a key their neighbours have: those go. (In metadata
    they stay: there null means absent.)
    """
    plain = {key: _plain(value) for key, value in data.items()}
    return {
        key: _drop_nulls(value) if key in (keys.input, keys.tools) else value for key, value in plain.items()
    }


def _plain(value: Any) -> Any:
    """`value` in JSON's types: NaN, a data frame's missing number, is null; dates and decimals are text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def _drop_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _drop_nulls(item) for key, item in value.items() if item is not None or key == "content"}
    if isinstance(value, list):
        return [_drop_nulls(item) for item in value]
    return value


def _checked(row: Row, keys: DataKeys) -> Row | BadRow:
    """`row` with metadata and tools decoded, or what is wrong with it."""
    if keys.input not in row.data:
        return BadRow(
            row.line, keys.input, f"no such key in the row (it has: {', '.join(row.data) or 'none'})"
        )
    problem = _prompt_problem(row.data[keys.input])
    if problem:
        return BadRow(row.line, keys.input, problem)
    try:
        metadata = _decoded(row.data.get(keys.metadata), dict)
    except ValueError as error:
        return BadRow(row.line, keys.metadata, str(error))
    try:
        tools = _decoded(row.data.get(keys.tools), list)
    except ValueError as error:
        return BadRow(row.line, keys.tools, str(error))
    return Row(row.line, {**row.data, keys.metadata: metadata or {}, keys.tools: tools})


def _prompt_problem(prompt: Any) -> str | None:
    if isinstance(prompt, str):
        return None  # also when empty: an environment may bring its own opening
    if not isinstance(prompt, list):
        return f"a prompt is text or a list of messages, not {_kind(prompt)}"
    if not prompt:
        return "an empty list of messages"
    for number, message in enumerate(prompt):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return f"message {number} is not an object with a role"
    return None


def _decoded(value: Any, kind: type[dict[Any, Any]] | type[list[Any]]) -> Any:
    """`value`, or the value in its JSON text, when it is None or of `kind`; else ValueError."""
    name = "an object" if kind is dict else "a list"
    if isinstance(value, str):
        try:
            value = json.loads(value, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"must be {name}, and this text is not JSON: {error}") from error
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"must be {name}, not {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    names: Sequence[tuple[type, str]] = (
        (type(None), "null"),
        (bool, "true or false"),
        (int, "a number"),
        (float, "a number"),
        (str, "text"),
        (list, "a list"),
        (dict, "an object"),
    )
    return next((name for kind, name in names if isinstance(value, kind)), type(value).__name__)


def _metadata(data: dict[str, Any], keys: DataKeys) -> dict[str, Any]:
    metadata: dict[str, Any] = _copied(data[keys.metadata])
    tools = data[keys.tools]
    return metadata if tools is None else {**metadata, "tools": _copied(tools)}


def _copied(value: Any) -> Any:
    """A copy that shares no list and no dict: rollouts of one prompt must not see each other's writes."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value
