"""`rollhook show` and `rollhook export` on a stored run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollhook.sample import Sample, Status, write_placeholder, write_tokens
from rollhook.store import RunRecord, RunStore
from tests.e2e.conftest import Rollhook

GREEN, MAGENTA, DIM = "\x1b[32m", "\x1b[35m", "\x1b[2m"


def a_sibling(tokenizer: Any, segment: int, role: str, said: str) -> Sample:
    prompt = tokenizer.encode("<|im_start|>user\nHow many?<|im_end|>\n<|im_start|>assistant\n")
    sampled = tokenizer.encode(f"{said}<|im_end|>")
    rest = tokenizer.encode("\n<|im_start|>user\ntool says 3")
    sample = Sample(index=1, group_index=0, rollout_id=1, prompt="How many?", label="3", reward=1.0)
    write_tokens(
        sample,
        tokens=prompt + sampled + rest,
        prompt_length=len(prompt),
        loss_mask=[1] * len(sampled) + [0] * len(rest),
        log_probs=[-0.5] * len(sampled) + [0.0] * len(rest),
    )
    sample.response, sample.status = said, Status.COMPLETED
    forks = [{"turn": 1, "reason": "history changed"}] if segment else []
    sample.metadata = {
        "rollhook_result": {
            "kind": "final",
            "role": role,
            "segment": segment,
            "segments": 2,
            "forks": forks,
            "error": None,
            "turns": 1,
            "request_ids": [],
        }
    }
    return sample


def a_failure() -> Sample:
    failed = Sample(
        index=0, group_index=0, rollout_id=0, reward=0.0, remove_sample=True, status=Status.FAILED
    )
    write_placeholder(failed)
    error = {
        "stage": "tool",
        "plugin": "calculator/calculator",
        "type": "ToolError",
        "message": "boom\nbang",
        "where": "calculator.py:9 in call",
    }
    failed.metadata = {"rollhook_result": {"role": "main", "error": error, "forks": []}}
    return failed


@pytest.fixture
def run(tmp_path: Path, smollm2_tokenizer: Any) -> Path:
    with RunStore(tmp_path / "run", RunRecord({})) as store:
        store.pin(tokenizer=smollm2_tokenizer.name_or_path)
        siblings = [("solver", "three 🙂\nor\x1b[2J"), ("critic", "right")]
        store.append(1, [a_sibling(smollm2_tokenizer, i, *said) for i, said in enumerate(siblings)])
        store.append(0, [a_failure()])
    return tmp_path / "run"


def test_a_run_is_a_table_of_its_rollouts_by_index(run: Path, rollhook: Rollhook) -> None:
    result = rollhook("show", run)

    rows = [line.split(maxsplit=9) for line in result.stdout.splitlines()]
    assert rows[0][:9] == [
        *("index", "group", "status", "reward", "samples", "turns", "sampled", "trained", "forks")
    ]
    assert rows[1][:5] == ["0", "0", "failed", "0.000", "1"]
    assert rows[1][9].strip() == "tool (calculator/calculator): boom bang (calculator.py:9 in call)"
    assert rows[2][:6] == ["1", "0", "completed", "1.000", "2", "2"]
    assert (rows[2][8], rows[2][9].strip()) == ("1", "solver, critic")


def test_without_colour_marks_tell_siblings_and_trained_tokens_apart(run: Path, rollhook: Rollhook) -> None:
    result = rollhook("show", run, 1)

    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    lines = result.stdout.splitlines()
    assert [line for line in lines if line.startswith(("A +", "A -"))] == [
        "A - <|im_start|>user⏎",
        "A - How many?<|im_end|>⏎",
        "A - <|im_start|>assistant⏎",
        "A + three 🙂⏎",
        "A + or\\x1b[2J<|im_end|>",
        "A - ⏎",
        "A - <|im_start|>user⏎",
        "A - tool says 3",
    ]
    assert [line for line in lines if line.startswith("B +")] == ["B + right<|im_end|>"]
    header = next(line for line in lines if line.startswith("B   "))
    assert "segment 2/2  kind final  role critic  status completed  reward 1.000  turns 1" in header
    assert header.endswith("forks 1 (turn 1: history changed)")


def test_with_colour_siblings_have_their_own_and_masked_tokens_are_dim(run: Path, rollhook: Rollhook) -> None:
    lines = rollhook("show", run, 1, "--color").stdout.splitlines()

    assert any(line.startswith(f"{GREEN}A + ") and f"{GREEN}three 🙂" in line for line in lines)
    assert any(line.startswith(f"{MAGENTA}B + ") and f"{MAGENTA}right<|im_end|>" in line for line in lines)
    assert any(line.startswith(f"{GREEN}A - ") and f"{DIM}tool says 3" in line for line in lines)


def test_no_color_wins_over_a_terminal(
    run: Path, rollhook: Rollhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in rollhook("show", run, 1).stdout
    assert "\x1b" not in rollhook("show", run, 1, "--no-color").stdout

    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in rollhook("show", run, 1).stdout


def test_without_its_tokenizer_a_rollout_shows_its_text_and_says_why(run: Path, rollhook: Rollhook) -> None:
    result = rollhook("show", run, 1, "--tokenizer", run / "nowhere")

    assert result.exit_code == 0
    assert "B ? right\n" in result.stdout
    assert "(without its tokenizer a rollout shows only response text: " in result.stdout


def test_a_failed_rollout_shows_its_cause(run: Path, rollhook: Rollhook) -> None:
    shown = rollhook("show", run, 0).stdout

    assert "A   tool (calculator/calculator): boom bang (calculator.py:9 in call)\n" in shown


def test_a_truncated_rollout_shows_its_limit(
    tmp_path: Path, smollm2_tokenizer: Any, rollhook: Rollhook
) -> None:
    cut = a_sibling(smollm2_tokenizer, 0, "solver", "so")
    cut.status = Status.TRUNCATED
    cut.metadata["rollhook_result"]["limit"] = "max_turns"
    with RunStore(tmp_path / "run", RunRecord({})) as store:
        store.append(0, [cut])

    table, one = rollhook("show", tmp_path / "run"), rollhook("show", tmp_path / "run", 0)

    assert table.stdout.splitlines()[1].rstrip().endswith("solver (max_turns)")
    assert "role solver  status truncated (max_turns)  reward" in one.stdout


def test_what_is_not_there_exits_with_2(run: Path, tmp_path: Path, rollhook: Rollhook) -> None:
    no_rollout = rollhook("show", run, 9)
    no_run = rollhook("show", tmp_path)

    assert (no_rollout.exit_code, no_run.exit_code) == (2, 2)
    assert no_rollout.stderr == f"rollhook: {run}: no finished rollout 9 (2 finished: indices 0 to 1)\n"
    assert no_run.stderr == f"rollhook: {tmp_path}: no run here (there is no run.json)\n"


def test_export_writes_the_samples_in_order_and_says_how_many(
    run: Path, tmp_path: Path, rollhook: Rollhook
) -> None:
    result = rollhook("export", run, tmp_path / "out.jsonl")

    assert (result.exit_code, result.stdout) == (0, f"3 samples written to {tmp_path / 'out.jsonl'}\n")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(row["index"], row["status"]) for row in rows] == [
        (0, "failed"),
        (1, "completed"),
        (1, "completed"),
    ]
    assert rollhook("export", run, tmp_path / "out.txt").exit_code == 2
