"""The verifier `search-r1`: exact match of the model's own last answer, and optionally its form.

Invariant: only what the model wrote can answer. The prompt is never read, and of the response neither
retrieved passages nor corrections count, though both may hold answer tags.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Any

from rollhook import Rollout, Score, View
from rollhook_search_r1.config import RewardConfig
from rollhook_search_r1.protocol import CORRECTION, elements


class ExactMatchReward:
    """1.0 for a right answer, else 0.0; with `format_score` the levels of `level`."""

    def __init__(self, config: RewardConfig, rollout: Rollout) -> None:
        del rollout
        self.format_score = config.format_score

    async def score(self, view: View) -> Score:
        """Score `view.response`. Raises ValueError when the label names no answer."""
        wanted = {normalise(target) for target in targets(view.label)}
        answer = last_answer(view.response)
        right = answer is not None and normalise(answer) in wanted
        well_formed = is_well_formed(view.response)
        retrieved = was_retrieved(view.response, wanted)
        parts = {"right": right, "well_formed": well_formed, "retrieved": retrieved}
        value = float(right)
        if self.format_score:
            value = level(answered=answer is not None, **parts)
        return Score(value, {name: float(part) for name, part in parts.items()})


def level(*, answered: bool, right: bool, well_formed: bool, retrieved: bool) -> float:
    """The reward for answer and form (the format and retrieval rewards of arXiv 2505.15117).

    1.0 right and well formed; 0.8 right, ill formed; 0.3 wrong, well formed, and a passage held the answer;
    0.2 wrong, well formed; 0.1 wrong, ill formed; 0.0 no answer.
    """
    if right:
        return 1.0 if well_formed else 0.8
    if well_formed:
        return 0.3 if retrieved else 0.2
    return 0.1 if answered else 0.0


def targets(label: Any) -> list[str]:
    """The accepted answers: a value, a list, or {"target": ...} of them, or that in {"ground_truth": ...}"""
    while isinstance(label, Mapping):
        inner = next((label[key] for key in ("ground_truth", "target") if label.get(key) is not None), None)
        if inner is None:
            raise ValueError(f'the label {dict(label)!r} has neither "target" nor "ground_truth"')
        label = inner
    if hasattr(label, "tolist"):  # numpy, from Parquet
        label = label.tolist()
    answers = list(label) if isinstance(label, list | tuple) else [label]
    if not answers or any(answer is None for answer in answers):
        raise ValueError("the row has no label to compare with")
    return [str(answer) for answer in answers]


def normalise(text: str) -> str:
    """Lower case, without punctuation, articles and extra space; bare lower case where nothing is left."""
    plain = _ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION))
    return " ".join(plain.split()) or text.strip().lower()


def last_answer(response: str) -> str | None:
    """What the model wrote between its last pair of answer tags; None without one."""
    found = _ANSWER.findall(_own_words(response))
    return found[-1].strip() if found else None


def was_retrieved(response: str, wanted: set[str]) -> bool:
    """Whether a shown passage holds one of the normalised answers, as whole words."""
    shown = [f" {normalise(response[start:end])} " for start, end in elements(response, "information")]
    return any(f" {answer} " in passages for passages in shown for answer in wanted)


def is_well_formed(response: str) -> bool:
    """Whether the tags come as think, (search, information, think)*, answer, with nothing between them."""
    state = "start"
    for piece in _TAG.split(response):
        if _TAG.fullmatch(piece):
            if (state, piece) not in _NEXT:
                return False
            state = _NEXT[state, piece]
        elif piece.strip() and not state.startswith("in "):
            return False
    return state == "end"


def _own_words(response: str) -> str:
    kept, at = [], 0
    for start, end in elements(response, "information"):
        kept.append(response[at : start - len("<information>")])
        at = end + len("</information>")
    return "".join([*kept, response[at:]]).replace(CORRECTION, "")


_NEXT = {
    ("start", "<think>"): "in think",
    ("in think", "</think>"): "thought",
    ("thought", "<search>"): "in search",
    ("in search", "</search>"): "searched",
    ("searched", "<information>"): "in information",
    ("in information", "</information>"): "start",
    ("thought", "<answer>"): "in answer",
    ("in answer", "</answer>"): "end",
}
_TAG = re.compile(r"(</?(?:think|search|information|answer)>)")
_ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
