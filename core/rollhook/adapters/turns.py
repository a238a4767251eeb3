"""One request answered: history -> ledger -> engine -> ledger, the same for every protocol.

Invariant: a turn enters the ledger only when it was sampled whole and its client is there to get it. The
run's sampling parameters are what reaches the engine, whatever the client asked for.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from rollhook.adapters.errors import WireError, as_wire_error, bad_request, too_long
from rollhook.adapters.images import digests_in
from rollhook.adapters.partial import PartialCalls
from rollhook.adapters.reading import Said, TurnEvent, TurnReader
from rollhook.adapters.sessions import Purpose, Session
from rollhook.adapters.tool_choice import ToolChoice
from rollhook.engine import Completion, Delta, Engine
from rollhook.errors import EngineError, RenderError
from rollhook.ledger import Ledger, Prompt
from rollhook.parsing import ALWAYS_REASONS, make_parser
from rollhook.parsing.forcing import CALL_FORMS, Thinking, forced_calls
from rollhook.protocols import FinishReason, Message

DEFAULT_MAX_NEW_TOKENS = 4096
MISTRAL_ID_LENGTH = 9  # its template refuses call ids of another length


@dataclass(frozen=True, slots=True)
class Ask:
    """What a protocol module read in a request.

    model: as the client names it. tools: in OpenAI's form.
    constraint: sampling parameters that force the answer's form.
    images: the request's images by their digest, which is what messages hold of them: data URLs.
    asked: what the client asked for and does not decide, for the record.
    """

    model: str
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    stream: bool = False
    max_new_tokens: int | None = None
    choice: ToolChoice = field(default_factory=ToolChoice)
    constraint: Mapping[str, Any] = field(default_factory=dict)
    images: Mapping[str, str] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """A sampled turn. id: the response's. message: as it stands in the ledger."""

    id: str
    said: Said
    message: Message
    finish_reason: FinishReason
    matched: str | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int


@dataclass(frozen=True, slots=True)
class TurnRules:
    """What an adapter holds every turn to. sampling: the run's. 0: no limit."""

    tool_parser: str | None
    reasoning_parser: str | None
    sampling: Mapping[str, Any]
    max_turns_per_session: int
    max_tokens_per_session: int
    max_context_tokens: int


