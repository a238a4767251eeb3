"""`rollhook check`: every bad row of a data file, before the first token.

Invariant: rows are judged by the Resolver that a run uses, so what passes here resolves there; a bad row
never hides the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rollhook.data import BadRow, Row
from rollhook.spec import Resolver, SpecError


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with one row. line: 1-based. key: where; empty when it is the whole line."""

    line: int
    key: str
    message: str
    hint: str | None = None

    def show(self, path: object) -> str:
        """`data.jsonl:12: environment: no plugin named "serch-r1" is installed; did you mean "search-r1"?`"""
        key = f"{self.key}: " if self.key else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{path}:{self.line}: {key}{self.message}{hint}"


def check_rows(
    rows: Iterable[Row | BadRow], resolver: Resolver, *, metadata_key: str = "metadata"
) -> list[Problem]:
    """Everything wrong with `rows`, in their order. rows: from `rollhook.data.read_rows`."""
    return [problem for row in rows for problem in _problems(row, resolver, metadata_key)]


def _problems(row: Row | BadRow, resolver: Resolver, metadata_key: str) -> list[Problem]:
    if isinstance(row, BadRow):
        return [Problem(row.line, row.key, row.message)]
    try:
        resolver.resolve(row.data.get(metadata_key))
    except SpecError as error:
        return [Problem(row.line, fault.key, fault.message, fault.hint) for fault in error.faults]
    return []
