"""`rollhook verify`: answers that are there are scored without an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Rollhook, ServeScript, write_rows


def row(response: str, label: Any = "4", verifier: Any = "number", prompt: str = "2 + 2?") -> dict[str, Any]:
    metadata = {} if verifier is None else {"rollhook": {"verifier": verifier}}
    return {"prompt": prompt, "label": label, "response": response, "metadata": metadata}


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_row_is_scored_by_the_verifiers_it_names(tmp_path: Path, rollhook: Rollhook) -> None:
    both = [{"name": "number", "weight": 0.9}, {"name": "format", "tags": ["a"], "weight": 0.1}]
    data = write_rows(tmp_path / "d.jsonl", row("It is 4."), row("4", verifier=both), row("4", label="many"))

    result = rollhook("verify", data, "--out", tmp_path / "scores.jsonl")

    assert result.exit_code == 0
    assert result.stdout == "the rows' own: 2 scored, mean 0.950, failed 1 (verifier 1)\n"
    assert f"{data}:3: verifier: rollhook/number: ValueError: the label 'many' is no number" in result.stderr
    first, second, third = records(tmp_path / "scores.jsonl")
    assert first == {"line": 1, "verifier": None, "value": 1.0, "parts": {}, "error": None}
    assert second["parts"] == {"number": 1.0, "format": 0.0, "format.a": 0.0}
    assert (third["value"], third["error"]["plugin"], third["error"]["type"]) == (
        None,
        "rollhook/number",
        "ValueError",
    )


def test_rows_that_name_nothing_are_scored_by_the_one_on_the_command_line(
    tmp_path: Path, rollhook: Rollhook
) -> None:
    data = write_rows(tmp_path / "d.jsonl", *(row(said, verifier=None) for said in ("B", "B", "A")))

    result = rollhook("verify", data, "--verifier", "majority", "--out", tmp_path / "s.jsonl")

    assert (result.exit_code, result.output) == (0, "rollhook/majority: 3 scored, mean 0.667, failed 0\n")
    assert [record["value"] for record in records(tmp_path / "s.jsonl")] == [1.0, 1.0, 0.0]


def test_two_verifiers_are_compared_row_by_row(tmp_path: Path, rollhook: Rollhook) -> None:
    data = write_rows(tmp_path / "d.jsonl", row("4"), row("It is 4."), row("5"))

    result = rollhook("verify", data, "--compare", "exact_match", "number")

    assert result.exit_code == 0
    assert result.stdout == (
        f'{data}:2: 0.000 vs 1.000  label "4"  answer "It is 4."\n'
        "rollhook/exact_match: 3 scored, mean 0.333, failed 0\n"
        "rollhook/number: 3 scored, mean 0.667, failed 0\n"
        "1 rows scored differently\n"
    )


def test_an_exported_run_gets_the_rewards_it_had(
    tmp_path: Path, rollhook: Rollhook, serve: ServeScript
) -> None:
    spec = {"topology": "single", "verifier": [{"name": "exact_match", "weight": 0.5}, "f1"]}
    rows = [{"prompt": "2 + 2?", "label": "4", "metadata": {"rollhook": spec}}] * 3
    data = write_rows(tmp_path / "d.jsonl", *rows)
    engine = serve(["4", "4 or 5", "five"])
    assert rollhook("run", data, "--engine", engine.url, "--out", tmp_path / "run").exit_code == 0
    assert rollhook("export", tmp_path / "run", tmp_path / "run.jsonl").exit_code == 0

    result = rollhook("verify", tmp_path / "run.jsonl", "--out", tmp_path / "s.jsonl")

    assert result.exit_code == 0
    exported = [line["reward"] for line in records(tmp_path / "run.jsonl")]
    assert [record["value"] for record in records(tmp_path / "s.jsonl")] == exported
    assert sorted(exported) == [0.0, 0.5, 1.5]


def test_parquet_is_read_with_the_keys_that_are_named(tmp_path: Path, rollhook: Rollhook) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    rows = [{"q": "2 + 2?", "a": "4", "said": "4"}, {"q": "2 + 3?", "a": "5", "said": "4"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "d.parquet")

    keys = ["--input-key", "q", "--label-key", "a", "--response-key", "said"]
    result = rollhook("verify", tmp_path / "d.parquet", "--verifier", "number", *keys)

    assert (result.exit_code, result.output) == (0, "rollhook/number: 2 scored, mean 0.500, failed 0\n")


def test_when_every_row_fails_the_exit_code_is_1(tmp_path: Path, rollhook: Rollhook) -> None:
    data = write_rows(tmp_path / "d.jsonl", row("4", label=None))

    assert rollhook("verify", data).exit_code == 1


@pytest.mark.parametrize(
    ("line", "options", "message"),
    [
        (row("4", verifier="numbr"), [], 'did you mean "number"?'),
        (row("4", verifier=None), [], "the row names nothing to run"),
        ({"prompt": "a"}, ["--verifier", "number"], "response: no such key in the row"),
        (row("4"), ["--verifier", "numbr"], 'did you mean "number"?'),
        (row("4"), ["--verifier", "number", "--compare", "number", "f1"], "exclude each other"),
        (row("4"), ["--out", "scores.csv"], "the name must end in .jsonl"),
        ("not json", [], "not JSON"),
    ],
)
def test_nothing_is_scored_when_something_is_wrong_with_a_row_or_an_option(
    tmp_path: Path, rollhook: Rollhook, line: Any, options: list[str], message: str
) -> None:
    data = write_rows(tmp_path / "d.jsonl", row("4"), line)

    result = rollhook("verify", data, *options)

    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""
