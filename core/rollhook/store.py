"""A run's record on disk.

Invariant: once `append` has returned, that rollout is in the file, whatever happens to the process; of each
rollout readers see one record or none.

    DIR/run.json         what the run is: format, identity, facts; replaced atomically, never edited
    DIR/rollouts.jsonl   {"index": 7, "samples": [...]}, a line for each finished rollout, as they finished
                         (the last one of an index counts)
    DIR/lock             held by the process that writes, gone with it

A line is handed to the kernel whole, so `kill -9` loses nothing appended; it is synced too, so neither does
a power cut. A write that was cut short leaves a last line without an end: no reader sees it, and the next
writer cuts it off. Reading needs no lock and holds one rollout in memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rollhook.errors import ConfigError, DataError
from rollhook.sample import Sample

FORMAT = 1

_RECORD, _ROLLOUTS, _LOCK = "run.json", "rollouts.jsonl", "lock"
_INDEX = re.compile(rb'\{"index":(\d+),')


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What a run is.

    identity: what must be equal for two commands to be the same run (data, configuration, seed, ...).
    facts: what a reader wants to know besides (command line, versions). Both are plain JSON.
    pinned: what only the running engine could tell (model, tokenizer), and must stay equal as well.
    """

    identity: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)
    pinned: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredRollout:
    """One finished rollout and its sibling samples. index: the index of the sample it began as."""

    index: int
    samples: list[Sample]


class RunStore:
    """The one writer of a run's directory, made by `with RunStore(directory, record) as store`.

    Entering makes the directory or opens that of the same run again; `done` then holds the indices of its
    finished rollouts. Raises ConfigError when another process writes there, when the directory holds another
    run (saying what differs), or something else. All methods may be called from any thread.
    """

    def __init__(self, directory: Path, record: RunRecord) -> None:
        self.directory = directory
        self.done: set[int] = set()
        self._record = record
        self._writing = threading.Lock()
        self._resources = contextlib.ExitStack()
        self._rollouts: int | None = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
                _hold_lock(self.directory, stack)
                self._open_record()
                self._open_rollouts(stack)
            except OSError as error:
                raise ConfigError(f"{self.directory}: {error.strerror or error}") from error
            self._resources = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._writing:
            self._rollouts = None
            self._resources.close()

    def append(self, index: int, samples: Sequence[Sample]) -> None:
        """Add a finished rollout; blocks until it is on disk. Raises DataError when the disk refuses it."""
        line = _encode({"index": index, "samples": [sample.to_dict() for sample in samples]})
        with self._writing:
            if self._rollouts is None:
                raise DataError(f"{self.directory}: closed, rollout {index} is not recorded")
            if index in self.done:
                raise ValueError(f"rollout {index} is in {self.directory} already")
            try:
                _write_all(self._rollouts, line)
                os.fsync(self._rollouts)
            except OSError as error:
                self._rollouts = None  # what follows a torn line would be lost with it
                raise DataError(
                    f"{self.directory / _ROLLOUTS}: cannot record rollout {index}: {error.strerror}"
                ) from error
            self.done.add(index)

    def reopen(self, indices: Collection[int]) -> None:
        """Let these rollouts be recorded again; until they are, their records stand."""
        with self._writing:
            self.done -= set(indices)

    def pin(self, **facts: str) -> None:
        """Record what only a running engine can tell. Raises ConfigError when it was different before."""
        pinned = {**facts, **self._record.pinned}
        _refuse_difference(self.directory, pinned, {**pinned, **facts})
        self._record = replace(self._record, pinned=pinned)
        _write_record(self.directory, self._record)

    def _open_record(self) -> None:
        present = {entry.name for entry in self.directory.iterdir()}
        if _RECORD in present:
            stored = read_record(self.directory)
            _refuse_difference(self.directory, stored.identity, self._record.identity)
            self._record = stored
        elif strange := sorted(present - {_LOCK, _RECORD + ".tmp"}):
            raise ConfigError(
                f"{self.directory} is not a run's directory: it holds {strange[0]} and no {_RECORD}; "
                "name a new or an empty directory"
            )
        else:
            _write_record(self.directory, self._record)

    def _open_rollouts(self, stack: contextlib.ExitStack) -> None:
        path = self.directory / _ROLLOUTS
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        stack.callback(os.close, descriptor)
        offsets, end = _scan(path)
        os.ftruncate(descriptor, end)
        self.done = set(offsets)
        self._rollouts = descriptor


