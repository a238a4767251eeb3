"""`rollhook check`: every bad row of a file, by line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Rollhook, write_rows

HOOKS = """
from typing import Annotated

from pydantic import BaseModel, Field
from rollhook import EnvironmentSpec, RunOnly, VerifierSpec, hookimpl


class Config(BaseModel):
    size: int = Field(3, ge=1, le=9)
    corpus_path: str = ""


@hookimpl
def rollhook_environments():
    return [EnvironmentSpec(name="maze", config=Config, create=lambda config, rollout: None)]
"""


@pytest.fixture
def maze(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module with hooks in the working directory, gone from this process afterwards."""
    (tmp_path / "maze_for_check.py").write_text(HOOKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "maze=maze_for_check"
    sys.modules.pop("maze_for_check", None)


def rows_naming(*named: object) -> list[dict[str, object]]:
    return [{"prompt": "a", "metadata": {"rollhook": one}} for one in named]


def test_good_rows_are_counted(tmp_path: Path, rollhook: Rollhook, maze: str) -> None:
    data = write_rows(
        tmp_path / "d.jsonl", *rows_naming("maze", {"environment": {"name": "maze", "size": 9}})
    )

    result = rollhook("check", data, "--plugin", maze)

    assert (result.exit_code, result.output) == (0, "2 rows, no problems\n")


def test_every_bad_row_is_named_with_its_line_and_the_nearest_right_name(
    tmp_path: Path, rollhook: Rollhook, maze: str
) -> None:
    data = write_rows(
        tmp_path / "d.jsonl",
        *rows_naming(
            "maze",
            {"environment": "mazy"},
            {"environment": "search-r1"},
            {"environment": {"name": "maze", "size": "huge"}},
            {"environment": {"name": "maze", "corpus_path": "/etc"}},
        ),
        "not json",
    )

    result = rollhook("check", data, "--plugin", maze)

    lines = result.stdout.splitlines()
    assert (result.exit_code, len(lines)) == (1, 5)
    assert [line.removeprefix(f"{data}:")[:1] for line in lines] == ["2", "3", "4", "5", "6"]
    assert 'no plugin named "mazy" is installed; did you mean "maze"?' in lines[0]
    assert "pip install rollhook-search-r1" in lines[1] or "search-r1" in lines[1]
    assert "size" in lines[2]
    assert "corpus_path" in lines[3]
    assert lines[4] == f"{data}:6: not JSON: Expecting value (column 1)"
    assert result.stderr == "6 rows, 5 problems\n"


def test_a_blocked_plugin_is_not_imported(tmp_path: Path, rollhook: Rollhook, maze: str) -> None:
    data = write_rows(tmp_path / "d.jsonl", *rows_naming("maze"))

    result = rollhook("check", data, "--plugin", maze, "--block", "maze")

    assert result.exit_code != 0
    assert "blocked" in result.output
    assert "maze_for_check" not in sys.modules


def test_keys_and_configuration_are_those_of_a_run(tmp_path: Path, rollhook: Rollhook) -> None:
    (tmp_path / "run.yaml").write_text("rollhook: {default: single}\nother: {}\n")
    data = write_rows(
        tmp_path / "d.jsonl", {"q": "a"}, {"q": "b", "extra": {"rollhook": {"verifier": "numbr"}}}
    )

    result = rollhook(
        "check", data, "--config", tmp_path / "run.yaml", "--input-key", "q", "--metadata-key", "extra"
    )

    assert result.exit_code == 1
    assert result.stdout.startswith(f'{data}:2: verifier: no plugin named "numbr" is installed')


def test_a_file_or_a_configuration_that_cannot_be_read_exits_with_2(
    tmp_path: Path, rollhook: Rollhook
) -> None:
    data = write_rows(tmp_path / "d.jsonl", *rows_naming("single"))
    (tmp_path / "bad.yaml").write_text("conncurrency: 3")
    (tmp_path / "d.csv").touch()

    missing = rollhook("check", tmp_path / "none.jsonl")
    other_kind = rollhook("check", tmp_path / "d.csv")
    bad_config = rollhook("check", data, "--config", tmp_path / "bad.yaml")

    assert [r.exit_code for r in (missing, other_kind, bad_config)] == [2, 2, 2]
    assert other_kind.stderr == (
        f"rollhook: {tmp_path}/d.csv: the name must end in .jsonl or .parquet, to say what is in it\n"
    )
    assert 'did you mean "concurrency"?' in bad_config.stderr
