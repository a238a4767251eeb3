"""Verifiers that compare a short answer with the label: exact match, token F1 and last number."""

from __future__ import annotations

import re
import string
from collections import Counter
from decimal import Decimal, InvalidOperation

from rollhook.protocols import Rollout, Score, View
from rollhook.verifiers.labels import AnswerConfig, accepted

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w])")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, without punctuation, English articles and extra space (as SQuAD's evaluation does).

    A text that is nothing else, such as the answer "A" or "-", keeps them: otherwise an empty one equals it.
    """
    lower = text.lower()
    kept = _ARTICLES.sub(" ", lower.translate(_PUNCTUATION)).split()
    return " ".join(kept or lower.split())


def last_number(text: str) -> Decimal | None:
    """The last decimal number in `text` (thousands commas allowed), or None."""
    found = _NUMBER.findall(text)
    try:
        return Decimal(found[-1].replace(",", "")) if found else None
    except InvalidOperation:
        return None


def _only_number(text: str) -> Decimal | None:
    return last_number(text) if len(_NUMBER.findall(text)) == 1 else None


def token_f1(answer: str, label: str) -> Score:
    """The harmonic mean of precision and recall over normalised words, counted with repetition.

    Two texts without any word are equal: 1.0. Source: SQuAD's evaluation.
    """
    said, wanted = normalise(answer).split(), normalise(label).split()
    if not said or not wanted:
        same = float(said == wanted)
        return Score(same, {"precision": same, "recall": same})
    shared = (Counter(said) & Counter(wanted)).total()
    precision, recall = shared / len(said), shared / len(wanted)
    value = 2 * precision * recall / (precision + recall) if shared else 0.0
    return Score(value, {"precision": precision, "recall": recall})


class ExactMatch:
    """1.0 when the whole answer equals one of the labels after `normalise`, else 0.0."""

    def __init__(self, config: AnswerConfig, rollout: Rollout) -> None:
        del rollout
        self._config = config

    async def score(self, view: View) -> float:
        labels = [normalise(label) for label in accepted(view.label)]
        answer = self._config.answer(view.response)
        return float(answer is not None and normalise(answer) in labels)


class F1:
    """The best `token_f1` of the answer over the labels, with its precision and recall."""

    def __init__(self, config: AnswerConfig, rollout: Rollout) -> None:
        del rollout
        self._config = config

    async def score(self, view: View) -> Score:
        labels = accepted(view.label)
        answer = self._config.answer(view.response)
        if answer is None:
            return Score(0.0, {"precision": 0.0, "recall": 0.0})
        return max((token_f1(answer, label) for label in labels), key=lambda score: score.value)


class Number:
    """1.0 when the last number in the answer equals the label's, else 0.0 (also without any number).

    A label has one number; of a worked solution, as GSM8K's labels are, what follows the last "####".
    """

    def __init__(self, config: AnswerConfig, rollout: Rollout) -> None:
        del rollout
        self._config = config

    async def score(self, view: View) -> float:
        wanted = [_only_number(label.rpartition("####")[2]) for label in accepted(view.label)]
        if any(number is None for number in wanted):
            raise ValueError(f"the label {view.label!r} is no number")
        answer = self._config.answer(view.response)
        return float(answer is not None and last_number(answer) in wanted)
