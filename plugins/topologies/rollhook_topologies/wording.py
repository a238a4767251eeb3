"""Texts that several topologies make: what a message says, a note behind a question, answers side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rollhook import Message, Turn


def text_of(message: Message) -> str:
    """A message's text, also where its content is a list of parts."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def said_by(turn: Turn) -> str:
    """All that an agent said in a turn, without reasoning and tool calls."""
    return text_of(turn.message)


def question_of(messages: Sequence[Message]) -> str:
    """What a conversation opens with asking: the text of its last message."""
    return text_of(messages[-1])


def with_note(messages: Sequence[Message], note: str) -> list[Message]:
    """The same messages with `note` from the user, in the last one where it is the user's too: some chat
    templates want roles to alternate."""
    *before, last = messages
    if last["role"] != "user":
        return [*messages, {"role": "user", "content": note}]
    return [*before, {**last, "content": f"{text_of(last)}\n\n{note}"}]


def side_by_side(answers: Mapping[int, str]) -> str:
    """Answers under their numbers."""
    return "\n\n".join(f"Solution {number}:\n{answer.strip()}" for number, answer in answers.items())
