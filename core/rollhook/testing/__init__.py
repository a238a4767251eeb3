"""What plugin authors test with: a scripted engine over real HTTP, real tokenizers, pytest fixtures."""

from typing import TYPE_CHECKING, Any

from rollhook.testing.replies import Fault, Reply, Sampled, ScriptedRequest, scripted_log_prob
from rollhook.testing.scripted import ScriptedEngine

if TYPE_CHECKING:
    from rollhook.testing.tokenizers import load_tokenizer

__all__ = [
    "Fault",
    "Reply",
    "Sampled",
    "ScriptedEngine",
    "ScriptedRequest",
    "load_tokenizer",
    "scripted_log_prob",
]


def __getattr__(name: str) -> Any:
    # `python -m rollhook.testing.tokenizers` must not find its module imported already
    if name == "load_tokenizer":
        from rollhook.testing.tokenizers import load_tokenizer

        return load_tokenizer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
