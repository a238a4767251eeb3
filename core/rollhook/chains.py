"""Which turns train, and in which chains from root to leaf.

Invariant: every turn that trains does so in exactly one chain; there is one chain per leaf, the fewest that
hold every turn. No recursion: a conversation may have any number of turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from rollhook.turns import TurnId, TurnNode


@dataclass(frozen=True, slots=True)
class Chain:
    """One chain to give out. nodes: root to leaf. trains: the turns that train in it.

    abandoned: the conversation went on elsewhere.
    """

    kind: str
    nodes: Sequence[TurnNode]
    trains: frozenset[TurnId]
    abandoned: bool


def plan_chains(
    turns: Sequence[TurnNode],
    duplicates: Set[TurnId],
    kinds: Mapping[TurnId, str],
    *,
    train_abandoned: bool,
) -> list[Chain]:
    """One chain per leaf, in the order the leaves came.

    turns: all of a ledger's, parents before children. duplicates: turns that do not train, nor what follows
    them. kinds: of the chains of each root. Turns that several chains share train in the one the conversation
    went on with.
    """
    kept = _without(turns, duplicates)
    leaves = [turn for turn in kept if not any(child in kept for child in turns[turn].children)]
    roots = _roots(turns)
    live = set({roots[turn]: turn for turn in kept}.values())  # the newest turn of each conversation
    owed = set(kept)
    chains: dict[TurnId, Chain] = {}
    for leaf in sorted(leaves, key=lambda turn: turn not in live):
        nodes = _path(turns, leaf)
        abandoned = leaf not in live
        trains = frozenset(node.id for node in nodes if node.id in owed)
        if abandoned and not train_abandoned:
            trains = frozenset()
        owed -= trains
        chains[leaf] = Chain(kinds[nodes[0].id], nodes, trains, abandoned)
    return [chains[leaf] for leaf in leaves]


def _without(turns: Sequence[TurnNode], duplicates: Set[TurnId]) -> dict[TurnId, None]:
    """The turns that train, in order."""
    kept: dict[TurnId, None] = {}
    for node in turns:
        if node.id not in duplicates and (node.parent is None or node.parent in kept):
            kept[node.id] = None
    return kept


def _roots(turns: Sequence[TurnNode]) -> list[TurnId]:
    """The root of each turn. Roots that answer one request, or edit its answer, count as one."""
    roots: list[TurnId] = []
    for node in turns:
        before = node.parent if node.parent is not None else node.beside
        roots.append(node.id if before is None else roots[before])
    return roots


def _path(turns: Sequence[TurnNode], leaf: TurnId) -> list[TurnNode]:
    nodes = [turns[leaf]]
    while (parent := nodes[-1].parent) is not None:
        nodes.append(turns[parent])
    nodes.reverse()
    return nodes
