"""A scripted model for ledger tests: readable turns with real ids, and what the ledger made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, groupby
from typing import Any

from rollhook.carried import Carried
from rollhook.ledger import Ledger, Prompt, TurnId
from rollhook.protocols import FinishReason, Message
from rollhook.segments import Segment


@dataclass(frozen=True, slots=True)
class Completion:
    token_ids: Sequence[int]
    log_probs: Sequence[float]
    finish_reason: FinishReason
    request_id: str
    weight_versions: Sequence[str] = ("1",)
    prompt_tokens: int = 10
    cached_tokens: int = 4
    matched: str | int | None = None
    carried: Carried = field(default_factory=Carried)


class Script:
    """Answers prompts of one ledger. Every sampled token has a log-probability of its own."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.tokenizer = ledger.renderer.tokenizer
        self.sampled: dict[float, int] = {}
        self._log_probs = count(1)
        self._requests = count()

    def completion(self, text: str, *, end: str = "<|im_end|>", finish: FinishReason = "stop") -> Completion:
        """A completion that says `text`; end: the token that ends it, "" for none."""
        ids = self.tokenizer.encode(text + end, add_special_tokens=False)
        log_probs = [-float(next(self._log_probs)) for _ in ids]
        self.sampled.update(zip(log_probs, ids, strict=True))
        return Completion(ids, log_probs, finish, f"r{next(self._requests)}")

    def answer(self, prompt: Prompt, text: str, *, message: Message | None = None, **ended: Any) -> TurnId:
        """Commit a turn that says `text`."""
        said = message if message is not None else {"role": "assistant", "content": text}
        return self.ledger.commit(prompt, self.completion(text, **ended), said)

    def say(self, messages: Sequence[Message], text: str, **options: Any) -> TurnId:
        """Send a whole history and commit an answer to it."""
        return self.answer(self.ledger.extend(messages), text, **options)

    def trained(self, segment: Segment) -> str:
        """The response, what of it trains in brackets."""
        response = zip(segment.tokens[segment.prompt_length :], segment.loss_mask, strict=True)
        parts = []
        for bit, stretch in groupby(response, key=lambda pair: pair[1]):
            text = self.tokenizer.decode([token for token, _ in stretch])
            parts.append(f"[{text}]" if bit else text)
        return "".join(parts)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}
