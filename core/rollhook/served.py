"""One model that a run talks to: its engine, its tokenizer, and how its conversations are rendered.

Invariant: what a model is sent was encoded by its own tokenizer and written by its own chat template, and its
turns end where its generation configuration says.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollhook.engine import Engine
from rollhook.errors import ConfigError, EngineError
from rollhook.render import Policy, Renderer


@dataclass(frozen=True, slots=True)
class ServedModel:
    """name: what agents call it; None for the policy, the one model whose tokens train."""

    name: str | None
    engine: Engine
    tokenizer: Any
    renderer: Renderer


async def serve_model(
    engine: Engine,
    *,
    name: str | None = None,
    tokenizer: Any = None,
    tokenizer_path: str | None = None,
    chat_template: Path | None = None,
    history: Policy = "append",
    chat_template_kwargs: Mapping[str, Any] | None = None,
    check: bool = True,
) -> ServedModel:
    """Find a model's tokenizer and chat template. tokenizer_path: None means what the engine says.

    Raises ConfigError when the engine does not answer, or tokenizer or template cannot be had.
    """
    if tokenizer is None:
        tokenizer = await asyncio.to_thread(load_tokenizer, tokenizer_path or await _told_path(engine))
    template = None if chat_template is None else await asyncio.to_thread(_read, chat_template)
    ends = await asyncio.to_thread(generation_ends, tokenizer)
    renderer = Renderer(
        tokenizer,
        chat_template=template,
        policy=history,
        end_of_turn_ids=ends,
        check=check,
        chat_template_kwargs=chat_template_kwargs,
    )
    return ServedModel(name, engine, tokenizer, renderer)


def load_tokenizer(path: str) -> Any:
    """The tokenizer at a directory or hub name. Blocks. Raises ConfigError when there is none."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"no tokenizer at {path!r} ({error}): set tokenizer (or --tokenizer)") from error


def generation_ends(tokenizer: Any) -> frozenset[int]:
    """The end-of-sequence ids of the model's generation configuration; empty where it has none. Blocks."""
    from transformers.utils import cached_file

    try:
        found = cached_file(
            tokenizer.name_or_path, "generation_config.json", _raise_exceptions_for_missing_entries=False
        )
    except OSError:
        return frozenset()
    ids = json.loads(Path(found).read_text(encoding="utf-8")).get("eos_token_id") if found else None
    return frozenset() if ids is None else frozenset([ids] if isinstance(ids, int) else ids)


async def _told_path(engine: Engine) -> str:
    try:
        info = await engine.model_info()
    except EngineError as error:
        raise ConfigError(f"the engine does not answer: {error}") from error
    path = info.get("tokenizer_path") or info.get("model_path")
    if not path:
        raise ConfigError("the engine names no tokenizer: set tokenizer (or --tokenizer) to its path")
    return str(path)


def _read(template: Path) -> str:
    try:
        return template.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"chat_template: {template}: {error}") from error
