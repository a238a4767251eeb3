"""The model families of the exactness table: a real tokenizer and the original chat template of each.

Where a family's own tokenizer cannot be had, another family's stands in with that family's control tokens
added; the page says so.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from rollhook.errors import ConfigError
from rollhook.testing.tokenizers import SOURCES, load_tokenizer

GLM_TOKENS = (
    "[gMASK]",
    "<sop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<|endoftext|>",
)


@dataclass(frozen=True, slots=True)
class Family:
    """name: as in the table. tokenizer: a key of `LOADERS`. template: a name in trl, or the tokenizer's own.

    source: where both come from, for the page. thinks: the template writes reasoning. writes_tools: it shows
    tools to the model; where it does not, calls are tried without offering any.
    """

    name: str
    tokenizer: str
    template: str | None
    source: str
    thinks: bool = False
    writes_tools: bool = True


@dataclass(frozen=True, slots=True)
class Model:
    """A family's tokenizer and template, loaded."""

    tokenizer: Any
    template: str


@cache
def model_of(family: Family) -> Model:
    """The family's tokenizer and template. Skips the test that asks where they cannot be had."""
    try:
        tokenizer = _tokenizer(family.tokenizer)
        return Model(
            tokenizer, _trl_template(family.template) if family.template else tokenizer.chat_template
        )
    except ConfigError as error:
        pytest.skip(f"{family.name}: {error}")


@cache
def _tokenizer(name: str) -> Any:
    return LOADERS[name]()


def _trl_template(name: str) -> str:
    found = find_spec("trl")
    if found is None or not found.submodule_search_locations:
        raise ConfigError("trl is not installed; try: pip install --no-deps 'trl==1.16.*'")
    return (Path(found.submodule_search_locations[0]) / "chat_templates" / f"{name}.jinja").read_text("utf-8")


def _glm() -> Any:
    loaded = load_tokenizer("qwen3")
    loaded.add_special_tokens({"additional_special_tokens": list(GLM_TOKENS)})
    loaded.eos_token = "<|endoftext|>"
    return loaded


def _mistral() -> Any:
    """The tokenizer that mistral_common ships, with the template that mistral_common generates for it."""
    found = find_spec("mistral_common")
    if found is None or not found.submodule_search_locations:
        raise ConfigError("mistral_common is not installed; try: pip install mistral_common")
    from transformers.integrations.mistral import convert_tekken_tokenizer

    source = Path(found.submodule_search_locations[0]) / "data" / "tekken_240911.json"
    with tempfile.TemporaryDirectory() as directory:
        return convert_tekken_tokenizer(str(shutil.copyfile(source, Path(directory) / "tekken.json")))


LOADERS: Mapping[str, Callable[[], Any]] = MappingProxyType(
    {
        **{name: partial(load_tokenizer, name) for name in SOURCES},
        "glm": _glm,
        "mistral": _mistral,
    }
)

FAMILIES = (
    Family("SmolLM2", "smollm2", None, "its own", writes_tools=False),
    Family("Qwen2.5", "qwen3", "qwen2_5", "Qwen3's tokenizer"),
    Family("Qwen3", "qwen3", "qwen3", "its own", thinks=True),
    Family("Qwen3.5", "qwen3", "qwen3_5_think", "Qwen3's tokenizer", thinks=True),
    Family("Qwen3.6", "qwen3", "qwen3_6", "Qwen3's tokenizer", thinks=True),
    Family(
        "Qwen3.5, not thinking",
        "qwen3",
        "qwen3_5_nothink",
        "Qwen3's tokenizer; calls are written as Qwen3-Coder writes them",
    ),
    Family("Llama 3.1", "llama3_1", "llama3_1", "its own"),
    Family("Llama 3.2", "llama3_1", "llama3_2", "Llama 3.1's tokenizer"),
    Family("Mistral (v3)", "mistral", None, "mistral_common's tokenizer and the template it generates"),
    Family("DeepSeek V3", "deepseek_v3", "deepseekv3", "its own", thinks=True, writes_tools=False),
    Family(
        "DeepSeek R1 distill",
        "deepseek_v3",
        "deepseek_r1_distill",
        "DeepSeek V3's tokenizer",
        thinks=True,
        writes_tools=False,
    ),
    Family("GLM-4 MoE", "glm", "glm4moe", "Qwen3's tokenizer with GLM's control tokens", thinks=True),
    Family("gpt-oss", "gptoss", "gptoss", "its own", thinks=True),
    Family("Gemma 3", "gemma3", None, "its own", writes_tools=False),
)
