"""The verifier `multiple_choice`: which one option the response settles on.

Invariant: a response that names several options in its last answer, or none, is wrong.
"""

from __future__ import annotations

import re

from rollhook.protocols import Rollout, Score, View
from rollhook.verifiers.labels import AnswerConfig, accepted

_BOXED = re.compile(r"\\boxed\{\s*(?:\\(?:text|textbf|mathrm|mathbf)\{)?\s*\(?([A-Z])\)?[\s.]*\}")
_STATED = re.compile(
    r"(?i:\b(?:answer|option|choice)\b(?:\s+(?:is|would\s+be|should\s+be))?)(?i:\s+(?:option|choice))?"
    r"\s*[:=]?[\s*_\"'`$\[]{0,8}"
    r"(?:\(([A-Z])\)|([A-Z])(?=[*_\"'`$\]]{0,4}(?:[).,;:!]|\s*$|\s*\n))|([B-HJ-Z])(?=\s))"
)
_ALONE = re.compile(r"^[\s*_\"'`$(\[]*([A-Z])[\s*_\"'`$)\].:]*$")
_LEADING = re.compile(r"^\s*(?:\(([A-Z])\)|([A-Z])[).:])\s+\S[^\n]*$")
_MORE = re.compile(r"[)*_\"'`$\]]*\s*(?:,|/|&|\bor\b|\band\b)\s*(?:\(?[A-Z]\)?)(?![A-Za-z])")


def chosen_option(text: str) -> str | None:
    """The letter that `text` settles on, or None.

    Looked for in this order, the last one of its kind counting: \\boxed{B}; "the answer is (B)"; a text, or a
    last line, that is just a letter; one line that begins with one, as "B) Paris".
    """
    for pattern in (_BOXED, _STATED):
        stated = list(pattern.finditer(text))
        if stated:
            return None if _MORE.match(text, stated[-1].end()) else _letter(stated[-1])
    lines = text.strip().splitlines()
    found = _ALONE.match(lines[-1]) if lines else None
    if found is None and len(lines) == 1:
        found = _LEADING.match(lines[0])
    return _letter(found) if found else None


def _letter(found: re.Match[str]) -> str:
    return next(group for group in found.groups() if group)


class MultipleChoice:
    """1.0 when the answer settles on the label's letter. The part `answered`: whether on any."""

    def __init__(self, config: AnswerConfig, rollout: Rollout) -> None:
        del rollout
        self._config = config

    async def score(self, view: View) -> Score:
        labels = [label.strip().strip("().") for label in accepted(view.label)]
        if not all(re.fullmatch("[A-Z]", label) for label in labels):
            raise ValueError(f"the label {view.label!r} is no letter of an option, such as B or (B)")
        answer = self._config.answer(view.response)
        letter = None if answer is None else chosen_option(answer)
        return Score(float(letter in labels), {"answered": float(letter is not None)})
