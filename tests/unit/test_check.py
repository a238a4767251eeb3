"""`rollhook check` on real files: every bad row with its line, its key and the nearest right name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import BaseModel

from rollhook import builtin
from rollhook.check import Problem, check_rows
from rollhook.config import RunConfig
from rollhook.data import read_rows
from rollhook.hookspecs import EnvironmentSpec, hookimpl
from rollhook.plugins import Plugins, builtin_plugin
from rollhook.registry import Registry
from rollhook.spec import Resolver
from rollhook.version import __version__


class Search(BaseModel):
    topk: int = 3
    index: str = ""


class SearchPlugin:
    @hookimpl
    def rollhook_environments(self) -> list[EnvironmentSpec]:
        def nothing(config: Any, rollout: Any) -> Any:
            raise AssertionError("no test here runs a rollout")

        return [EnvironmentSpec(name="search-r1", create=nothing, config=Search)]


@pytest.fixture
def resolver() -> Resolver:
    plugins = Plugins(entry_points=[])
    plugins.add("search-r1", SearchPlugin())
    return Resolver(Registry(plugins, builtin_plugin(builtin, __version__)), RunConfig())


def shown(path: Path, resolver: Resolver) -> list[str]:
    return [problem.show(path.name) for problem in check_rows(read_rows(path), resolver)]


def write_jsonl(path: Path, specs: list[Any]) -> Path:
    rows = [
        spec if isinstance(spec, str) else json.dumps({"prompt": "?", "metadata": spec}) for spec in specs
    ]
    path.write_text("\n".join(rows) + "\n")
    return path


def test_each_bad_row_is_told_with_its_line(tmp_path: Path, resolver: Resolver) -> None:
    data = write_jsonl(
        tmp_path / "data.jsonl",
        [
            {"rollhook": "search-r1"},
            {"rollhook": {"environment": "serch-r1"}},
            {"rollhook": {"topology": "debate"}},
            {"rollhook": {"environment": {"name": "search-r1", "topk": "many"}}},
            {"rollhook": {"environment": {"name": "search-r1", "index": "/etc"}}},
            "{not json",
            {"rollhook": {"environment": "search-r1", "verifier": "number"}},
            {},
        ],
    )

    assert shown(data, resolver) == [
        'data.jsonl:2: environment: no plugin named "serch-r1" is installed; did you mean "search-r1"?',
        'data.jsonl:3: topology: no plugin named "debate" is installed; try: pip install rollhook-debate',
        "data.jsonl:4: environment.topk: expected a valid integer, got 'many' (str)",
        'data.jsonl:5: environment.index: a row may not set "index" of search-r1/search-r1 '
        '(its name says "index"); set it in the run configuration under settings: or say trust_rows: true',
        "data.jsonl:6: not JSON: Expecting property name enclosed in double quotes (column 2)",
        "data.jsonl:8: rollhook: the row names nothing to run, and the run has no default; "
        'add "rollhook" to its metadata, or set default: in the run configuration',
    ]


def test_each_fault_of_one_row_is_a_problem(tmp_path: Path, resolver: Resolver) -> None:
    row = {"rollhook": {"environment": {"name": "search-r1", "topq": 1}, "verifier": "numbr"}}
    data = write_jsonl(tmp_path / "data.jsonl", [row])

    assert check_rows(read_rows(data), resolver) == [
        Problem(1, "environment.topq", "unknown key", 'did you mean "topk"?'),
        Problem(1, "verifier", 'no plugin named "numbr" is installed', 'did you mean "number"?'),
    ]


def test_nulls_that_parquet_fills_in_are_no_problem(tmp_path: Path, resolver: Resolver) -> None:
    rows = [
        {"rollhook": {"environment": {"name": "search-r1", "topk": 3}, "verifier": None}},
        {
            "rollhook": {
                "environment": {"name": "search-r1"},
                "verifier": "number",
                "limits": {"max_turns": 2},
            }
        },
        {"rollhook": {"environment": {"name": "serch-r1"}}},
    ]
    data = tmp_path / "data.parquet"
    pq.write_table(pa.Table.from_pylist([{"prompt": "?", "metadata": row} for row in rows]), data)

    assert shown(data, resolver) == [
        'data.parquet:3: environment: no plugin named "serch-r1" is installed; did you mean "search-r1"?'
    ]


def test_metadata_under_another_key_is_found(tmp_path: Path, resolver: Resolver) -> None:
    data = write_jsonl(
        tmp_path / "data.jsonl", [json.dumps({"prompt": "?", "extra": {"rollhook": "search-r1"}})]
    )

    assert check_rows(read_rows(data), resolver, metadata_key="extra") == []


def test_a_problem_without_key_or_hint_is_shown_without_them() -> None:
    assert Problem(3, "", "not UTF-8").show("d.jsonl") == "d.jsonl:3: not UTF-8"
