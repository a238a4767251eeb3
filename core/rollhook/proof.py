"""The check behind delta rendering: the template writes in long conversations what it wrote in the stub.

Invariant: a delta that was proven is the template's own writing for its shape. A shape is the number of calls
in the turn and the roles that follow; each is tried once per template, in conversations with a history, so
that the check costs nothing per turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from rollhook.errors import RenderError
from rollhook.protocols import Message

Render = Callable[[Sequence[Message]], str]
Shape = tuple[int, tuple[tuple[str, int], ...]]


class History(Enum):
    """What new messages do to what stands before them."""

    EXTENDED = "extended"  # the template only adds to it
    REWRITTEN = "rewritten"  # the template writes it anew: thinking dropped, tools or system prompt moved


def shape_of(calls: Sequence[Any], new_messages: Sequence[Message]) -> Shape:
    """What of a turn and the messages behind it decides how the template writes them."""
    return len(calls), tuple((_kind(m), len(m.get("tool_calls") or ())) for m in new_messages)


def _kind(message: Message) -> str:
    role = str(message.get("role"))
    return role if isinstance(message.get("content"), str) else f"{role} with parts"


class DeltaCheck:
    """Proves deltas shape by shape, and keeps what was found.

    render: the template's text of a conversation with a generation prompt. body: the text that stands for the
    turn's body in a stub. call: a tool call in the family's form.
    """

    def __init__(self, render: Render, body: str, call: dict[str, Any]) -> None:
        self._render = render
        self._body = body
        self._histories = [history for history in _histories(call) if self._is_expressible(history)]
        self._found: dict[Shape, History] = {}

    def prove(self, shape: Shape, turn: Message, new_messages: Sequence[Message], tail: str) -> History:
        """What adding `new_messages` behind `turn` does to the history.

        tail: the stub render from the turn's body on. Raises RenderError when the template, adding to a
        history, writes anything else there.
        """
        found = self._found.get(shape)
        if found is None:
            found = self._found[shape] = self._try(turn, new_messages, tail)
        return found

    def _try(self, turn: Message, new_messages: Sequence[Message], tail: str) -> History:
        found = History.EXTENDED
        for history in self._histories:
            try:
                before = self._render(history)
                after = self._render([*history, turn, *new_messages])
            except RenderError:
                continue  # the family refuses this history together with these messages
            if not after.startswith(before):
                found = History.REWRITTEN
            elif after[after.find(self._body) + len(self._body) :] != tail:
                raise RenderError(
                    "the chat template writes what follows this turn differently in a longer conversation, "
                    "so it cannot be rendered by itself; pass check=False to render it all the same"
                )
        return found

    def _is_expressible(self, history: Sequence[Message]) -> bool:
        try:
            self._render(history)
        except RenderError:
            return False
        return True


def _histories(call: dict[str, Any]) -> list[list[Message]]:
    """Conversations that end where the model answers: behind a user, and behind a tool's result."""
    system: Message = {"role": "system", "content": "System."}
    user: Message = {"role": "user", "content": "Question."}
    answer: Message = {"role": "assistant", "content": "Answer.", "reasoning_content": "Thought."}
    calling: Message = {**answer, "content": "", "tool_calls": [call]}
    name = call["function"]["name"]
    result: Message = {"role": "tool", "content": "Result.", "tool_call_id": call["id"], "name": name}
    talk = [user, answer, user]
    work = [user, calling, result]
    return [talk, work, [*work, answer, user], [system, *talk], [system, *work]]
