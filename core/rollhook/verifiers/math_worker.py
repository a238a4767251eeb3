"""Compares answers with math-verify, in a process of its own that imports nothing else.

Lines of JSON. First it says "ready". Then for each {"labels", "answer", "boxed", "timeout_s"} it says
"labels", once they are read, then {"right", "answered"}; or {"fault": text} for a label it cannot read.

Invariant: a comparison ends within timeout_s, if need be with the process: on some inputs sympy hangs inside
C, where no Python signal handler runs, so the alarm keeps its default action, death.
"""

import json
import logging
import resource
import signal
import sys
from typing import Any

_MEMORY_BYTES = 2 << 30


def main() -> None:
    """Answer until standard input closes."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    logging.disable(logging.CRITICAL)
    import math_verify  # type: ignore[import-untyped]  # ships no types

    _say("ready")
    for line in sys.stdin.buffer:
        question = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, question["timeout_s"])
        answer = _judge(math_verify, question)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _say(answer)


def _say(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _judge(math: Any, question: dict[str, Any]) -> dict[str, Any]:
    golds = []
    for label in question["labels"]:
        parsed = math.parse(f"\\boxed{{{label}}}", parsing_timeout=None)
        if not parsed:
            return {"fault": f"the label {label!r} is no mathematics"}
        golds.append(parsed)
    _say("labels")
    answer = question["answer"]
    if question["boxed"] and any(_bare(answer) == _bare(label) for label in question["labels"]):
        return {"right": True, "answered": True}
    try:
        given = math.parse(f"\\boxed{{{answer}}}" if question["boxed"] else answer, parsing_timeout=None)
        right = bool(given) and any(math.verify(gold, given, timeout_seconds=None) for gold in golds)
    except Exception:  # noqa: BLE001  sympy raises anything on such text, and text it cannot read is no answer
        return {"right": False, "answered": False}
    return {"right": right, "answered": bool(given)}


def _bare(text: str) -> str:
    return "".join(text.split())


if __name__ == "__main__":
    main()
