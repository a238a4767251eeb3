"""The examples run as their README says, with the real small model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rollhook import Plugins
from tests.e2e.conftest import Rollhook

EXAMPLE = Path(__file__).parents[2] / "examples" / "multi_agent"


def test_the_multi_agent_example_ends_with_its_figures_and_what_to_try_next(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE / "run.py")]
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


def riddles(out: Path) -> Path:
    data = out / "riddles.jsonl"
    command = [sys.executable, str(EXAMPLE / "make_data.py"), str(data), "--problems", "1", "--unnamed"]
    subprocess.run(command, check=True, timeout=60)
    return data


@pytest.mark.parametrize("variant", sorted(path.name for path in (EXAMPLE / "variants").glob("*.yaml")))
def test_every_variant_runs_on_the_riddles(variant: str, tmp_path: Path, rollhook: Rollhook) -> None:
    checked = rollhook("check", riddles(tmp_path), "--config", EXAMPLE / "variants" / variant)

    assert (checked.exit_code, checked.output) == (0, "1 rows, no problems\n")


def test_there_is_a_variant_for_each_shipped_topology() -> None:
    named = [
        yaml.safe_load(path.read_text())["default"]["topology"] for path in EXAMPLE.glob("variants/*.yaml")
    ]
    plugins = Plugins()
    shipped = {f"topologies/{name}" for name in plugins.load("topologies").topologies}

    assert {use if isinstance(use, str) else use["name"] for use in named} == shipped | {"single", "debate"}


def test_the_comparison_ends_with_a_table_and_leaves_a_picture_of_each_run(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE / "compare.py"), "--out", str(tmp_path)]
    options = ["--problems", "1", "--samples-per-prompt", "1", "--only", "self-play"]
    ran = subprocess.run([*command, *options], capture_output=True, text=True, timeout=170, check=False)

    assert ran.returncode == 0, ran.stderr
    rows = [line.split("│")[1:-1] for line in ran.stdout.splitlines() if line.startswith("│")]
    assert [row[0].strip() for row in rows] == ["single", "self-play"]
    assert [row[1].strip() for row in rows] == ["0", "0"]
    for name in ("single", "self-play"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG\r\n")
