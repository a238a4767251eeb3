"""What verifiers compare: the accepted answers of a label, and the part of a response that answers.

Invariant: only the response answers, never the prompt; where the asked-for part is missing, nothing does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

TAG = r"^[A-Za-z][A-Za-z0-9_-]*$"
"""What a tag may be called."""

_KEYS = ("ground_truth", "answer", "target")


class AnswerConfig(BaseModel):
    """Which part of a response is the answer.

    tag: what is in the last <tag>...</tag>; None: all of the response.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tag: str | None = Field(None, pattern=TAG, max_length=40)

    def answer(self, response: str) -> str | None:
        """The part that answers; None when it is not there."""
        if self.tag is None:
            return response
        opening, closing = f"<{self.tag}>", f"</{self.tag}>"
        end = response.rfind(closing)
        start = response.rfind(opening, 0, max(end, 0))
        return response[start + len(opening) : end].strip() if start >= 0 else None


def accepted(label: Any) -> list[str]:
    """The answers that a label accepts: a value, a list of them, or either under a usual key of data sets.

    The keys are ground_truth, answer and target. Raises ValueError when there is nothing to compare with.
    """
    if isinstance(label, Mapping):
        label = next((label[key] for key in _KEYS if label.get(key) is not None), None)
    if hasattr(label, "tolist"):  # numpy's arrays and scalars
        label = label.tolist()
    values = list(label) if isinstance(label, list | tuple) else [label]
    if not values or any(value is None for value in values):
        raise ValueError("the row has no label to compare with")
    return [str(value) for value in values]
