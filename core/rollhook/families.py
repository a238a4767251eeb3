"""What is known of each model family's tokens: which end a sampled turn, which its template writes there.

Invariant: a family adds facts, never behaviour. Rendering is driven by the template itself; these tables say
only which of the template's control tokens close an assistant's turn, which a template cannot say of itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

KNOWN_ENDS = (
    "<|im_end|>",  # ChatML: Qwen, SmolLM, Kimi, LFM2, Nemotron
    "<|eot_id|>",  # Llama 3
    "<|eom_id|>",  # Llama 3.1, after a call of a built-in tool
    "<|eot|>",  # Llama 4
    "<end_of_turn>",  # Gemma 1 to 3
    "<turn|>",  # Gemma 4
    "<|end|>",  # Phi
    "<｜end▁of▁sentence｜>",  # DeepSeek
    "<|END_OF_TURN_TOKEN|>",  # Cohere
    "</s>",  # Mistral
)
"""Tokens that end an assistant's turn wherever a template writes them."""

END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "<eos>")
"""Tokens a model may sample instead of its end of turn; no template writes them."""


@dataclass(frozen=True, slots=True)
class Ends:
    """How an assistant's turn ends.

    sampled: tokens a model samples to end it. written: tokens the template writes there.
    headers: those of `written` that open the next message and close a turn only by that.
    """

    sampled: frozenset[str]
    written: frozenset[str]
    headers: frozenset[str] = frozenset()


def turn_ends(template: str, vocabulary: Collection[str], eos_token: str | None) -> Ends:
    """The ends of a sampled turn under `template`; only tokens in `vocabulary` (the added ones) count."""
    if "<|channel|>" in template and "<|call|>" in template:  # gpt-oss
        return _known(vocabulary, ["<|return|>", "<|call|>"], ["<|end|>", "<|call|>", "<|return|>"])
    if "<|observation|>" in template and "<|user|>" in template:  # GLM: role headers are the stop tokens
        headers = ["<|user|>", "<|observation|>", "<|system|>", "<|assistant|>"]
        return _known(vocabulary, ["<|user|>", "<|observation|>", *END_OF_TEXT], headers, headers)
    ends = [end for end in KNOWN_ENDS if end in template]
    if eos_token:
        ends.append(eos_token)
    return _known(vocabulary, [*ends, *END_OF_TEXT], ends)


def neutralised_tokens(special: Iterable[str], other: Iterable[str]) -> frozenset[str]:
    """Control tokens that stay text inside messages.

    All special added tokens, and of the others those in control form (`<|fim_prefix|>`, DeepSeek's
    `<｜User｜>`). What models write as text, such as `<think>` and `<tool_call>`, is left to the template.
    """
    controls = {token for token in special if not token.isspace()}
    return frozenset(controls | {token for token in other if re.fullmatch(r"[<\[][|｜].+[|｜][>\]]", token)})


def _known(
    vocabulary: Collection[str], sampled: Iterable[str], written: Iterable[str], headers: Iterable[str] = ()
) -> Ends:
    def present(tokens: Iterable[str]) -> frozenset[str]:
        return frozenset(token for token in tokens if token in vocabulary)

    return Ends(present(sampled), present(written), present(headers))
