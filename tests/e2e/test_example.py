"""The example runs as the README says, with the real small model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_multi_agent_example_ends_with_its_figures_and_what_to_try_next(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "multi_agent" / "run.py")]
    options = ["--out", str(tmp_path), "--problems", "1", "--samples-per-prompt", "1"]
    ran = subprocess.run([*command, *options], capture_output=True, text=True, timeout=170, check=False)

    assert ran.returncode == 0, ran.stderr
    samples = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert [s["metadata"]["rollhook_result"]["role"] for s in samples] == ["agent_1", "agent_2", "agent_3"]
    trained = sum(sum(sample["loss_mask"]) for sample in samples)
    assert trained == samples[0]["metadata"]["rollhook_result"]["sampled_tokens"] > 0
    table = {
        line.split("│")[1].strip(): line.split("│")[2].strip()
        for line in ran.stdout.splitlines()
        if line.count("│") == 3
    }
    assert {name: table[name] for name in ("rollouts", "failed", "tokens trained")} == {
        "rollouts": "1",
        "failed": "0",
        "tokens trained": str(trained),
    }
    assert {"mean reward of single agents", "mean reward of the vote", "wall time"} <= set(table)
    assert [
        line.split()[1]
        for line in ran.stdout.splitlines()
        if line.startswith("  ") and "rollhook" in line.split()[0]
    ] == [
        "show",
        "export",
        "serve",
    ]
