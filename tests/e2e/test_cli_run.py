"""`rollhook run`: real processes, a real tokenizer, real HTTP."""

from __future__ import annotations

import json
import shlex
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollhook.store import read_record, read_rollouts
from rollhook.testing import Fault, Reply, ScriptedEngine
from tests.e2e.conftest import Rollhook, ServeScript, rollhook_process, write_rows

SUM = {"metadata": {"rollhook": {"verifier": "number"}}}


def sums(path: Path, count: int) -> Path:
    return write_rows(
        path, *({"prompt": f"What is {n}+{n}?", "label": str(2 * n), **SUM} for n in range(count))
    )


def indices(out: Path) -> list[int]:
    return [rollout.index for rollout in read_rollouts(out)]


def wait_until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.01)


class Gate:
    """A script that answers `open` requests at once, and makes the rest wait until told otherwise."""

    def __init__(self, at_once: int) -> None:
        self.left = at_once
        self.lock = threading.Lock()

    def __call__(self, request: Any) -> Reply:
        with self.lock:
            self.left -= 1
            return Reply("4", delay_s=0.0 if self.left >= 0 else 3600.0)

    def open(self) -> None:
        with self.lock:
            self.left = 10**6


def test_every_row_becomes_its_rollouts_and_a_summary(
    tmp_path: Path, rollhook: Rollhook, serve: ServeScript
) -> None:
    engine = serve({"What is 2+2?": "It is 4", "What is": "It is 5"})
    data = sums(tmp_path / "sums.jsonl", 3)

    result = rollhook(
        "run", data, "--engine", engine.url, "--out", tmp_path / "out", "--samples-per-prompt", 2
    )

    assert result.exit_code == 0
    rollouts = sorted(read_rollouts(tmp_path / "out"), key=lambda rollout: rollout.index)
    assert [(r.index, r.samples[0].group_index, r.samples[0].reward) for r in rollouts] == [
        (0, 0, 0.0),
        (1, 0, 0.0),
        (2, 1, 0.0),
        (3, 1, 0.0),
        (4, 2, 1.0),
        (5, 2, 1.0),
    ]
    summary = dict(line.split(maxsplit=1) for line in result.stdout.replace("tokens ", "").splitlines())
    assert (summary["rollouts"], summary["siblings"], summary["failed"]) == ("6", "6", "0")
    trained = sum(sum(s.loss_mask or ()) for r in rollouts for s in r.samples)
    assert (summary["sampled"], summary["trained"]) == (str(trained), str(trained))
    assert "mean reward    0.333" in result.stdout


def test_each_rollout_has_a_seed_of_its_own_and_a_run_repeats(
    tmp_path: Path, rollhook: Rollhook, serve: ServeScript
) -> None:
    data = sums(tmp_path / "sums.jsonl", 2)

    def seeds(out: str, *more: object) -> set[tuple[str, int]]:
        engine = serve({"What is": "4"})
        rollhook(
            "run", data, "--engine", engine.url, "--out", tmp_path / out, "--samples-per-prompt", 3, *more
        )
        return {(request.prompt, request.sampling["sampling_seed"]) for request in engine.requests}

    first = seeds("a", "--concurrency", 1)

    assert len(first) == 6
    assert seeds("b", "--concurrency", 6) == first
    assert not seeds("c", "--seed", 1) & first


def test_kill_9_loses_nothing_finished_and_repeats_nothing(
    tmp_path: Path, rollhook: Rollhook, serve: ServeScript
) -> None:
    gate = Gate(at_once=15)
    engine = serve(gate)
    data, out = sums(tmp_path / "sums.jsonl", 40), tmp_path / "out"
    command = ("run", data, "--engine", engine.url, "--out", out, "--concurrency", 4)

    with rollhook_process(*command) as process:
        wait_until(lambda: (out / "rollouts.jsonl").exists() and len(indices(out)) == 15)
        process.kill()
        process.wait()
    before = indices(out)
    gate.open()
    result = rollhook(*command)

    assert result.exit_code == 0
    assert "15 rollouts are in" in result.stderr
    assert indices(out)[:15] == before
    assert Counter(indices(out)) == dict.fromkeys(range(40), 1)
    # 15 answered and up to 4 unanswered requests of the process that was killed, 25 of its successor
    assert 15 + 25 <= len(engine.requests) <= 19 + 25
    assert "rollouts       40\n" in result.stdout


