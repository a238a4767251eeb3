"""The tool `search`: the same passages for models that call functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollhook import Rollout, ToolResult
from rollhook_search_r1.config import ToolConfig
from rollhook_search_r1.lookup import RETRIEVED, Lookup


class Search:
    """Finds passages for a query."""

    name = "search"
    description = "Searches a collection of passages and returns those that fit the query best."
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "What to look for.", "pattern": "\\S"}},
        "required": ["query"],
        "additionalProperties": False,
    }

    def __init__(self, lookup: Lookup[ToolConfig], rollout: Rollout) -> None:
        self._lookup = lookup
        self._count = rollout.count_tokens

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """What was found for `arguments["query"]`."""
        shown = await self._lookup.find(arguments["query"].strip(), self._count)
        kind = None if shown.is_outage else RETRIEVED
        return ToolResult(shown.text, is_error=shown.is_outage, kind=kind)
