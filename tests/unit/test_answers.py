"""Rows that hold answers already."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollhook.answers import Answer, read_answers
from rollhook.data import BadRow, DataKeys
from rollhook.export import export_run
from rollhook.sample import Sample, Status
from rollhook.store import RunRecord, RunStore


def written(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def answers_in(path: Path, key: str = "response") -> list[Answer | BadRow]:
    return list(read_answers(path, DataKeys(), key))


def test_rows_of_one_prompt_that_follow_each_other_are_a_group(tmp_path: Path) -> None:
    rows = [{"prompt": prompt, "label": 1, "said": said} for prompt, said in ("ax", "ay", "bz", "aw")]
    found = answers_in(written(tmp_path / "d.jsonl", *rows), "said")

    samples = [answer.sample for answer in found if isinstance(answer, Answer)]
    assert [(s.group_index, s.index, s.response, s.label) for s in samples] == [
        (0, 1, "x", 1),
        (0, 2, "y", 1),
        (1, 3, "z", 1),
        (2, 4, "w", 1),
    ]


def test_a_row_without_text_to_score_is_bad(tmp_path: Path) -> None:
    path = written(tmp_path / "d.jsonl", {"prompt": "a"}, {"prompt": "a", "response": 4}, {"response": "a"})

    assert answers_in(path) == [
        BadRow(1, "response", "no such key in the row (it has: prompt, metadata, tools)"),
        BadRow(2, "response", "a response is text, not int"),
        BadRow(3, "prompt", "no such key in the row (it has: response)"),
    ]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_an_exported_run_is_read_back_with_its_groups_labels_and_failures(
    tmp_path: Path, suffix: str
) -> None:
    pytest.importorskip("pyarrow")
    error = {"stage": "tool", "plugin": "w/echo", "type": "OSError", "message": "the disk is full"}
    done = Sample(
        index=0,
        group_index=3,
        rollout_id=7,
        prompt=[{"role": "user", "content": "q"}],
        response="4<|im_end|>",
        label=["4", "four"],
        status=Status.COMPLETED,
        metadata={"rollhook": {"verifier": "number"}, "rollhook_result": {"answer": "4"}},
    )
    failed = Sample(
        index=1,
        rollout_id=8,
        prompt="q",
        status=Status.FAILED,
        metadata={"rollhook_result": {"error": error}},
    )
    with RunStore(tmp_path / "run", RunRecord({})) as store:
        store.append(0, [done])
        store.append(1, [failed])
    export_run(tmp_path / "run", tmp_path / f"out{suffix}")

    first, second = answers_in(tmp_path / f"out{suffix}")

    assert isinstance(first, Answer)
    assert isinstance(second, Answer)
    read = first.sample
    assert (read.prompt, read.label, read.response) == (done.prompt, done.label, done.response)
    assert (read.group_index, read.rollout_id, read.metadata) == (3, 7, done.metadata)
    assert first.failed is None
    assert str(second.failed) == "its rollout failed: the disk is full"
