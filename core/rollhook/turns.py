"""The turns of a ledger and where their tokens lie: strands of tokens that leave one another at branches.

Invariant: every token is stored once, in an array. A turn's tokens lie behind those of its parent, in the
parent's strand when nothing followed there before, else in a new strand that begins at the parent's end.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NewType

from rollhook.carried import Carried
from rollhook.protocols import FinishReason
from rollhook.spans import Span

TurnId = NewType("TurnId", int)


@dataclass(slots=True)
class TurnNode:
    """One sampled turn, behind the text that was put before it.

    start, sampled_at, end: positions counted from the chain's first token: what was inserted lies in
        [start, sampled_at), what was sampled in [sampled_at, end).
    stub: the turn as a chat message without its body, enough to render what follows it.
    base: the turn that this assistant message follows in the conversation. It is not `parent` where raw text
        continued an open turn, nor where the template rewrote the history (then there is no parent).
    beside: at a root that is another answer to a request, or an edit of a first answer, that answer's turn.
    asked_at: how many turns were committed when this one was asked for.
    inputs: key of the messages between `base` and this assistant message. inserted: what was put before, as
        "prompt", "messages" or "text"; named: those parts of it that have a name of their own, counted from
        `start`. fork: why this turn left the chain before it; None where it did not.
    said: under the policy "template", the messages between `base` and this turn, and the turn itself.
    rendered: under that policy, length and digest of the prompt's text.
    matched: the stop string or id that ended it. carried: what else training needs; the experts only of turns
        that nothing follows, since an answer tells those of all tokens before it.
    """

    id: TurnId
    parent: TurnId | None
    strand: int
    start: int
    sampled_at: int
    end: int
    log_probs_at: int
    stub: dict[str, Any]
    base: TurnId | None
    inputs: bytes
    conversation: bytes
    end_id: int | None
    inserted: str
    finish_reason: FinishReason
    request_id: str
    weight_versions: tuple[str, ...]
    cached_tokens: int
    prompt_tokens: int
    asked_at: int
    beside: TurnId | None = None
    fork: str | None = None
    said: Sequence[dict[str, Any]] = ()
    rendered: tuple[int, bytes] | None = None
    named: Sequence[Span] = ()
    matched: str | int | None = None
    carried: Carried = field(default_factory=Carried)
    children: list[TurnId] = field(default_factory=list)

    @property
    def sampled_count(self) -> int:
        """How many tokens were sampled."""
        return self.end - self.sampled_at

    @property
    def trained_count(self) -> int:
        """How many of them train, wherever the turn does."""
        return self.sampled_count - self.carried.untrained


@dataclass(slots=True)
class _Strand:
    """Tokens from position `begin` on; what comes before lies in the strand `parent`."""

    parent: int | None
    begin: int
    tokens: array[int]
    log_probs: array[float]


class TokenTree:
    """The token storage of one ledger. Positions count from the first token of a chain."""

    def __init__(self) -> None:
        self._strands: list[_Strand] = []

    def append(
        self,
        parent: TurnNode | None,
        inserted: Sequence[int],
        sampled: Sequence[int],
        log_probs: Sequence[float],
    ) -> tuple[int, int, int]:
        """Store a turn behind `parent`. Returns (strand, start, index of its first log-probability)."""
        if parent is None:
            index, start = self._new_strand(None, 0), 0
        else:
            index, start = parent.strand, parent.end
            strand = self._strands[index]
            if strand.begin + len(strand.tokens) != start:
                index = self._new_strand(index, start)
        strand = self._strands[index]
        log_probs_at = len(strand.log_probs)
        strand.tokens.extend(inserted)
        strand.tokens.extend(sampled)
        strand.log_probs.extend(log_probs)
        return index, start, log_probs_at

    def tokens_until(self, node: TurnNode) -> array[int]:
        """Every token of the chain that ends with `node`."""
        pieces = []
        index: int | None = node.strand
        end = node.end
        while index is not None:
            strand = self._strands[index]
            pieces.append(strand.tokens[: end - strand.begin])
            index, end = strand.parent, strand.begin
        tokens = array("i")
        for piece in reversed(pieces):
            tokens.extend(piece)
        return tokens

    def inserted_before(self, node: TurnNode) -> array[int]:
        """What was put before the turn: messages, or raw text."""
        strand = self._strands[node.strand]
        return strand.tokens[node.start - strand.begin : node.sampled_at - strand.begin]

    def log_probs_of(self, node: TurnNode) -> array[float]:
        """[sampled_count] log-probabilities of the turn."""
        strand = self._strands[node.strand]
        return strand.log_probs[node.log_probs_at : node.log_probs_at + node.sampled_count]

    def _new_strand(self, parent: int | None, begin: int) -> int:
        self._strands.append(_Strand(parent, begin, array("i"), array("d")))
        return len(self._strands) - 1
