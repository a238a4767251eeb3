"""The token ledger of one agent or session: a tree of turns; messages in, ids out, segments at the end.

Invariant: a token the model sampled is stored once, as it was sampled, and trains exactly once, whatever
happens to the message history. Work per turn grows with what is new, not with the conversation. No I/O.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Protocol

from rollhook.carried import Carried
from rollhook.chains import Chain, plan_chains
from rollhook.errors import EngineProtocolError
from rollhook.kinds import kinds_of
from rollhook.proof import History
from rollhook.protocols import FinishReason, Message
from rollhook.recognition import Answers, Normalizer, Reached
from rollhook.render import Renderer
from rollhook.segments import Segment, make_segment
from rollhook.spans import Span, spans_of, stubs
from rollhook.turns import TokenTree, TurnId, TurnNode
from rollhook.wellformed import check_messages, check_tools, text_content

__all__ = ["Ledger", "Prompt", "Sampled", "Segment", "TurnId"]


class Sampled(Protocol):
    """What the ledger reads of an engine's completion (`rollhook.engine.Completion` has it all)."""

    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def log_probs(self) -> Sequence[float]: ...
    @property
    def finish_reason(self) -> FinishReason: ...
    @property
    def request_id(self) -> str: ...
    @property
    def weight_versions(self) -> Sequence[str]: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def matched(self) -> str | int | None: ...
    @property
    def carried(self) -> Carried: ...


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """What to send for the next turn, and where its answer belongs.

    parent: the turn whose tokens come first, None at a root. delta: the ids put behind them.
    length: of the whole prompt, in tokens. starts_in_reasoning: the prompt has opened a `<think>`.
    kept: what in it stands against the template's writing, as in `Ledger.kept`.
    base, inputs, conversation, inserted, named, asked_at, beside, fork, said, rendered: as in
        `rollhook.turns.TurnNode`.
    """

    ledger: Ledger
    parent: TurnId | None
    delta: array[int]
    length: int
    starts_in_reasoning: bool
    base: TurnId | None
    inputs: bytes
    conversation: bytes
    inserted: str
    asked_at: int
    named: Sequence[Span] = ()
    kept: Sequence[str] = ()
    beside: TurnId | None = None
    fork: str | None = None
    said: Sequence[Message] = ()
    rendered: tuple[int, bytes] | None = None

    @property
    def input_ids(self) -> list[int]:
        """[length] every id to send, put together at each access."""
        before = [] if self.parent is None else self.ledger.tokens_until(self.parent).tolist()
        return before + self.delta.tolist()


