"""Segments: what a ledger's tree of turns trains, as the fewest chains from a root to a leaf.

Invariant: over the segments of one ledger each sampled token has mask 1 exactly once; turns that two chains
share train in the first of them and are masked in the others. The work is linear in the tokens given out.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rollhook.carried import SpecCounts
from rollhook.chains import Chain
from rollhook.protocols import FinishReason
from rollhook.replay import TopP
from rollhook.spans import Span, covering
from rollhook.turns import TokenTree, TurnNode


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """One turn of a segment, as it was sampled. start: of its first sampled token in `tokens`."""

    start: int
    length: int
    finish_reason: FinishReason
    matched: str | int | None
    request_id: str
    weight_versions: Sequence[str]
    prompt_tokens: int
    cached_tokens: int
    spec: SpecCounts


@dataclass(frozen=True, slots=True)
class Segment:
    """One chain of turns, ready to become a Sample.

    kind: the ledger's role, or "subagent", "wipe" (replaced by a summary), "final" (what went on from it), as
        `rollhook.kinds` tells them apart.
    tokens: [P + R] ids. prompt_length: P >= 1, the tokens before the first sampled one.
    loss_mask: [R], 1 where a sampled token trains here. log_probs: [R], 0.0 where the mask is 0.
    finish_reason: the last turn's. turns: how many the chain has. turn_ids: their numbers in the ledger.
    forks: [{"turn": position in the chain, "reason": why it left the chain before it}].
    abandoned: the conversation went on elsewhere, after a rewind, an edit or a second answer.
    cached_tokens, prompt_tokens: summed over turns.
    spans: in `tokens`, of what was not sampled: "prompt", "messages", "text", or as its author named it.
    sampled: its turns, in order. spec: summed over them.
    top_p: the sets the response was sampled from. experts: of the first of `tokens`, [rows, layers, experts a
        token] as int32 bytes. Both None where the run's trainer does not replay them.
    """

    kind: str
    role: str
    tokens: array[int]
    prompt_length: int
    loss_mask: bytearray
    log_probs: array[float]
    finish_reason: str
    weight_versions: list[str]
    request_ids: list[str]
    turns: int
    forks: list[dict[str, Any]]
    cached_tokens: int
    prompt_tokens: int
    abandoned: bool = False
    turn_ids: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    sampled: list[SampledTurn] = field(default_factory=list)
    spec: SpecCounts = field(default_factory=SpecCounts)
    top_p: TopP | None = None
    experts: bytes | None = None


def make_segment(tree: TokenTree, chain: Chain, role: str) -> Segment | None:
    """The segment of one chain; None when it holds no sampled token."""
    nodes = list(chain.nodes)
    while nodes and nodes[-1].sampled_count == 0:
        nodes.pop()
    first = next((node for node in nodes if node.sampled_count), None)
    if first is None:
        return None
    tokens = tree.tokens_until(nodes[-1])
    prompt_length = first.sampled_at
    loss_mask = bytearray(len(tokens) - prompt_length)
    log_probs = array("d", bytes(8 * len(loss_mask)))
    for node in nodes:
        if node.id in chain.trains:
            untrained = node.carried.untrained
            start, end = node.sampled_at + untrained - prompt_length, node.end - prompt_length
            loss_mask[start:end] = b"\1" * node.trained_count
            log_probs[start:end] = tree.log_probs_of(node)[untrained:]
    return Segment(
        kind=chain.kind,
        role=role,
        tokens=tokens,
        prompt_length=prompt_length,
        loss_mask=loss_mask,
        log_probs=log_probs,
        finish_reason=nodes[-1].finish_reason,
        weight_versions=[version for node in nodes for version in node.weight_versions],
        request_ids=[node.request_id for node in nodes],
        turns=len(nodes),
        forks=[{"turn": at, "reason": node.fork} for at, node in enumerate(nodes) if node.fork],
        cached_tokens=sum(node.cached_tokens for node in nodes),
        prompt_tokens=sum(node.prompt_tokens for node in nodes),
        abandoned=chain.abandoned,
        turn_ids=[node.id for node in nodes],
        spans=[
            span
            for node in nodes
            for span in covering(node.start, node.sampled_at - node.start, node.named, node.inserted)
        ],
        sampled=[_as_sampled(node) for node in nodes],
        spec=sum((node.carried.spec for node in nodes), SpecCounts()),
        top_p=_top_p(nodes, prompt_length),
        experts=next((node.carried.experts for node in reversed(nodes) if node.carried.experts), None),
    )


def _as_sampled(node: TurnNode) -> SampledTurn:
    return SampledTurn(
        start=node.sampled_at,
        length=node.sampled_count,
        finish_reason=node.finish_reason,
        matched=node.matched,
        request_id=node.request_id,
        weight_versions=node.weight_versions,
        prompt_tokens=node.prompt_tokens,
        cached_tokens=node.cached_tokens,
        spec=node.carried.spec,
    )


def _top_p(nodes: Sequence[TurnNode], prompt_length: int) -> TopP | None:
    """The sets of the whole response, empty ones where nothing was sampled."""
    if all(node.carried.top_p is None for node in nodes):
        return None
    pieces = []
    for node in nodes:
        if node.sampled_at > prompt_length:
            pieces.append(TopP.empty(node.sampled_at - max(node.start, prompt_length)))
        pieces.append(node.carried.top_p or TopP.empty(node.sampled_count))
    return TopP.chain(pieces)
