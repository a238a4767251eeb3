"""A run of slime's stand-in over a scripted engine, closed and checked at its end."""

from __future__ import annotations

import re
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any

from rollhook.runtime import loops_with_runtimes
from rollhook.slime import shutdown
from rollhook.testing import ScriptedEngine, ScriptedRequest
from tests.slime.slime_types import Row, SlimeSample, make_args
from tests.slime.trainer import Trainer

NUMBER: dict[str, Any] = {"rollhook": {"verifier": "number"}}
PAIR: dict[str, Any] = {"rollhook": {"topology": "w/pair", "verifier": "number"}}


def row(prompt: Any = "2 + 2?", label: Any = "4", **changes: Any) -> Any:
    """One row of slime's own class."""
    metadata = changes.pop("metadata", NUMBER)
    return SlimeSample(
        **{"index": 7, "group_index": 3, "prompt": prompt, "label": label, "metadata": metadata, **changes}
    )


def questions(count: int, metadata: dict[str, Any] = NUMBER) -> list[Row]:
    """Rows whose right answer is 4 and whose prompts can be told apart."""
    return [(f"Question {number}: 2 + 2?", "4", metadata) for number in range(count)]


def question_of(request: ScriptedRequest) -> int:
    """The number of the row that a request is about."""
    found = re.search(r"Question (\d+)", request.prompt)
    assert found is not None
    return int(found[1])


@asynccontextmanager
async def slime_run(
    tokenizer: Any,
    script: list[Any] | Callable[..., Any] = lambda request: "4",
    rows: Sequence[Row] | None = None,
    *,
    slime_is_loaded: bool = True,
    **flags: Any,
) -> AsyncIterator[tuple[Trainer, ScriptedEngine]]:
    """flags: of slime; `rollhook` is laid over a section that knows the plugins of tests.unit.worlds."""
    section = {"modules": ["w=tests.unit.worlds"], "retries": 1, **flags.pop("rollhook", {})}
    async with ScriptedEngine(tokenizer, script, weight_version="0") as engine:
        args = make_args(engine.url, tokenizer.name_or_path, rollhook=section, **flags)
        trainer = Trainer(args, questions(50) if rows is None else rows)
        with trainer.loaded() if slime_is_loaded else nullcontext():
            try:
                yield trainer, engine
            finally:
                await shutdown()
        assert engine.in_flight == 0
        assert loops_with_runtimes() == []
        assert "rollhook rollouts" not in {thread.name for thread in threading.enumerate()}
