"""Write word problems as rows: `python make_data.py OUT.jsonl [--problems 12] [--seed 7]`.

The problems are the "Alice in Wonderland" riddles (arXiv 2406.02061) of the package reasoning-gym: "Susan has
2 brothers and she also has 6 sisters. How many sisters does Susan's brother have?" Each prompt shows a few
solved riddles of another seed, which a model of 135M parameters needs. The same seed writes the same file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import reasoning_gym
from reasoning_gym.logic.aiw import TaskType

SHOTS = 4
SHOTS_SEED = 1234


def riddles(size: int, seed: int) -> Iterator[tuple[str, int]]:
    """`size` riddles and their answers."""
    siblings = {"task_types": [TaskType.SIBLINGS], "task_type_weights": [1.0], "max_entities": 6}
    for entry in reasoning_gym.create_dataset("aiw", size=size, seed=seed, **siblings):
        yield entry["question"].strip(), int(entry["answer"])


def solved() -> list[dict[str, str]]:
    """The riddles each prompt opens with, as a conversation."""
    messages = [{"role": "system", "content": "Solve the riddle."}]
    for question, answer in riddles(SHOTS, SHOTS_SEED):
        solution = f"{answer - 1} + 1 = {answer}. The answer is {answer}."
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": solution}]
    return messages


def rows(problems: int, seed: int, *, unnamed: bool = False) -> Iterator[dict[str, Any]]:
    """One row a riddle. What to run is the row's own choice: a debate, scored by its last number.

    unnamed: it says nothing of that, so that the run configuration decides.
    """
    named = {} if unnamed else {"rollhook": {"topology": "debate", "verifier": "number"}}
    for question, answer in riddles(problems, seed):
        prompt = [*solved(), {"role": "user", "content": question}]
        yield {"prompt": prompt, "label": str(answer), "metadata": named}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write riddles as rows for rollhook.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--problems", type=int, default=12)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--unnamed", action="store_true", help="leave what to run to the configuration")
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    made = rows(arguments.problems, arguments.seed, unnamed=arguments.unnamed)
    lines = [json.dumps(row, ensure_ascii=False) for row in made]
    arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
