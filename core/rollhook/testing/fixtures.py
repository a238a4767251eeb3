"""The pytest plugin `rollhook`: light to import; heavy things are made only by a test that asks for them.

Installed with rollhook (entry point `pytest11`), so a plugin's tests can use these fixtures by name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

try:
    from pytest_asyncio import fixture as async_fixture  # works in its strict mode too
except ImportError:  # a test suite without asynchronous tests never asks for one
    async_fixture = pytest.fixture  # type: ignore[assignment]  # used alike; only its overloads differ

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from rollhook.testing.scripted import ScriptedEngine

ScriptedEngineFactory = Callable[..., Awaitable["ScriptedEngine"]]


@pytest.fixture(scope="session")
def smollm2_tokenizer() -> PreTrainedTokenizerFast:
    """SmolLM2-135M-Instruct's tokenizer and chat template (no tools)."""
    return _load_or_skip("smollm2")


@pytest.fixture(scope="session")
def qwen3_tokenizer() -> PreTrainedTokenizerFast:
    """Qwen3's tokenizer and chat template (tools and thinking)."""
    return _load_or_skip("qwen3")


@async_fixture
async def scripted_engine() -> AsyncIterator[ScriptedEngineFactory]:
    """A factory of running scripted engines, closed at the test's end.

    engine = await scripted_engine(qwen3_tokenizer, ["first reply", "second reply"])
    """
    from rollhook.testing.scripted import ScriptedEngine

    async with AsyncExitStack() as stack:

        async def start(tokenizer: Any, script: Any, **options: Any) -> ScriptedEngine:
            return await stack.enter_async_context(ScriptedEngine(tokenizer, script, **options))

        yield start


def _load_or_skip(name: str) -> PreTrainedTokenizerFast:
    from rollhook.errors import ConfigError
    from rollhook.testing.tokenizers import load_tokenizer

    try:
        return load_tokenizer(name)
    except ConfigError as error:
        pytest.skip(f"tokenizer {name}: {error}")