def test_an_interrupted_run_says_how_to_go_on_and_holds_its_directory_until_then(
    tmp_path: Path, rollhook: Rollhook, serve: ServeScript
) -> None:
    gate = Gate(at_once=5)
    engine = serve(gate)
    data, out = sums(tmp_path / "sums.jsonl", 12), tmp_path / "out"
    command = ("run", data, "--engine", engine.url, "--out", out, "--concurrency", 4)

    with rollhook_process(*command) as process:
        wait_until(lambda: len(engine.requests) == 9 and len(indices(out)) == 5)
        refused = rollhook(*command)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)

    assert refused.exit_code == 2
    assert refused.stderr == f"rollhook: {out} is being written by another run (process {process.pid})\n"
    assert process.returncode == 130
    said, again = stderr.splitlines()[-2:]
    assert said == "interrupted: 5 finished rollouts are kept; go on with:"
    wait_until(lambda: len(engine.aborted) == 4)

    gate.open()
    python, dash_m, name, *arguments = shlex.split(again)
    assert (python, dash_m, name) == ("python", "-m", "rollhook")
    assert rollhook(*arguments).exit_code == 0
    assert sorted(indices(out)) == list(range(12))


def test_a_finished_run_asks_the_engine_nothing_more(
    tmp_path: Path, rollhook: Rollhook, serve: ServeScript
) -> None:
    engine = serve(["4"])
    data = sums(tmp_path / "sums.jsonl", 1)
    command = ("run", data, "--engine", engine.url, "--out", tmp_path / "out")
    rollhook(*command)

    result = rollhook(*command)

    assert (result.exit_code, len(engine.requests)) == (0, 1)
    out = tmp_path / "out"
    assert result.stderr.splitlines()[0] == f"1 rollouts are in {out}, 0 are to run"


def test_more_rows_go_on_in_the_same_directory(
    tmp_path: Path, rollhook: Rollhook, serve: ServeScript
) -> None:
    engine = serve({"What is": "4"})
    command = ("run", sums(tmp_path / "s.jsonl", 5), "--engine", engine.url, "--out", tmp_path / "out")

    rollhook(*command, "--limit", 2)
    assert sorted(indices(tmp_path / "out")) == [0, 1]
    rollhook(*command)

    assert sorted(indices(tmp_path / "out")) == [0, 1, 2, 3, 4]
    assert len(engine.requests) == 5


def test_a_directory_of_other_data_or_settings_is_refused(
    tmp_path: Path, rollhook: Rollhook, serve: ServeScript
) -> None:
    engine = serve({"What is": "4"})
    data, out = sums(tmp_path / "sums.jsonl", 1), tmp_path / "out"
    (tmp_path / "hot.yaml").write_text("sampling: {temperature: 2.0}")
    tail = ("--engine", engine.url, "--out", out)
    rollhook("run", data, *tail)

    other_data = rollhook("run", sums(tmp_path / "other.jsonl", 2), *tail)
    other_seed = rollhook("run", data, *tail, "--seed", 5, "--samples-per-prompt", 2)
    other_config = rollhook("run", data, *tail, "--config", tmp_path / "hot.yaml")

    assert [r.exit_code for r in (other_data, other_seed, other_config)] == [2, 2, 2]
    assert f"{out} holds another run: data is '" in other_data.stderr
    assert "samples_per_prompt is 1 there and 2 here; seed is 0 there and 5 here" in other_seed.stderr
    assert "holds another run: configuration is '" in other_config.stderr
    assert len(engine.requests) == 1


def test_nothing_runs_while_a_row_is_bad(tmp_path: Path, rollhook: Rollhook, serve: ServeScript) -> None:
    engine = serve([])
    data = write_rows(
        tmp_path / "d.jsonl",
        {"prompt": "ok", **SUM},
        "oops",
        {"prompt": "a", "metadata": {"rollhook": "nope"}},
    )

    result = rollhook("run", data, "--engine", engine.url, "--out", tmp_path / "out")

    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        f"{data}:2: not JSON: Expecting value (column 1)",
        f'{data}:3: rollhook: no plugin named "nope" is installed',
        f"rollhook: {data} has bad rows: nothing was run",
    ]
    assert (engine.requests, (tmp_path / "out").exists()) == ([], False)


def test_failed_rollouts_are_printed_and_only_a_run_of_failures_fails(
    tmp_path: Path, rollhook: Rollhook, serve: ServeScript
) -> None:
    broken = Reply("4", fault=Fault.missing_logprobs(times=None))
    engine = serve({"What is 1+1?": broken, "What is": "4"})
    one = write_rows(tmp_path / "one.jsonl", {"prompt": "What is 1+1?", **SUM})

    mixed = rollhook(
        "run", sums(tmp_path / "s.jsonl", 3), "--engine", engine.url, "--out", tmp_path / "mixed"
    )
    all_failed = rollhook("run", one, "--engine", engine.url, "--out", tmp_path / "failed")
    again = rollhook("run", one, "--engine", engine.url, "--out", tmp_path / "failed")

    assert [r.exit_code for r in (mixed, all_failed, again)] == [0, 1, 1]
    assert mixed.stderr.startswith("rollout 1 FAILED: engine: ")
    assert "output_token_logprobs" in mixed.stderr
    assert "failed         1 (engine 1)\n" in mixed.stdout
    assert "rollout 0 FAILED: engine: " in again.stderr
    assert again.stderr.splitlines()[0] == (
        f"1 rollouts are in {tmp_path / 'failed'} (1 of them failed; run them again with --retry-failed), "
        "0 are to run"
    )


