"""Compares answers with math-verify, in a process of its own that imports nothing else.

Lines of JSON. First it says "ready". Then for each {"labels", "answer", "boxed", "timeout_s"} it says
"labels", once they are read, then {"right", "answered"}.

Invariant: a comparison ends within timeout_s, if need be with the process: on some inputs sympy hangs inside
C, where no Python signal handler runs, so the alarm keeps its default action, death. Only what was read whole
is mathematics: math-verify by itself finds a number in what it cannot read, and takes words for products.
"""

import json
import logging
import re
import resource
import signal
import sys
from typing import Any

_MEMORY_BYTES = 2 << 30
_FUNCTIONS = "(?:arc)?(?:sin|cos|tan)h?|cot|sec|csc|log|exp|sqrt|lim|max|min|gcd|lcm|mod|det"
_WORD = re.compile(rf"(?!(?:{_FUNCTIONS})(?![A-Za-z]))(?<![A-Za-z\\])[A-Za-z]{{3,}}")
_CLOCK_OR_HEX = re.compile(r"\d+:\d+:\d|\b0[xob][0-9a-fA-F]+\b")
_SCIENTIFIC = re.compile(r"([+-]?\d+(?:\.\d*)?)[eE]([+-]?\d+)")
_PYTHON_POWER = re.compile(r"\*\*\s*(-?\w+)")
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|operatorname)\s*\{([^{}]*)\}")


def main() -> None:
    """Answer until standard input closes."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    logging.disable(logging.CRITICAL)
    import math_verify  # type: ignore[import-untyped]  # ships no types

    judge = Judge(math_verify)
    judge.is_right(judge.read(r"\frac{1}{2}"), judge.read("x^2=4"))  # what loads late counts as starting
    say("ready")
    for line in sys.stdin.buffer:
        question = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, question["timeout_s"])
        verdict = judge.verdict(question)
        signal.setitimer(signal.ITIMER_REAL, 0)
        say(verdict)


def say(value: Any) -> None:
    """One line out."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


class Judge:
    """math-verify, asked for whole readings only."""

    def __init__(self, math: Any) -> None:
        self._math = math
        self._latex = [math.LatexExtractionConfig(boxed_match_priority=0)]

    def verdict(self, question: dict[str, Any]) -> dict[str, Any]:
        """Whether the answer is one of the labels: as mathematics, or where one of them is none, as text."""
        answer, labels = question["answer"], question["labels"]
        golds = [self.read(label) for label in labels]
        say("labels")
        said = _plain(answer)
        if any(said == _plain(label) for label in labels):
            return {"right": True, "answered": True}
        given = self.read(answer) if question["boxed"] else self.find(answer)
        right = given is not None and any(gold is not None and self.is_right(gold, given) for gold in golds)
        return {"right": right, "answered": bool(said)}

    def read(self, text: str) -> Any:
        """All of a boxed text as mathematics; None when it is none."""
        return self._parse(f"\\boxed{{{_as_latex(text)}}}", self._latex)

    def find(self, line: str) -> Any:
        """The mathematics that a line of prose ends with."""
        return self._parse(line, None)

    def is_right(self, gold: Any, given: Any) -> bool:
        """Whether they are equal, as far as sympy can tell."""
        try:
            return bool(self._math.verify(gold, given, timeout_seconds=None))
        except Exception:  # noqa: BLE001  sympy raises anything
            return False

    def _parse(self, text: str, extraction: Any) -> Any:
        how = {} if extraction is None else {"extraction_config": extraction}
        try:
            parsed = self._math.parse(text, parsing_timeout=None, **how)
        except Exception:  # noqa: BLE001  sympy raises anything
            return None
        read = [part for part in parsed if not isinstance(part, str)]
        source = parsed[-1] if parsed and isinstance(parsed[-1], str) else ""
        return parsed if read and not _WORD.search(source) and not _CLOCK_OR_HEX.search(source) else None


def _as_latex(text: str) -> str:
    """Python's powers and scientific numbers as LaTeX writes them."""
    text = text.strip().rstrip(".")
    if number := _SCIENTIFIC.fullmatch(text):
        return f"{number[1]} \\cdot 10^{{{number[2]}}}"
    return _PYTHON_POWER.sub(r"^{\1}", text)


def _plain(text: str) -> str:
    """A text without the marks and space that LaTeX puts around it, in lower case."""
    bare = _TEXT_COMMAND.sub(r"\1", text).replace("$", "").rstrip(".")
    return "".join(bare.split()).lower()


if __name__ == "__main__":
    main()
