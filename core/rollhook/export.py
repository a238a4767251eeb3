"""A run's samples as one training file.

Invariant: one row for each Sample, ordered by (index, segment), under the Sample's own field names; the file
appears whole or not at all. One rollout is held in memory at a time (Parquet: one row group).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import IO, Any

from rollhook.errors import DataError
from rollhook.sample import PrefixCacheInfo, Sample, SpecInfo
from rollhook.store import read_rollouts

_ROW_GROUP = 256
_FREE_FIELDS = {"prompt": "string", "label": "string", "reward": "double"}
"""The fields that hold any JSON value, with the Parquet type they get where they hold nothing."""


def export_run(directory: Path, out: Path) -> int:
    """Write the samples of the run in `directory` to `out`, a `.jsonl` or `.parquet` file.

    A JSON line is a `Sample.to_dict()`. Parquet has a column for each field; metadata is JSON text in it, and
    so are prompts, labels and rewards that are no scalars. Returns the number of rows. Raises DataError.
    """
    writers: dict[str, Callable[[Path, IO[bytes]], int]] = {
        ".jsonl": _write_jsonl,
        ".parquet": _write_parquet,
    }
    write = writers.get(out.suffix)
    if write is None:
        raise DataError(f"{out}: the name must end in .jsonl or .parquet, to say what to write")
    with _replacing(out) as file:
        return write(directory, file)


def _rows(directory: Path) -> Iterator[dict[str, Any]]:
    for rollout in read_rollouts(directory, by_index=True):
        for sample in sorted(rollout.samples, key=_segment):
            yield sample.to_dict()


def _segment(sample: Sample) -> int:
    segment: int = sample.metadata.get("rollhook_result", {}).get("segment", 0)
    return segment


def _write_jsonl(directory: Path, file: IO[bytes]) -> int:
    count = 0
    for row in _rows(directory):
        file.write(json.dumps(row).encode("ascii") + b"\n")
        count += 1
    return count


def _write_parquet(directory: Path, file: IO[bytes]) -> int:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DataError("writing Parquet needs pyarrow; try: pip install 'rollhook[parquet]'") from error
    schema = _schema(_free_kinds(directory))
    texts = {column.name for column in schema if column.type == pa.string()}
    count = 0
    with pq.ParquetWriter(file, schema) as writer:
        for rows in _batches(_rows(directory), _ROW_GROUP):
            cells = [
                {key: _text(cell) if key in texts else cell for key, cell in row.items()} for row in rows
            ]
            writer.write_table(pa.Table.from_pylist(cells, schema=schema))
            count += len(rows)
    return count


def _free_kinds(directory: Path) -> dict[str, str]:
    """The Parquet type of each field that may hold anything: its scalars' own when they are of one kind."""
    seen: dict[str, set[str]] = {name: set() for name in _FREE_FIELDS}
    for rollout in read_rollouts(directory):
        for name, kinds in seen.items():
            kinds.update(_kind(getattr(sample, name)) for sample in rollout.samples)
    return {name: _common_kind(kinds - {"null"}) or _FREE_FIELDS[name] for name, kinds in seen.items()}


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int64" if -(2**63) <= value < 2**63 else "string"
    return "double" if isinstance(value, float) else "string"


def _common_kind(kinds: set[str]) -> str | None:
    if len(kinds) < 2:
        return next(iter(kinds), None)
    return "double" if kinds == {"int64", "double"} else "string"


def _schema(kinds: Mapping[str, str]) -> Any:
    """One column for each field of Sample; a field this does not know is JSON text."""
    import pyarrow as pa

    def counts(kind: type[Any]) -> Any:
        return pa.struct([(field.name, pa.int64()) for field in fields(kind)])

    types = {
        **dict.fromkeys(("group_index", "index", "rollout_id", "response_length"), pa.int64()),
        **dict.fromkeys(
            ("tokens", "rollout_top_p_token_ids", "rollout_top_p_token_offsets"), pa.list_(pa.int32())
        ),
        **dict.fromkeys(("response", "status", "generate_function_path", "session_id"), pa.string()),
        "loss_mask": pa.list_(pa.int8()),
        "rollout_log_probs": pa.list_(pa.float64()),
        "weight_versions": pa.list_(pa.string()),
        "remove_sample": pa.bool_(),
        "non_generation_time": pa.float64(),
        "spec_info": counts(SpecInfo),
        "prefix_cache_info": counts(PrefixCacheInfo),
        **{name: pa.type_for_alias(kind) for name, kind in kinds.items()},
    }
    return pa.schema([(field.name, types.get(field.name, pa.string())) for field in fields(Sample)])


def _text(value: Any) -> str | None:
    """A string as it is, anything else as JSON. A lone surrogate, which UTF-8 cannot hold, becomes "?"."""
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode("utf-8", "replace").decode("utf-8")


def _batches(rows: Iterator[dict[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


@contextmanager
def _replacing(out: Path) -> Iterator[IO[bytes]]:
    """A file that becomes `out` when the block ends well, and is gone when it does not."""
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(out)
    except OSError as error:
        raise DataError(f"{out}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