def test_the_summary_says_which_limits_truncated_and_what_nobody_scored(
    tmp_path: Path, rollhook: Rollhook, serve: ServeScript
) -> None:
    engine = serve({"What is": "It is four and a bit more"})
    short = {"limits": {"max_new_tokens": 2}}
    data = write_rows(
        tmp_path / "rows.jsonl",
        {"prompt": "What is 1+1?", "metadata": {"rollhook": short}},
        {"prompt": "What is 2+2?", "label": "4", "metadata": {"rollhook": {"verifier": "number", **short}}},
        {"prompt": "What is 3+3?", "label": "6", **SUM},
    )

    some = rollhook("run", data, "--engine", engine.url, "--out", tmp_path / "out")
    none = rollhook(
        "run", sums(tmp_path / "s.jsonl", 1), "--engine", engine.url, "--out", tmp_path / "scored"
    )

    assert "truncated      2 (max_new_tokens 2)\n" in some.stdout
    assert "unscored       1\n" in some.stdout
    assert "truncated      0\n" in none.stdout
    assert "unscored" not in none.stdout


def test_an_engine_that_is_not_there_is_one_sentence(tmp_path: Path, rollhook: Rollhook) -> None:
    data = sums(tmp_path / "sums.jsonl", 1)

    away = rollhook("run", data, "--engine", "http://127.0.0.1:9", "--out", tmp_path / "a")
    unnamed = rollhook("run", data, "--out", tmp_path / "b")

    assert (away.exit_code, unnamed.exit_code) == (2, 2)
    assert "Cannot connect to host 127.0.0.1:9" in away.stderr
    assert len(away.stderr.splitlines()) == len(unnamed.stderr.splitlines()) == 1
    assert "set engine (or --engine)" in unnamed.stderr


def test_another_model_is_refused(tmp_path: Path, rollhook: Rollhook, serve: ServeScript) -> None:
    data, out = sums(tmp_path / "sums.jsonl", 2), tmp_path / "out"
    engine = serve({"What is": "4"})
    rollhook("run", data, "--engine", engine.url, "--out", out, "--limit", 1)
    record = json.loads((out / "run.json").read_text())
    record["pinned"]["model"] = "/models/other"
    (out / "run.json").write_text(json.dumps(record))

    result = rollhook("run", data, "--engine", engine.url, "--out", out)

    assert result.exit_code == 2
    assert f"{out} holds another run: model is '/models/other' there and " in result.stderr


def test_the_record_says_how_the_run_was_made(tmp_path: Path, rollhook: Rollhook, serve: ServeScript) -> None:
    engine: ScriptedEngine = serve({"What is": "4"})
    data = sums(tmp_path / "sums.jsonl", 1)
    rollhook("run", data, "--engine", engine.url, "--out", tmp_path / "out", "--evaluation")

    record = read_record(tmp_path / "out")

    assert (record.identity["evaluation"], record.identity["seed"]) == (True, 0)
    assert record.pinned["tokenizer"] == engine.tokenizer.name_or_path
    assert set(record.facts["versions"]) >= {"rollhook", "python"}


@pytest.mark.parametrize("arguments", [("run",), ("run", "none.jsonl", "--out", "out"), ("nonsense",)])
def test_bad_usage_exits_with_2(rollhook: Rollhook, arguments: tuple[str, ...]) -> None:
    assert rollhook(*arguments).exit_code == 2


def test_what_failed_runs_again_only_when_it_is_asked_for(
    tmp_path: Path, rollhook: Rollhook, serve: ServeScript
) -> None:
    data, out = sums(tmp_path / "sums.jsonl", 2), tmp_path / "out"
    broken = serve({"What is 0+0?": "0", "What is": Reply("2", fault=Fault.missing_logprobs())})
    mended = serve({"What is 1+1?": "It is 2"})

    first = rollhook("run", data, "--engine", broken.url, "--out", out)
    same = rollhook("run", data, "--engine", mended.url, "--out", out)
    beyond = rollhook("run", data, "--engine", mended.url, "--out", out, "--limit", 1, "--retry-failed")
    retried = rollhook("run", data, "--engine", mended.url, "--out", out, "--retry-failed")

    assert [r.exit_code for r in (first, same, beyond, retried)] == [0, 0, 0, 0]
    for told in (same, beyond):
        assert "failed         1 (engine 1)\n" in told.stdout
    assert "1 rollouts are in" in retried.stderr
    assert [len(mended.requests), [r.samples[0].reward for r in read_rollouts(out, by_index=True)]] == [
        1,
        [1.0, 1.0],
    ]
