"""What plugin authors test with: a scripted engine over real HTTP, real tokenizers, pytest fixtures."""

from rollhook.testing.replies import Fault, Reply, Sampled, ScriptedRequest, scripted_log_prob
from rollhook.testing.scripted import ScriptedEngine
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
