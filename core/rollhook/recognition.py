"""Finds, for a whole history that a client sends, the deepest sampled turn it reaches.

Invariant: linear in the history, whatever was sampled before. A turn is reached only through the turns and
the messages that led to it; an assistant message nobody sampled counts as a message like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from rollhook.matching import TurnIdentity, conversation_key, message_key, turn_identity
from rollhook.protocols import Message
from rollhook.turns import TurnId

Normalizer = Callable[[Message], Message]


@dataclass(frozen=True, slots=True)
class Reached:
    """turn: the deepest sampled turn, None for none. new_at: where the history's new messages begin.

    inputs: their key. edited: the turn in whose place another assistant message stands, None for none.
    """

    turn: TurnId | None
    new_at: int
    inputs: bytes
    edited: TurnId | None


class Answers:
    """The sampled turns by what they answered.

    normalizers: applied to each message before it is looked at.
    """

    def __init__(self, normalizers: Sequence[Normalizer]) -> None:
        self._normalizers = tuple(normalizers)
        self._turns: dict[tuple[TurnId | None, bytes], list[tuple[TurnId, TurnIdentity]]] = {}

    def add(self, turn: TurnId, base: TurnId | None, inputs: bytes, message: Message) -> None:
        """Remember that `turn`, which says `message`, answered `inputs` behind `base`."""
        identity = turn_identity(self._normalized(message))
        self._turns.setdefault((base, inputs), []).append((turn, identity))

    def first(self, base: TurnId | None, inputs: bytes) -> TurnId | None:
        """The first turn that answered `inputs` behind `base`."""
        answers = self._turns.get((base, inputs))
        return answers[0][0] if answers else None

    def inputs(self, messages: Sequence[Message]) -> bytes:
        """The key of messages that follow a turn."""
        digest = blake2b(digest_size=16)
        for message in messages:
            digest.update(message_key(self._normalized(message)))
        return digest.digest()

    def conversation(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> bytes:
        """The key of what makes a conversation its own."""
        return conversation_key(map(self._normalized, messages), tools)

    def reach(self, messages: Sequence[Message], conversation: bytes) -> Reached:
        """Follow a whole history as far as it was sampled. Keys of openings begin with `conversation`."""
        said = [self._normalized(message) for message in messages]
        turns: list[TurnId | None] = [None]
        """Where the history may stand: a request that was sent again may have got the same answer again."""
        edited: TurnId | None = None
        at = new_at = 0
        before, digest = conversation, blake2b(digest_size=16)
        while at < len(said):
            answers = self._answering(turns, before + digest.digest()) if _is_assistants(said[at]) else []
            if answers:
                found, length = _echoed(answers, said, at)
                if found:
                    turns, edited = [*found], None
                    at = new_at = at + length
                    before, digest = b"", blake2b(digest_size=16)
                    continue
                edited = answers[-1][0]
            digest.update(message_key(said[at]))
            at += 1
        inputs = before + digest.digest()
        asked_before = (turn for turn in turns if (turn, inputs) in self._turns)
        return Reached(next(asked_before, turns[-1]), new_at, inputs, edited)

    def _answering(self, bases: Sequence[TurnId | None], inputs: bytes) -> list[tuple[TurnId, TurnIdentity]]:
        """The turns that answered `inputs` behind any of `bases`, oldest first."""
        found = [answer for base in bases for answer in self._turns.get((base, inputs), ())]
        return sorted(found, key=lambda answer: answer[0]) if len(bases) > 1 else found

    def _normalized(self, message: Message) -> Message:
        for normalizer in self._normalizers:
            message = normalizer(message)
        return message


def _is_assistants(message: Message) -> bool:
    return message.get("role") == "assistant"


def _echoed(
    answers: Sequence[tuple[TurnId, TurnIdentity]], messages: Sequence[Message], at: int
) -> tuple[list[TurnId], int]:
    """The answers that the message at `at` echoes, oldest first, and how many messages they were split into.

    A split turn is the whole row of assistant messages, and says all they say: ids in one of them would not
    speak for the others. Rows are joined only at their first message, which keeps the work linear.
    """
    if at == 0 or not _is_assistants(messages[at - 1]):
        end = at + 1
        while end < len(messages) and _is_assistants(messages[end]):
            end += 1
        if end > at + 1:
            whole = turn_identity(*messages[at:end]).content
            if same := [turn for turn, identity in answers if identity.content == whole]:
                return same, end - at
    return _recognised(answers, turn_identity(messages[at])), 1


def _recognised(answers: Sequence[tuple[TurnId, TurnIdentity]], echoed: TurnIdentity) -> list[TurnId]:
    """The answers that are echoed: those of the same content, since some models use an id again; else, of
    those with one of its ids, the newest."""
    if same := [turn for turn, identity in answers if identity.content == echoed.content]:
        return same
    return [turn for turn, identity in answers if identity.matches(echoed)][-1:]