class LiveTurn:
    """One request on its way. Raises WireError on making when it cannot be asked of the engine.

    id: the response's id, which thinking carries back. new_call_id: see `rollhook.parsing.make_parser`.
    """

    def __init__(
        self, session: Session, ask: Ask, engine: Engine, rules: TurnRules, call_prefix: str
    ) -> None:
        self.id = secrets.token_hex(12)
        self.session = session
        self.ask = ask
        self._engine = engine
        self._rules = rules
        self._call_prefix = call_prefix
        self._check_caps()
        if ask.tools and rules.tool_parser is None:
            raise bad_request(
                "tools: this adapter was made without a tool_parser, so it offers none", "tools"
            )
        self._ledger, self.prompt = extend(session, ask)
        self._images = tuple(digests_in(ask.messages))
        self._constraint = {**ask.constraint, **self._demanded_calls()}
        self._sampling = self._sampling_params()
        self._completion: Completion | None = None
        self._message: Message = {}
        session.requests += 1

    async def sample(self, on_event: Callable[[TurnEvent], None] | None = None) -> Answer:
        """Sample the turn, telling `on_event` what becomes certain. Nothing is committed yet.

        Raises WireError for whatever goes wrong.
        """
        reader = self._reader()
        on_delta = None if on_event is None else _feeding(reader, on_event)
        ids = self.prompt.input_ids
        try:
            completion = await self._engine.generate(
                ids,
                self._sampling,
                session=self.session.routing_key,
                on_delta=on_delta,
                extra=self._image_data(ids) if self._images else None,
            )
        except EngineError as error:
            raise as_wire_error(error) from error
        if completion.finish_reason == "abort":
            self.session.last_finish = "abort"
            raise WireError(503, "the engine's answer was aborted before its end", "aborted", retry=True)
        events, said = reader.finish(completion.token_ids)
        if on_event is not None:
            for event in events:
                on_event(event)
        self._completion, self._message = completion, self._as_message(said)
        return Answer(
            id=self.id,
            said=said,
            message=self._message,
            finish_reason=completion.finish_reason,
            matched=completion.matched if isinstance(completion.matched, str) else None,
            prompt_tokens=self.prompt.length,
            cached_tokens=completion.cached_tokens,
            completion_tokens=len(completion.token_ids),
            reasoning_tokens=len(self._ledger.renderer.encode(said.reasoning)) if said.reasoning else 0,
        )

    def commit(self) -> None:
        """Put the sampled turn into the ledger."""
        assert self._completion is not None
        completion = self._completion
        if self._constraint:
            self.session.constrained_turns.append(self.session.turns)
            if (
                not self.session.train_constrained
            ):  # the model's own probabilities would have sampled otherwise
                untrained = replace(completion.carried, untrained=len(completion.token_ids))
                completion = replace(completion, carried=untrained)
        self._ledger.commit(self.prompt, completion, self._message)
        if self._images:
            self.session.images.update(self.ask.images)
            self.session.images_of[self._completion.request_id] = self._images
        self.session.note(self.ask.asked)
        self.session.turns += 1
        self.session.sampled_tokens += len(self._completion.token_ids)
        self.session.last_finish = self._completion.finish_reason
        self.session.truncated = False  # a client that shortened its history goes on

    def _image_data(self, ids: Sequence[int]) -> dict[str, Any]:
        """The conversation's images in order, one for each place in the prompt."""
        if (places := self._ledger.renderer.image_places(ids)) != len(self._images):
            raise bad_request(
                f"the prompt has {places} places for {len(self._images)} images: the model wrote some itself"
            )
        known = {**self.session.images, **self.ask.images}
        return {"image_data": [known[digest] for digest in self._images]}

    def _check_caps(self) -> None:
        session, rules = self.session, self._rules
        if rules.max_turns_per_session and session.turns >= rules.max_turns_per_session:
            session.truncated = True
            raise WireError(
                403, f"the session has had its {rules.max_turns_per_session} turns", "turn_limit_reached"
            )
        if rules.max_tokens_per_session and session.sampled_tokens >= rules.max_tokens_per_session:
            session.truncated = True
            raise WireError(
                403,
                f"the session has sampled its {rules.max_tokens_per_session} tokens",
                "token_limit_reached",
            )

    def _demanded_calls(self) -> dict[str, Any]:
        """The sampling parameter by which the engine samples a call that the client demands; {} for none."""
        choice, family = self.ask.choice, self._rules.tool_parser or ""
        if not choice.demanded:
            return {}
        if self.ask.constraint:
            raise bad_request("tool_choice: a call cannot be demanded together with a form of the answer")
        form = CALL_FORMS.get(family)
        if form is None:
            raise bad_request(
                f'tool_choice: calls of the family {family!r} cannot be forced; use "auto" or "none"',
                "tool_choice",
            )
        tools = [tool for tool in self.ask.tools if tool["function"]["name"] in choice.demanded]
        tag = forced_calls(form, tools, parallel=choice.parallel, thinking=self._thinking())
        return {"structural_tag": json.dumps(tag)}

    def _thinking(self) -> Thinking:
        parser = self._rules.reasoning_parser
        if parser is None:
            return "never"
        return "open" if self.prompt.starts_in_reasoning or parser in ALWAYS_REASONS else "may"

    def _sampling_params(self) -> dict[str, Any]:
        """The run's parameters; a client only lowers the length or forces the form."""
        sampling = {**self._rules.sampling, **self.session.sampling, **self._constraint}
        limits = [sampling.get("max_new_tokens"), self.ask.max_new_tokens]
        if context := self.session.max_context_tokens or self._rules.max_context_tokens:
            if self.prompt.length >= context:
                self.session.truncated = True
                raise too_long(self.prompt.length, context)
            limits.append(context - self.prompt.length)
        sampling["max_new_tokens"] = min(
            (limit for limit in limits if limit is not None), default=DEFAULT_MAX_NEW_TOKENS
        )
        if sampling.get("sampling_seed") is not None:  # a seed of its own for each turn
            sampling["sampling_seed"] = (sampling["sampling_seed"] + self.session.requests) % 2**31
        return sampling

    def _reader(self) -> TurnReader:
        parses_calls = bool(self.ask.tools) and self.ask.choice.looked_for
        tool_parser = self._rules.tool_parser if parses_calls else None
        make = partial(
            make_parser,
            tool_parser,
            self._rules.reasoning_parser,
            tools=self.ask.tools,
            starts_in_reasoning=self.prompt.starts_in_reasoning,
        )
        return TurnReader(
            self._ledger.renderer,
            lambda new_id: make(new_id=new_id),
            self._new_call_id,
            PartialCalls(tool_parser, self.ask.tools),
        )

    def _new_call_id(self) -> str:
        if self._rules.tool_parser == "mistral":
            return secrets.token_hex(MISTRAL_ID_LENGTH)[:MISTRAL_ID_LENGTH]
        return f"{self._call_prefix}{secrets.token_hex(12)}"

    def _as_message(self, said: Said) -> Message:
        message: Message = {"role": "assistant", "content": said.content, "response_id": self.id}
        if said.reasoning is not None:
            message["reasoning_content"] = said.reasoning
        if said.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in said.calls
            ]
        return message


def extend(session: Session, ask: Ask) -> tuple[Ledger, Prompt]:
    """The ledger a request belongs to and its prompt. Raises WireError when it cannot be rendered."""
    ledger = session.ledger(_purpose(ask))
    try:
        return ledger, ledger.extend(ask.messages, tools=ask.tools)
    except RenderError as error:
        raise as_wire_error(error) from error


def _purpose(ask: Ask) -> Purpose:
    """A request without tools, in whose history no tool was used, is a call beside the conversation."""
    used = any(message["role"] == "tool" or message.get("tool_calls") for message in ask.messages)
    return "main" if ask.tools or used else "side"


def _feeding(reader: TurnReader, on_event: Callable[[TurnEvent], None]) -> Callable[[Delta], None]:
    def on_delta(delta: Delta) -> None:
        for event in reader.feed(delta.token_ids):
            on_event(event)

    return on_delta