class Ledger:
    """Keeps one conversation's tokens and what became of it.

    renderer: the model's, frozen at the rollout's clock. role: names the segments. trained: False masks
    everything. normalizers: applied to each message before it is matched. train_abandoned: whether branches
    that the conversation left train.
    """

    def __init__(
        self,
        renderer: Renderer,
        *,
        role: str = "main",
        trained: bool = True,
        normalizers: Sequence[Normalizer] = (),
        train_abandoned: bool = True,
    ) -> None:
        self.renderer = renderer
        self.role = role
        self.trained = trained
        self.train_abandoned = train_abandoned
        self.kept: Counter[str] = Counter()
        """In how many turns' prompts something stands as sampled although the template writes it otherwise.

        "history": earlier turns. "end of turn": the end of the turn before.
        """
        self._tree = TokenTree()
        self._turns: list[TurnNode] = []
        self._roots: list[TurnId] = []
        self._opened: dict[bytes, TurnId] = {}
        self._answers = Answers(normalizers)
        self._tools: dict[bytes, Sequence[Mapping[str, Any]]] = {}

    @property
    def turns(self) -> int:
        """How many turns were committed."""
        return len(self._turns)

    @property
    def forks(self) -> list[tuple[TurnId, str]]:
        """Every turn that left the chain before it, with the reason."""
        return [(node.id, node.fork) for node in self._turns if node.fork]

    @property
    def sampled_tokens(self) -> int:
        """How many sampled tokens the segments train (would train, where `trained` is False).

        All but those of requests that were sent again, and of abandoned branches where these do not train.
        """
        return sum(self._turns[turn].sampled_count for chain in self._chains() for turn in chain.trains)

    @property
    def trained_tokens(self) -> int:
        """How many of them have mask 1: all but the untrained ones of turns from a former attempt."""
        if not self.trained:
            return 0
        return sum(self._turns[turn].trained_count for chain in self._chains() for turn in chain.trains)

    def length_until(self, turn: TurnId) -> int:
        """How many tokens there are up to the end of `turn`."""
        return self._turns[turn].end

    def tokens_until(self, turn: TurnId) -> array[int]:
        """Every token up to the end of `turn`."""
        return self._tree.tokens_until(self._turns[turn])

    def extend(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        after: TurnId | None = None,
        kinds: Sequence[str | None] = (),
    ) -> Prompt:
        """The prompt of the next turn.

        after: the turn that `messages` follow, for a caller that keeps track; tools then stay those the
        conversation opened with. None: `messages` is a whole history, of which everything up to the deepest
        sampled turn it reaches is recognised and only the rest is rendered.
        kinds: with `after`, what each message's tokens are called in spans; None, or too few: "messages".
        Raises RenderError when a message is malformed, or the chat template cannot express them.
        """
        check_messages(messages)
        check_tools(tools)
        if after is not None:
            prompt = self._continue(after, messages, self._answers.inputs(messages))
            return self._named(after, prompt, messages, kinds) if any(kinds) else prompt
        conversation = self._answers.conversation(messages, tools)
        reached = self._answers.reach(messages, conversation)
        if reached.turn is None:
            return self._open(messages, tools, conversation, reached)
        fork = None if reached.edited is None else "edited turn"
        return self._continue(reached.turn, messages[reached.new_at :], reached.inputs, fork)

    def continue_turn(self, turn: TurnId, text: str, *, kind: str | None = None) -> Prompt:
        """The prompt that goes on in the open turn behind `text`, which is masked.

        kind: what spans call `text`.
        """
        node = self._turns[turn]
        delta = array("i", self.renderer.raw(text))
        return Prompt(
            ledger=self,
            parent=turn,
            delta=delta,
            length=node.end + len(delta),
            starts_in_reasoning=False,
            base=node.base,
            inputs=node.inputs,
            conversation=node.conversation,
            inserted="text",
            named=() if kind is None else (Span(0, len(delta), kind),),
            asked_at=len(self._turns),
            said=node.said[:-1],
            rendered=node.rendered,
        )

    def commit(self, prompt: Prompt, completion: Sampled, message: Message) -> TurnId:
        """Store a sampled turn. message: the parsed assistant message, whole where raw text continued it.

        The same request committed twice is one turn. Raises EngineProtocolError when ids and
        log-probabilities do not align.
        """
        ids, log_probs = completion.token_ids, completion.log_probs
        if len(ids) != len(log_probs):
            raise EngineProtocolError(
                f"request {completion.request_id}: {len(ids)} ids but {len(log_probs)} log-probabilities"
            )
        answered = self._answered(prompt)
        for turn in answered:
            if self._turns[turn].request_id == completion.request_id:
                return turn
        turn = TurnId(len(self._turns))
        fork = "retry" if answered else self._fork_reason(prompt)
        beside = answered[0] if answered and prompt.parent is None else prompt.beside
        parent = None if prompt.parent is None else self._turns[prompt.parent]
        strand, start, log_probs_at = self._tree.append(parent, prompt.delta, ids, log_probs)
        sampled_at = start + len(prompt.delta)
        node = TurnNode(
            id=turn,
            parent=prompt.parent,
            strand=strand,
            start=start,
            sampled_at=sampled_at,
            end=sampled_at + len(ids),
            log_probs_at=log_probs_at,
            stub=_stub(message),
            base=prompt.base,
            inputs=prompt.inputs,
            conversation=prompt.conversation,
            end_id=ids[-1] if ids and ids[-1] in self.renderer.end_of_turn_ids else None,
            inserted=prompt.inserted,
            named=prompt.named,
            finish_reason=completion.finish_reason,
            request_id=completion.request_id,
            weight_versions=tuple(completion.weight_versions),
            cached_tokens=completion.cached_tokens,
            prompt_tokens=completion.prompt_tokens,
            asked_at=prompt.asked_at,
            beside=beside,
            fork=fork,
            said=[*prompt.said, message] if prompt.rendered else (),
            rendered=prompt.rendered,
            matched=completion.matched,
            carried=completion.carried,
        )
        self._turns.append(node)
        self.kept.update(prompt.kept)
        if parent is None:
            self._roots.append(turn)
            self._opened.setdefault(prompt.conversation, turn)
        else:
            parent.children.append(turn)
            if completion.carried.experts is not None:
                parent.carried = replace(parent.carried, experts=None)
        self._answers.add(turn, prompt.base, prompt.inputs, message)
        return turn

    def segments(self) -> list[Segment]:
        """The fewest chains in which every sampled token trains once, in the order their last turns came."""
        chains = self._chains()
        if not self.trained:
            chains = [replace(chain, trains=frozenset()) for chain in chains]
        made = (make_segment(self._tree, chain, self.role) for chain in chains)
        return [segment for segment in made if segment is not None]

    def _open(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        conversation: bytes,
        reached: Reached,
    ) -> Prompt:
        if (earlier := self._answers.first(None, reached.inputs)) is not None:
            return self._asked_again(self._turns[earlier])
        self._tools[conversation] = tools
        text = self.renderer.opening_text(messages, tools)
        prompt = self._root_prompt(
            text, base=None, inputs=reached.inputs, conversation=conversation, said=messages
        )
        if reached.edited is None:
            return prompt
        return replace(prompt, beside=reached.edited, fork="edited turn")

    def _root_prompt(
        self, text: str, *, base: TurnId | None, inputs: bytes, conversation: bytes, said: Sequence[Message]
    ) -> Prompt:
        delta = array("i", self.renderer.encode(text))
        keeps_text = self.renderer.policy == "template"
        return Prompt(
            ledger=self,
            parent=None,
            delta=delta,
            length=len(delta),
            starts_in_reasoning=self.renderer.starts_in_reasoning(delta),
            base=base,
            inputs=inputs,
            conversation=conversation,
            inserted="prompt",
            asked_at=len(self._turns),
            fork=None if base is None else "the template rewrote the history",
            said=list(said) if keeps_text else (),
            rendered=(len(text), _digest(text)) if keeps_text else None,
        )

    def _continue(
        self, turn: TurnId, messages: Sequence[Message], inputs: bytes, fork: str | None = None
    ) -> Prompt:
        if (earlier := self._answers.first(turn, inputs)) is not None:
            return self._asked_again(self._turns[earlier])
        node = self._turns[turn]
        rendered = None
        if node.rendered is not None:
            text = self.renderer.opening_text(
                [*self._said_until(node), *messages], self._tools[node.conversation]
            )
            if self._is_rewritten(node, text):
                return self._root_prompt(
                    text, base=turn, inputs=inputs, conversation=node.conversation, said=messages
                )
            rendered = len(text), _digest(text)
        after = self.renderer.after(
            node.stub, messages, ended_by_eot=node.end_id is not None, end_id=node.end_id
        )
        kept = ["end of turn"] if after.other_end else []
        if after.history is History.REWRITTEN and rendered is None:
            kept.append("history")
        delta = array("i", after.ids)
        return Prompt(
            ledger=self,
            parent=turn,
            delta=delta,
            length=node.end + len(delta),
            starts_in_reasoning=self.renderer.starts_in_reasoning(delta),
            base=turn,
            inputs=inputs,
            conversation=node.conversation,
            inserted="messages",
            asked_at=len(self._turns),
            kept=kept,
            fork=fork,
            said=messages if rendered else (),
            rendered=rendered,
        )

    def _named(
        self, turn: TurnId, prompt: Prompt, messages: Sequence[Message], kinds: Sequence[str | None]
    ) -> Prompt:
        """The prompt with the tokens of `messages` named; of a rewritten history none are."""
        if prompt.parent is None:
            return prompt
        node, renderer = self._turns[turn], self.renderer
        stubbed = [
            {**message, "content": stub} for message, stub in zip(messages, stubs(len(messages)), strict=True)
        ]
        ids = renderer.after(node.stub, stubbed, ended_by_eot=node.end_id is not None, end_id=node.end_id).ids
        contents = [text_content(message, at) for at, message in enumerate(messages)]
        kinds = [*kinds, *[None] * (len(messages) - len(kinds))]
        spans = spans_of(prompt.delta, contents, kinds, renderer.text_of(ids), renderer.text_of)
        return replace(prompt, named=spans)

    def _asked_again(self, node: TurnNode) -> Prompt:
        """The prompt of a request that was answered before, id for id."""
        delta = self._tree.inserted_before(node)
        return Prompt(
            ledger=self,
            parent=node.parent,
            delta=delta,
            length=node.sampled_at,
            starts_in_reasoning=self.renderer.starts_in_reasoning(delta),
            base=node.base,
            inputs=node.inputs,
            conversation=node.conversation,
            inserted=node.inserted,
            named=node.named,
            asked_at=len(self._turns),
            said=node.said[:-1],
            rendered=node.rendered,
        )

    def _said_until(self, node: TurnNode) -> list[Message]:
        """The conversation up to and with a turn (policy "template")."""
        runs = []
        turn: TurnId | None = node.id
        while turn is not None:
            runs.append(self._turns[turn].said)
            turn = self._turns[turn].base
        return [message for run in reversed(runs) for message in run]

    def _is_rewritten(self, node: TurnNode, text: str) -> bool:
        """Whether the template, in `text`, writes a turn's prompt otherwise or leaves out what it said."""
        assert node.rendered is not None
        length, digest = node.rendered
        return _digest(text[:length]) != digest or not self.renderer.writes_turn(text[length:], node.said[-1])

    def _answered(self, prompt: Prompt) -> list[TurnId]:
        """The turns that answer this very prompt."""
        turns = self._roots if prompt.parent is None else self._turns[prompt.parent].children
        asked = prompt.base, prompt.inputs, prompt.inserted
        return [
            turn
            for turn in turns
            if (node := self._turns[turn]) and (node.base, node.inputs, node.inserted) == asked
            if self._tree.inserted_before(node) == prompt.delta
        ]

    def _fork_reason(self, prompt: Prompt) -> str | None:
        if prompt.fork is not None:
            return prompt.fork
        if prompt.parent is None:
            earlier = self._opened.get(prompt.conversation)
            if earlier is None:
                return "other system prompt or tools" if self._roots else None
        else:
            earlier = next(iter(self._turns[prompt.parent].children), None)
            if earlier is None:
                return None
        if earlier >= prompt.asked_at:
            return "asked at the same time"
        return "history replaced" if prompt.parent is None else "rewind"

    def _chains(self) -> list[Chain]:
        with_tools = {conversation for conversation, tools in self._tools.items() if tools}
        kinds = kinds_of(self._turns, with_tools, self.role)
        return plan_chains(self._turns, self._duplicates(), kinds, train_abandoned=self.train_abandoned)

    def _duplicates(self) -> set[TurnId]:
        """Of several answers to one request, all but those that were continued, or else the last."""
        retried = {(node.base, node.inputs) for node in self._turns if node.fork == "retry"}
        requests: dict[tuple[Any, ...], list[TurnNode]] = {}
        for node in self._turns:
            if (node.base, node.inputs) in retried:
                inserted = self._tree.inserted_before(node).tobytes()
                requests.setdefault((node.parent, node.base, node.inputs, inserted), []).append(node)
        duplicates: set[TurnId] = set()
        for nodes in requests.values():
            chosen = {node.id for node in nodes if node.children} or {nodes[-1].id}
            duplicates.update({node.id for node in nodes} - chosen)
        return duplicates


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _stub(message: Message) -> Message:
    """What rendering needs of an assistant message: its calls' ids and names."""
    calls = message.get("tool_calls") or []
    if not calls:
        return {"role": "assistant"}
    return {
        "role": "assistant",
        "tool_calls": [{"id": call["id"], "function": {"name": call["function"]["name"]}} for call in calls],
    }
