"""Which of the tokens put before a turn hold what: each message's own, apart from the template's around it.

Invariant: the spans of an insertion follow one another and cover it. One with a kind of its own holds every
token in which a character of that message lies, and no other. A template may write messages as they are,
without the space around them, or as JSON strings; where it does neither, a kind that all share covers all.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """Tokens that were not sampled. start: counted from the insertion's or the chain's first token."""

    start: int
    length: int
    kind: str


def stubs(count: int) -> list[str]:
    """Texts that no template writes by itself, to find where it puts messages."""
    return [f"rollhook{number}stub" for number in range(count)]


def spans_of(
    ids: Sequence[int],
    contents: Sequence[str],
    kinds: Sequence[str | None],
    stubbed: str,
    decode: Callable[[Sequence[int]], str],
) -> tuple[Span, ...]:
    """Where in `ids`, which render messages of these contents, those stand that have a kind, in order.

    stubbed: the text of the same messages with `stubs` as contents: it shows what the template writes around.
    """
    text = decode(ids)
    *before, rest = _between(stubbed, stubs(len(contents)))
    behind = [*before[1:], rest]
    found = []
    at = 0
    for content, kind, head, tail in zip(contents, kinds, before, behind, strict=False):
        place = _place(content, text, at + len(head), tail)
        if place is None or not text.startswith(head, at):
            break
        if kind is not None and place:
            found.append(_tokens_of(place, ids, kind, decode))
        at = place.stop
    else:
        if len(before) == len(contents) and text[at:] == rest:
            return tuple(found)
    shared = set(kinds) - {None}
    return tuple(Span(0, len(ids), kind) for kind in shared if kind and len(shared) == 1)


def covering(start: int, length: int, inner: Sequence[Span], kind: str) -> Iterator[Span]:
    """An insertion as spans without a gap: `inner`, counted from `start`, and `kind` for what is between."""
    at = 0
    for span in (*inner, Span(length, 0, kind)):
        if span.start > at:
            yield Span(start + at, span.start - at, kind)
        if span.length:
            yield Span(start + span.start, span.length, span.kind)
        at = span.start + span.length


def _between(stubbed: str, marks: Sequence[str]) -> list[str]:
    """What stands before, between and behind the marks; less where one is missing."""
    parts = []
    for mark in marks:
        before, found, rest = stubbed.partition(mark)
        if not found:
            break
        parts.append(before)
        stubbed = rest
    return [*parts, stubbed]


def _place(content: str, text: str, at: int, tail: str) -> range | None:
    """Where a template wrote `content`: from `at` up to `tail`, in one of the forms that templates use."""
    for form in (content, content.strip(), json.dumps(content, ensure_ascii=False)[1:-1]):
        if text.startswith(form + tail, at):
            return range(at, at + len(form))
    return None


def _tokens_of(place: range, ids: Sequence[int], kind: str, decode: Callable[[Sequence[int]], str]) -> Span:
    def chars(tokens: int) -> int:
        return len(decode(ids[:tokens]))

    counts = range(len(ids) + 1)
    first = bisect_right(counts, place.start, key=chars) - 1
    end = bisect_right(counts, place.stop, key=chars) - 1
    if chars(end) < place.stop:  # the last one holds what follows, too
        end += 1
    return Span(first, end - first, kind)