def read_record(directory: Path) -> RunRecord:
    """What the run in `directory` is. Raises DataError when there is none that this version reads."""
    path = directory / _RECORD
    try:
        record = json.loads(path.read_bytes())
        version = record["format"]
        if version != FORMAT:
            raise DataError(
                f"{path} has format {version!r} and this rollhook reads {FORMAT}; "
                "use the rollhook version the run was made with"
            )
        return RunRecord(record["identity"], record["facts"], record["pinned"])
    except FileNotFoundError as error:
        raise DataError(f"{directory}: no run here (there is no {_RECORD})") from error
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged: {error}") from error


def read_rollouts(directory: Path, *, by_index: bool = False) -> Iterator[StoredRollout]:
    """The finished rollouts of the run in `directory`, one at a time: as they finished, or by index.

    The run may still be going on: what has been appended when reading starts is given.
    """
    read_record(directory)
    path = directory / _ROLLOUTS
    offsets, _ = _scan(path)
    if not offsets:
        return
    with path.open("rb") as file:
        for index in sorted(offsets) if by_index else offsets:
            yield _read_at(file, offsets[index], index)


def read_rollout(directory: Path, index: int) -> StoredRollout:
    """The finished rollout `index`. Raises DataError when there is none."""
    read_record(directory)
    path = directory / _ROLLOUTS
    offsets, _ = _scan(path)
    if index not in offsets:
        have = f"indices {min(offsets)} to {max(offsets)}" if offsets else "none yet"
        raise DataError(f"{directory}: no finished rollout {index} ({len(offsets)} finished: {have})")
    with path.open("rb") as file:
        return _read_at(file, offsets[index], index)


def _read_at(file: Any, offset: int, index: int) -> StoredRollout:
    file.seek(offset)
    try:
        samples = json.loads(file.readline())["samples"]
        return StoredRollout(index, [Sample.from_dict(sample) for sample in samples])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file.name} is damaged at rollout {index}: {error}") from error


def _scan(path: Path) -> tuple[dict[int, int], int]:
    """Where each rollout's line begins, by index, and where the last whole line ends, in bytes."""
    offsets: dict[int, int] = {}
    end = 0
    if not path.exists():
        return offsets, end
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                break
            match = _INDEX.match(line)
            if match is None:
                raise DataError(f"{path} is damaged at line {number}: the lines before it are whole")
            offsets[int(match[1])] = end
            end += len(line)
    return offsets, end


def _hold_lock(directory: Path, stack: contextlib.ExitStack) -> None:
    descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    stack.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.read(descriptor, 32).decode("ascii", "replace").strip()
        raise ConfigError(
            f"{directory} is being written by another run (process {owner or 'unknown'})"
        ) from error
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())


def _refuse_difference(directory: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    different = [
        f"{name} is {there.get(name)!r} there and {here.get(name)!r} here"
        for name in sorted({*there, *here})
        if there.get(name) != here.get(name)
    ]
    if different:
        raise ConfigError(f"{directory} holds another run: {'; '.join(different)}; name another directory")


def _write_record(directory: Path, record: RunRecord) -> None:
    data = {"format": FORMAT, **asdict(record)}
    temporary = directory / f"{_RECORD}.tmp"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(data, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(directory / _RECORD)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), default=_plain).encode("ascii") + b"\n"


def _plain(value: Any) -> Any:
    """Arrays and tensors as lists; whatever else a plugin left in the metadata as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
