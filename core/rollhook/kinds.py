"""What each conversation of a ledger is: the main one, a subagent's, one that a summary replaced.

Invariant: rewinds, edits, retries and turns asked for at the same time never change a conversation's kind. A
conversation is told from another by its system prompt and tools; of several with the same, the later one
replaced the earlier only if it was opened when that had answered for the last time.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from rollhook.turns import TurnId, TurnNode


@dataclass(slots=True)
class _Span:
    """first, last: turns. turns: how many there are between them."""

    first: TurnId
    last: TurnId
    turns: int = 0


def kinds_of(turns: Sequence[TurnNode], with_tools: Set[bytes], role: str) -> dict[TurnId, str]:
    """The kind of the chains under each root.

    turns: all of a ledger's, parents before children. with_tools: the keys of the system prompts and tool
    sets that have tools. A conversation that is not the main one's kind, or that ended while an older one
    went on, is a subagent's. The rest replaced one another: all but the last are "wipe", the last "final".
    """
    if not turns:
        return {}
    conversation = _conversations(turns)
    spans: dict[TurnId, _Span] = {}
    for node in turns:
        span = spans.setdefault(conversation[node.id], _Span(node.id, node.id))
        span.last = node.id
    main = _main(turns, with_tools)
    kinds: dict[TurnId, str] = {}
    lineage: list[list[TurnId]] = []
    """Conversations in the order they replaced one another; those of one place stood side by side."""
    current = _Span(TurnId(-1), TurnId(-1))
    for root, span in spans.items():
        asked_at = turns[root].asked_at
        if turns[root].conversation != main:
            kinds[root] = "subagent"
        elif current.last < asked_at:
            lineage.append([root])
            current = _Span(span.first, span.last)
        elif current.first >= asked_at:
            lineage[-1].append(root)
            current.last = max(current.last, span.last)
        else:
            kinds[root] = "subagent"
    for roots in lineage[:-1]:
        kinds.update(dict.fromkeys(roots, "wipe"))
    for roots in lineage[-1:]:
        kinds.update(dict.fromkeys(roots, "final" if len(lineage) > 1 else role))
    return {node.id: kinds[conversation[node.id]] for node in turns if node.parent is None}


def _main(turns: Sequence[TurnNode], with_tools: Set[bytes]) -> bytes:
    """The system prompt and tools that the rollout is about.

    A conversation inside another's span is a helper's: that other went on after it. Of the rest, one with
    tools comes before one without, then the one with the most turns, then the first: a call for a title
    before the conversation does not become the main one.
    """
    spans: dict[bytes, _Span] = {}
    for node in turns:
        span = spans.setdefault(node.conversation, _Span(node.id, node.id))
        span.last = node.id
        span.turns += 1
    outer: list[bytes] = []
    last = -1
    for key, span in spans.items():  # in the order of their first turns
        if span.last > last:
            outer.append(key)
            last = span.last
    return max(outer, key=lambda key: (key in with_tools, spans[key].turns))


def _conversations(turns: Sequence[TurnNode]) -> list[TurnId]:
    """The first turn of each turn's conversation; a rewritten history stays the same conversation."""
    found: list[TurnId] = []
    for node in turns:
        before = next((turn for turn in (node.parent, node.base, node.beside) if turn is not None), None)
        found.append(node.id if before is None else found[before])
    return found
