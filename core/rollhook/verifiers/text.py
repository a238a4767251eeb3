"""Verifiers that compare a short answer with the label: exact match and last number."""

from __future__ import annotations

import re
import string
from decimal import Decimal, InvalidOperation
from typing import Any

from rollhook.protocols import Rollout, View

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w])")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, without punctuation, English articles and extra space (as SQuAD's evaluation does)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def last_number(text: str) -> Decimal | None:
    """The last decimal number in `text` (thousands commas allowed), or None."""
    found = _NUMBER.findall(text)
    try:
        return Decimal(found[-1].replace(",", "")) if found else None
    except InvalidOperation:
        return None


def _labels(label: Any) -> list[str]:
    """The accepted answers: a label may be one value or a list of them."""
    values = label if isinstance(label, list | tuple) else [label]
    if label is None or not values:
        raise ValueError("the row has no label to compare with")
    return [str(value) for value in values]


class ExactMatch:
    """1.0 when the whole response equals one of the labels after `normalise`, else 0.0."""

    def __init__(self, config: object, rollout: Rollout) -> None:
        del config, rollout

    async def score(self, view: View) -> float:
        answer = normalise(view.response)
        return float(any(answer == normalise(label) for label in _labels(view.label)))


class Number:
    """1.0 when the last number in the response equals the label's, else 0.0 (also without any number)."""

    def __init__(self, config: object, rollout: Rollout) -> None:
        del config, rollout

    async def score(self, view: View) -> float:
        wanted = [last_number(label) for label in _labels(view.label)]
        if any(number is None for number in wanted):
            raise ValueError(f"the label {view.label!r} is no number")
        return float(last_number(view.response) in wanted)
