"""Runs every benchmark beside this file, prints one table and writes bench/results.json.

    python bench/run.py [NAME ...]

A benchmark is a module `bench_<name>.py` with `run() -> dict[str, dict[str, float | str]]`: per measurement
`ours` and `unit`, and where there is something to compare with, `baseline` and `ratio` (how many times better
than the baseline), measured in the same run. Figures depend on the machine; ratios are what to compare.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"

Measurement = dict[str, float | str]


def main(names: list[str]) -> None:
    """Run the named benchmarks (all when none is named); results of the others are kept."""
    sys.path.insert(0, str(HERE))
    known = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    if unknown := set(names) - set(known):
        sys.exit(f"no benchmark named {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
    results: dict[str, Measurement] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in names or known:
        results.update(importlib.import_module(f"bench_{name}").run())
    RESULTS.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")
    Console().print(_table(results))


def _table(results: dict[str, Measurement]) -> Table:
    table = Table("measurement", "ours", "baseline", "ratio", "unit")
    for name, measured in sorted(results.items()):
        figures = [measured.get(column, "") for column in ("ours", "baseline", "ratio")]
        cells = [f"{figure:,.4g}" if isinstance(figure, int | float) else str(figure) for figure in figures]
        table.add_row(name, *cells, str(measured.get("unit", "")))
    return table


if __name__ == "__main__":
    main(sys.argv[1:])
