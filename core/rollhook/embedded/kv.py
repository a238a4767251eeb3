"""Keys and values: one contiguous cache per sequence.

Invariant: a cache's `tokens` are exactly the ids whose keys and values it holds, so that any sequence whose
ids begin with the same ones may reuse them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

_GROWTH_TOKENS = 128  # growing copies the cache; this often, that is lost beside computing the tokens


@dataclass(frozen=True)
class KVLayout:
    """The shape of one token's keys and values."""

    layers: int
    heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.layers * self.heads * self.head_dim * int(self.dtype.itemsize)


class SequenceCache:
    """The keys and values of one sequence: [layers, 2 (key, value), heads, capacity, head_dim]."""

    def __init__(self, layout: KVLayout) -> None:
        self.tokens: list[int] = []
        self._layout = layout
        self._store = self._allocate(0)

    @property
    def capacity(self) -> int:
        """How many tokens the memory it holds has room for."""
        return int(self._store.shape[3])

    def grow(self, length: int) -> None:
        """Make room for `length` tokens in all."""
        if length <= self.capacity:
            return
        bigger = self._allocate(padded(length))
        held = len(self.tokens)
        bigger[:, :, :, :held] = self._store[:, :, :, :held]
        self._store = bigger

    def fresh(self, start: int, stop: int) -> Sequence[torch.Tensor]:
        """Where positions [start, stop) are written: for each layer [2, heads, stop - start, head_dim]."""
        views: Sequence[torch.Tensor] = self._store[:, :, :, start:stop].unbind(0)
        return views

    def held(self, stop: int) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]:
        """Keys and values of positions [0, stop): for each layer [1, heads, stop, head_dim]."""
        window = self._store[:, :, None, :, :stop]
        return window[:, 0].unbind(0), window[:, 1].unbind(0)

    def copy_prefix(self, length: int) -> SequenceCache:
        """A cache of its own that holds the first `length` tokens."""
        copy = SequenceCache(self._layout)
        copy.grow(length)
        copy._store[:, :, :, :length] = self._store[:, :, :, :length]
        copy.tokens = self.tokens[:length]
        return copy

    def _allocate(self, capacity: int) -> torch.Tensor:
        layout = self._layout
        return torch.empty((layout.layers, 2, layout.heads, capacity, layout.head_dim), dtype=layout.dtype)


def padded(length: int) -> int:
    """The capacity a cache of `length` tokens takes."""
    return -(-length // _GROWTH_TOKENS) * _GROWTH_TOKENS


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading ids two sequences share."""
    low, high = 0, min(len(left), len(right))
    while low < high:  # whole slices compare at C speed
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
