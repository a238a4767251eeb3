"""The whole example: riddles, a debate on the embedded engine, and what came of it.

    python examples/multi_agent/run.py [--out out/multi_agent] [--problems 12] [--samples-per-prompt 2]

Run again, it goes on where it stopped. It runs the commands it prints; you can type them yourself.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from commands import SEED, rollhook, shown
from exported import read_rollouts
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
CONFIG = HERE / "rollhook.yaml"


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a debate over riddles and show what came of it.")
    parser.add_argument("--out", type=Path, default=Path("out/multi_agent"), help="where everything goes")
    parser.add_argument("--problems", type=int, default=12)
    parser.add_argument("--samples-per-prompt", type=int, default=2)
    arguments = parser.parse_args()
    data, run = arguments.out / "riddles.jsonl", arguments.out / "run"
    exported = arguments.out / "samples.jsonl"

    problems = ["--problems", str(arguments.problems), "--seed", str(SEED)]
    samples = ["--samples-per-prompt", str(arguments.samples_per_prompt)]
    start = time.monotonic()
    for command in (
        [sys.executable, str(HERE / "make_data.py"), str(data), *problems],
        rollhook("check", data, "--config", CONFIG),
        rollhook(
            "run", data, "--engine", "embedded", "--out", run, "--config", CONFIG, "--retry-failed", *samples
        ),
        rollhook("export", run, exported),
    ):
        sys.stdout.write(f"$ {shown(command)}\n")
        sys.stdout.flush()
        code = subprocess.run(command, check=False).returncode
        if code:
            return code
    summarise(exported, wall_time_s=time.monotonic() - start)
    sys.stdout.write("\nTry next:\n")
    for following, why in (
        (rollhook("show", run, 0), "one rollout, token by token"),
        (rollhook("export", run, exported.with_suffix(".parquet")), "the samples for a trainer"),
        (rollhook("serve"), "the model behind SGLang's API: `rollhook run --engine URL` works with it"),
    ):
        sys.stdout.write(f"  {shown(following)}\n      {why}\n")
    return 0


def summarise(exported: Path, *, wall_time_s: float) -> None:
    """Print the figures of the run."""
    rollouts = list(read_rollouts(exported))
    samples = [sample for siblings in rollouts for sample in siblings]
    results = [siblings[0]["metadata"]["rollhook_result"] for siblings in rollouts]
    scores = [result["scores"] for result in results if result["scores"]]
    table = Table(title="multi-agent debate", show_header=False)
    table.add_column(justify="left")
    table.add_column(justify="right")
    for name, value in {
        "rollouts": len(rollouts),
        "failed": sum(result["error"] is not None for result in results),
        "siblings (samples to train on)": len(samples),
        "tokens sampled": sum(result["sampled_tokens"] for result in results),
        "tokens trained": sum(sum(sample["loss_mask"]) for sample in samples),
        "forks": sum(len(sample["metadata"]["rollhook_result"]["forks"]) for sample in samples),
        "mean reward of single agents": mean([score["single"] for score in scores]),
        "mean reward of the vote": mean([score["vote"] for score in scores]),
        "wall time": f"{wall_time_s:.0f} s",
    }.items():
        table.add_row(name, str(value))
    Console().print(table)


def mean(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f}" if values else "-"


if __name__ == "__main__":
    sys.exit(main())
