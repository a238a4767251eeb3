"""Token ids to text: where an answer stops, and what of it a client may see.

Invariant: text is always one decode of all the ids, so characters and stop strings that lie across tokens
come out whole; a streamed text is a prefix of the final one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollhook.embedded.params import SamplingParams

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what decoders write for bytes that are no character (yet)


def matched_stop(tokenizer: Any, output_ids: Sequence[int], stops: Sequence[str]) -> str | None:
    """The first of `stops` that the newest token completed, else None.

    Only a tail is decoded: every token brings at least one byte, and a few more absorb a cut character or a
    leading space that a decoder drops.
    """
    if not stops:
        return None
    window = max(len(stop.encode()) for stop in stops) + 8
    tail = tokenizer.decode(output_ids[-window:], skip_special_tokens=False)
    return next((stop for stop in stops if stop in tail), None)


def visible_text(
    tokenizer: Any, output_ids: Sequence[int], params: SamplingParams, finish: dict[str, Any] | None
) -> str:
    """The text of an answer so far, or of a finished one, trimmed as the request asked.

    finish: the finish reason, None while the answer is still growing. Then an unfinished character, and what
    may turn out to be the beginning of a stop string that is to be trimmed, are held back.
    """
    matched = finish.get("matched") if finish else None
    if isinstance(matched, int) and not params.no_stop_trim:
        output_ids = output_ids[:-1]
    text = str(
        tokenizer.decode(
            output_ids,
            skip_special_tokens=params.skip_special_tokens,
            spaces_between_special_tokens=params.spaces_between_special_tokens,
        )
    )
    if finish is None:
        text = text.rstrip(_REPLACEMENT)
        return text if params.no_stop_trim else text[: len(text) - _held_back(text, params.stop_strings)]
    if isinstance(matched, str) and (found := text.find(matched)) >= 0:
        return text[: found + len(matched) if params.no_stop_trim else found]
    return text


def _held_back(text: str, stops: Sequence[str]) -> int:
    """The length of the longest end of `text` that begins one of `stops`."""
    longest = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:length]):
                longest = length
                break
    return longest
