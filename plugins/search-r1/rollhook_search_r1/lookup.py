"""One search as the model sees it, in both forms of the plugin: passages within their bounds, or an outage.

Invariant: a service that is out either fails the rollout or is told to the model, as the run says.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from rollhook import Run
from rollhook_search_r1.batching import Batched
from rollhook_search_r1.config import ToolConfig
from rollhook_search_r1.protocol import NO_SERVICE, show_passages
from rollhook_search_r1.retrieval import RetrievalOutage
from rollhook_search_r1.sources import shared_source

RETRIEVED = "retrieved"
"""What the tokens of passages are called in `rollhook_result["spans"]`."""

ConfigT = TypeVar("ConfigT", bound=ToolConfig)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a search shows."""

    text: str
    is_outage: bool = False


@dataclass(frozen=True, slots=True)
class Lookup(Generic[ConfigT]):
    """What the rollouts of one configuration share: its bounds, and the source they share with others."""

    config: ConfigT
    batched: Batched

    async def find(self, query: str, count: Callable[[str], int]) -> Shown:
        """The passages for `query`. count: tokens of a text.

        Raises RetrievalOutage where the run says that an outage fails.
        """
        try:
            hits = await self.batched.find(query, self.config.topk)
        except RetrievalOutage:
            if self.config.on_outage == "fail":
                raise
            return Shown(NO_SERVICE, is_outage=True)
        passages = [hit.passage for hit in hits]
        return Shown(show_passages(passages, self.config.max_observation_tokens, count))


@asynccontextmanager
async def open_lookup(config: ConfigT, run: Run) -> AsyncIterator[Lookup[ConfigT]]:
    """A spec's `open`."""
    yield Lookup(config, await shared_source(config.source, run))
