"""Answers from public data sets that packages ship, as rows for `rollhook verify`.

    pip install --no-deps lm-eval bfcl-eval && pip install reasoning-gym
    python -m tests.unit.verifiers.public_data DIR

Nothing of these packages but their files is used, except reasoning-gym, which makes tasks and scores answers.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

Row = dict[str, Any]

_TASKS = (
    *("gsm_symbolic", "polynomial_equations", "polynomial_multiplication", "simple_integration"),
    *("fraction_simplification", "complex_arithmetic", "decimal_arithmetic", "simple_equations", "gcd"),
    *("lcm", "prime_factorization", "power_function", "products", "number_format", "time_intervals"),
    *("advanced_geometry", "count_primes", "bitwise_arithmetic"),
)


def folder(package: str) -> Path:
    """Where an installed package's files are. Raises ImportError."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ImportError(f"{package} is not installed")
    return Path(spec.origin).parent


def choices() -> Iterator[Row]:
    """Worked answers to multiple choice, by people: MMLU (5 a subject) and BIG-Bench Hard, from lm-eval."""
    tasks = folder("lm_eval") / "tasks"
    subjects = json.loads((tasks / "mmlu/flan_cot_fewshot/_cot_prompts.json").read_text())
    for text in subjects.values():
        for block in text.split("\n\nQ: ")[1:]:
            question, _, answer = block.partition("\nA: ")
            yield from _choice(question, answer.strip())
    for path in sorted((tasks / "bbh/cot_fewshot").glob("*.yaml")):
        for shot in (yaml.safe_load(path.read_text()).get("fewshot_config") or {}).get("samples", ()):
            yield from _choice(shot["input"], shot["target"].strip())


def _choice(question: str, answer: str) -> Iterator[Row]:
    """The label is the letter in the closing sentence, which all these answers share."""
    if found := re.search(r"answer is \(?([A-Z])\)?\.?$", answer):
        yield {"prompt": question, "label": found[1], "response": answer}


def names() -> Iterator[Row]:
    """Short answers against the other ways to say them, from BFCL's memory and web-search categories."""
    for kind in ("memory", "web_search"):
        path = folder("bfcl_eval") / f"data/possible_answer/BFCL_v4_{kind}.json"
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            accepted = entry["ground_truth"]
            for index, said in enumerate(accepted if isinstance(accepted, list) else []):
                if others := accepted[:index] + accepted[index + 1 :]:
                    yield {"prompt": entry["id"], "label": others, "response": said}


def mathematics(size: int = 3, tasks: tuple[str, ...] = _TASKS) -> Iterator[Row]:
    """reasoning-gym's answers in several forms, right and wrong, each with its own score: `judged`."""
    import reasoning_gym

    for task in tasks:
        data = reasoning_gym.create_dataset(task, size=size, seed=11)
        for entry in data:
            for form, said in _forms(str(entry["answer"])):
                try:
                    judged = float(data.score_answer(said, entry))
                except ValueError:
                    judged = None
                yield {
                    "task": task,
                    "form": form,
                    "judged": judged,
                    "prompt": entry["question"],
                    "label": str(entry["answer"]),
                    "response": f"The answer is \\boxed{{{said}}}.",
                }


def _forms(answer: str) -> Iterator[tuple[str, str]]:
    yield "as it is", answer
    yield "a word more", f"{answer} (approximately)"
    if re.fullmatch(r"-?\d+", answer):
        number = int(answer)
        yield "thousands", f"{number:,}"
        yield "point zero", f"{number}.0"
        yield "unit", f"{number}\\text{{ apples}}"
        yield "unreduced", f"\\frac{{{2 * number}}}{{2}}"
        yield "off by one", str(number + 1)
        yield "negated", str(-number)
        yield "two answers", f"{number}, {number + 1}"
    elif re.fullmatch(r"-?\d+\.\d+", answer):
        exact = Fraction(answer)
        yield "fraction", f"\\frac{{{exact.numerator}}}{{{exact.denominator}}}"
        yield "rounded", f"{float(answer):.1f}"
    else:
        yield "last part", answer.rsplit(maxsplit=1)[-1]
        yield "LaTeX", answer.replace("**", "^").replace("*", " \\cdot ")


def main() -> None:
    """Write the rows as files."""
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for rows in (choices, names, mathematics):
        path = target / f"{rows.__name__}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows()), encoding="utf-8")


if __name__ == "__main__":
    main()
