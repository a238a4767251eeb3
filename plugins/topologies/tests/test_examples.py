from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROWS = Path(__file__).parents[1] / "examples" / "rows.jsonl"


async def test_every_example_row_can_be_run(smollm2_tokenizer: Any, player: Any) -> None:
    runtime, _ = await player.runtime(smollm2_tokenizer, [])
    rows = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
    topologies = {runtime.resolver.resolve(row["metadata"]).topology.name for row in rows}

    assert len(rows) == 24
    assert topologies == {
        f"topologies/{name}"
        for name in (
            "best-of-n",
            "compact",
            "orchestrator",
            "self-play",
            "self-refine",
            "solver-rewriter-selector",
        )
    }
