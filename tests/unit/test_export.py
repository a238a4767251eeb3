"""A run's samples as one training file."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from rollhook.errors import DataError
from rollhook.export import export_run
from rollhook.sample import Sample, Status
from rollhook.store import RunRecord, RunStore


def a_sample(index: int, segment: int = 0, **changes: Any) -> Sample:
    values: dict[str, Any] = {
        "index": index,
        "group_index": index,
        "rollout_id": 2**62 + index,
        "prompt": f"question {index}",
        "label": "42",
        "tokens": [5, 6, 7],
        "response": "héllo",
        "response_length": 2,
        "loss_mask": [1, 0],
        "rollout_log_probs": [-0.123456789012345, 0.0],
        "reward": 0.5,
        "status": Status.COMPLETED,
        "weight_versions": ["3"],
        "metadata": {"rollhook": "debate", "rollhook_result": {"segment": segment}},
    }
    return Sample(**{**values, **changes})


def a_run(directory: Path, *rollouts: list[Sample]) -> Path:
    with RunStore(directory, RunRecord({})) as store:
        for samples in rollouts:
            assert samples[0].index is not None
            store.append(samples[0].index, samples)
    return directory


def parquet_rows(path: Path) -> list[dict[str, Any]]:
    table = pytest.importorskip("pyarrow.parquet").read_table(path)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def parquet_type(path: Path, column: str) -> str:
    return str(pytest.importorskip("pyarrow.parquet").read_schema(path).field(column).type)


def test_json_lines_hold_every_sample_ordered_by_index_and_segment(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", [a_sample(2)], [a_sample(0, 1), a_sample(0, 0)], [a_sample(1)])

    assert export_run(run, tmp_path / "out.jsonl") == 4

    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    order = [(row["index"], row["metadata"]["rollhook_result"]["segment"]) for row in rows]
    assert order == [(0, 0), (0, 1), (1, 0), (2, 0)]
    assert [row["status"] for row in rows] == ["completed"] * 4
    assert Sample.from_dict(rows[2]) == a_sample(1)


def test_parquet_round_trips_every_field(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", [a_sample(1)], [a_sample(0)])

    assert export_run(run, tmp_path / "out.parquet") == 2

    row = parquet_rows(tmp_path / "out.parquet")[1]
    assert list(row) == [field.name for field in fields(Sample)]
    assert isinstance(row["metadata"], str)
    assert Sample.from_dict({**row, "metadata": json.loads(row["metadata"])}) == a_sample(1)


def test_parquet_holds_structured_prompts_labels_and_rewards_as_json_text(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "héllo"}]
    run = a_run(
        tmp_path / "run",
        [a_sample(0, prompt=messages, label={"answer": 4}, reward={"main": 1.0})],
        [a_sample(1, prompt="plain", label="[plain]", reward=0.5)],
        [a_sample(2, label=None, reward=None)],
    )

    export_run(run, tmp_path / "out.parquet")

    first, second, third = parquet_rows(tmp_path / "out.parquet")
    assert (json.loads(first["prompt"]), json.loads(first["label"])) == (messages, {"answer": 4})
    assert json.loads(first["reward"]) == {"main": 1.0}
    assert (second["prompt"], second["label"], json.loads(second["reward"])) == ("plain", "[plain]", 0.5)
    assert (third["label"], third["reward"]) == (None, None)


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ([1, 2], "int64"),
        ([1, 2.5], "double"),
        ([True, None], "bool"),
        (["a", 1], "string"),
        ([2**70, 1], "string"),
        ([None, None], "string"),
    ],
)
def test_scalar_labels_keep_their_own_parquet_type(tmp_path: Path, labels: list[Any], kind: str) -> None:
    run = a_run(tmp_path / "run", *([a_sample(i, label=label)] for i, label in enumerate(labels)))

    export_run(run, tmp_path / "out.parquet")

    assert parquet_type(tmp_path / "out.parquet", "label") == kind
    assert [row["label"] for row in parquet_rows(tmp_path / "out.parquet")] == [
        str(label) if kind == "string" and label is not None else label for label in labels
    ]


def test_rewards_nobody_gave_are_a_column_of_numbers(tmp_path: Path) -> None:
    export_run(a_run(tmp_path / "run", [a_sample(0, reward=None)]), tmp_path / "out.parquet")

    assert parquet_type(tmp_path / "out.parquet", "reward") == "double"


def test_parquet_takes_text_that_utf8_cannot_hold(tmp_path: Path) -> None:
    export_run(a_run(tmp_path / "run", [a_sample(0, response="a\ud800b")]), tmp_path / "out.parquet")

    assert parquet_rows(tmp_path / "out.parquet")[0]["response"] == "a?b"


def test_a_run_without_rollouts_gives_an_empty_file(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")

    assert export_run(run, tmp_path / "out.jsonl") == 0
    assert export_run(run, tmp_path / "out.parquet") == 0
    assert (tmp_path / "out.jsonl").read_bytes() == b""
    assert parquet_rows(tmp_path / "out.parquet") == []


def test_an_export_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", [a_sample(0)])
    with (run / "rollouts.jsonl").open("ab") as file:
        file.write(b'{"index":1,"samples":[{"unknown_field":1}]}\n')
    (tmp_path / "out.jsonl").write_text("old")

    with pytest.raises(DataError, match="damaged at rollout 1"):
        export_run(run, tmp_path / "out.jsonl")

    assert (tmp_path / "out.jsonl").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "run"]


def test_what_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")

    with pytest.raises(DataError, match=r"out\.csv: the name must end in \.jsonl or \.parquet"):
        export_run(run, tmp_path / "out.csv")
    with pytest.raises(DataError, match=r"out\.jsonl: No such file or directory"):
        export_run(run, tmp_path / "nowhere" / "out.jsonl")
    with pytest.raises(DataError, match="no run here"):
        export_run(tmp_path, tmp_path / "out.jsonl")
