"""Built-in verifiers: each scores the response alone, never the prompt, and any response whatever."""

from rollhook.verifiers.text import ExactMatch, Number, last_number, normalise

__all__ = ["ExactMatch", "Number", "last_number", "normalise"]
