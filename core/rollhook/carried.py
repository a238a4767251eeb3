"""What a sampled turn brings along for training beside its ids and log-probabilities.

Invariant: what is carried belongs to exactly the turn's sampled tokens; two parts of one turn carry what the
turn sampled at once would. No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollhook.replay import TopP

_ACCEPTED_AND_DRAFTED = (
    ("spec_accept_token_num", "spec_draft_token_num"),
    ("spec_accepted_drafts", "spec_proposed_drafts"),
    ("spec_num_correct_drafts", "spec_num_proposed_drafts"),
)
"""What SGLang's versions call the draft tokens that were accepted, and all of them."""


@dataclass(frozen=True, slots=True)
class SpecCounts:
    """Speculative decoding, in tokens: drafted, of these accepted; verify steps; tokens sampled by them."""

    accepted: int = 0
    drafted: int = 0
    verified: int = 0
    sampled: int = 0

    @classmethod
    def read(cls, meta: Mapping[str, Any]) -> SpecCounts:
        """The counts in SGLang's meta_info; zeros where it does not speculate."""
        if not meta.get("spec_verify_ct"):
            return cls()
        accepted, drafted = next(
            (
                (int(meta[accepted] or 0), int(meta[drafted] or 0))
                for accepted, drafted in _ACCEPTED_AND_DRAFTED
                if accepted in meta and drafted in meta
            ),
            (0, 0),
        )
        return cls(accepted, drafted, int(meta["spec_verify_ct"]), int(meta.get("completion_tokens") or 0))

    def __add__(self, other: SpecCounts) -> SpecCounts:
        return SpecCounts(
            self.accepted + other.accepted,
            self.drafted + other.drafted,
            self.verified + other.verified,
            self.sampled + other.sampled,
        )


@dataclass(frozen=True, slots=True)
class Carried:
    """Of one turn of T sampled tokens behind a prompt of P.

    untrained: how many of its first tokens do not train, having been sampled before a weight update or under
        a grammar that a client demanded.
    top_p: the sets they were sampled from; experts: [P + T - 1, layers, experts a token] as int32 bytes; None
        where the run's trainer does not replay them.
    """

    untrained: int = 0
    spec: SpecCounts = field(default_factory=SpecCounts)
    top_p: TopP | None = None
    experts: bytes | None = None

    def then(self, rest: Carried) -> Carried:
        """What the whole turn carries when `rest` belongs to the tokens that follow: it knows all experts."""
        top_p = [part for part in (self.top_p, rest.top_p) if part is not None]
        return Carried(
            untrained=self.untrained,
            spec=self.spec + rest.spec,
            top_p=TopP.chain(top_p) if top_p else None,
            experts=rest.experts or self.experts,
        )
