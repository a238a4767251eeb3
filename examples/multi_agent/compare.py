"""Topologies side by side: the same riddles, and single agents that may sample as many tokens.

    python examples/multi_agent/compare.py [--out out/variants] [--problems 12] [--only debate single]

Each file in `variants/` is one run. For each it leaves the samples and a picture of who said what, and at the
end it prints a table. Run again, it goes on where it stopped.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from commands import SEED, rollhook, shown
from exported import read_rollouts
from rich.console import Console
from rich.table import Table
from tree import draw, run_tree

from rollhook_debate.answers import EXTRACTORS, majority

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
VARIANTS = HERE / "variants"
BASELINE = "single"
BASELINE_SAMPLES = 12
"""Single answers for each riddle, from which votes of every size are drawn."""
DRAWS = 500


@dataclass(frozen=True)
class Ran:
    """One variant's run. tokens: sampled in a rollout, on average."""

    name: str
    rollouts: Sequence[Sequence[dict[str, Any]]]

    @property
    def results(self) -> list[dict[str, Any]]:
        return [siblings[0]["metadata"]["rollhook_result"] for siblings in self.rollouts]

    @property
    def tokens(self) -> float:
        return fmean(result["sampled_tokens"] for result in self.results)

    @property
    def reward(self) -> float:
        return fmean(result["rollout_reward"] or 0.0 for result in self.results)

    @property
    def segments(self) -> float:
        return fmean(len(siblings) for siblings in self.rollouts)

    @property
    def failed(self) -> int:
        return sum(result["error"] is not None for result in self.results)


def main() -> int:
    names = sorted(path.stem for path in VARIANTS.glob("*.yaml"))
    parser = argparse.ArgumentParser(description="Run every topology on the same riddles and compare them.")
    parser.add_argument("--out", type=Path, default=Path("out/variants"), help="where everything goes")
    parser.add_argument("--problems", type=int, default=12)
    parser.add_argument("--samples-per-prompt", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="VARIANT", help="these")
    arguments = parser.parse_args()
    out, data = arguments.out.resolve(), arguments.out.resolve() / "riddles.jsonl"

    problems = ["--problems", str(arguments.problems), "--seed", str(SEED)]
    call([sys.executable, str(HERE / "make_data.py"), str(data), "--unnamed", *problems])
    runs = {}
    for name in dict.fromkeys([BASELINE, *arguments.only]):
        samples = BASELINE_SAMPLES if name == BASELINE else arguments.samples_per_prompt
        runs[name] = run_variant(name, data, out, samples)
        draw(run_tree(name, runs[name].rollouts, shown=2), out / f"{name}.png")
    Console(width=110).print(table(runs))
    pictures = ", ".join(str(out / f"{name}.png") for name in runs)
    sys.stdout.write(f"Pictures of the runs: {pictures}\n")
    return 0


def run_variant(name: str, data: Path, out: Path, samples: int) -> Ran:
    """Run the riddles under `variants/<name>.yaml`."""
    run, exported = out / name, out / f"{name}.jsonl"
    config = VARIANTS / f"{name}.yaml"
    options = ["--engine", "embedded", "--config", config, "--samples-per-prompt", samples]
    call(rollhook("run", data, "--out", run, *options))
    call(rollhook("export", run, exported))
    return Ran(name, list(read_rollouts(exported)))


def call(command: Sequence[str]) -> None:
    sys.stdout.write(f"$ {shown(command)}\n")
    sys.stdout.flush()
    subprocess.run(command, check=True, cwd=ROOT)


def table(runs: dict[str, Ran]) -> Table:
    """What each run came to, beside votes of single agents that sampled as many tokens."""
    single = runs[BASELINE]
    shown = Table(title=f"{len(voters(single))} riddles, SmolLM2-135M, seed {SEED}")
    for column in (
        "topology",
        "failed",
        "samples a rollout",
        "tokens a rollout",
        "reward",
        "vote of single agents",
    ):
        shown.add_column(column, justify="left" if column == "topology" else "right")
    for ran in runs.values():
        agents = max(1, round(ran.tokens / single.tokens))
        uses_riddles = ran.results[0]["environment"] is None
        beside = f"{voted(single, agents):.2f} ({agents} of them)" if uses_riddles else "-"
        figures = (f"{ran.failed}", f"{ran.segments:.1f}", f"{ran.tokens:.0f}", f"{ran.reward:.2f}", beside)
        shown.add_row(ran.name, *figures)
    return shown


def voters(single: Ran) -> list[list[dict[str, Any]]]:
    """The samples of single agents, by riddle."""
    riddles: dict[int, list[dict[str, Any]]] = {}
    for (sample,) in single.rollouts:
        riddles.setdefault(sample["group_index"], []).append(sample)
    return list(riddles.values())


def voted(single: Ran, agents: int) -> float:
    """The share of right votes when `agents` single agents vote on each riddle: the mean over many draws.

    More agents than there are answers are as many as there are.
    """
    rng, read, right = random.Random(SEED), EXTRACTORS["number"], []
    for answers in voters(single):
        for _ in range(DRAWS):
            drawn = rng.sample(answers, min(agents, len(answers)))
            vote = majority([read(one["metadata"]["rollhook_result"]["answer"] or "") for one in drawn])
            right.append(vote is not None and vote.text == answers[0]["label"])
    return fmean(right)


if __name__ == "__main__":
    sys.exit(main())
