"""One agent's turns: messages in, a sampled turn out, tools and observations fed back.

Invariant: what the model sampled reaches the ledger before anything else looks at it, and work per turn
grows with what is new. Limits end a loop, not a rollout: what was sampled stays and trains.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rollhook.engine import Completion, Engine
from rollhook.errors import LimitReached, RolloutAborted, RolloutError, first_leaf
from rollhook.ledger import Ledger, Prompt, TurnId
from rollhook.limits import DEFAULT_NEW_TOKENS
from rollhook.opened import OpenTool
from rollhook.parsing import Parsed, Parser
from rollhook.protocols import (
    BeforeTurn,
    Environment,
    Message,
    Observation,
    Said,
    ToolCall,
    ToolResult,
    Turn,
)


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """What bounds one agent. max_context_tokens: prompt and answer together; None: the engine's own."""

    max_turns: int
    max_new_tokens: int | None
    max_context_tokens: int | None


@dataclass(slots=True)
class LiveAgent:
    """The agent a topology talks to (`rollhook.protocols.Agent`).

    parser: makes the parser of one turn, told whether the prompt already opened the reasoning.
    seed: makes the sampling seed of a turn from (role, turn index); None leaves seeding to the engine.
    truncated: what ended this agent's last turn or loop early, a limit or the stage of an error; None while
        nothing did. aborted: the trainer's abort did.
    before_turn: what it is told goes through this first.
    """

    role: str
    ledger: Ledger
    engine: Engine
    parser: Callable[[bool], Parser]
    tools: Mapping[str, OpenTool]
    sampling: Mapping[str, Any]
    seed: Callable[[str, int], int] | None
    limits: TurnLimits
    session: str
    on_turn: Callable[[Turn], None]
    system: str | None = None
    trained: bool = True
    before_turn: BeforeTurn | None = None
    truncated: str | None = None
    aborted: bool = False
    turns: int = 0
    last: TurnId | None = None
    messages: list[Message] = field(default_factory=list)

    @property
    def context_tokens(self) -> int:
        """The length of its conversation, tokens."""
        return 0 if self.last is None else self.ledger.length_until(self.last)

    @property
    def max_context_tokens(self) -> int | None:
        """What its conversation may grow to, tokens; None: as far as the engine goes."""
        return self.limits.max_context_tokens

    def limit_at(self, tokens: int) -> str:
        """The limit that cut a turn after which the conversation has `tokens` tokens."""
        most = self.limits.max_context_tokens
        return "max_new_tokens" if most is None or tokens < most else "max_context_tokens"

    def restart(self) -> None:
        """Forget the conversation: the next turn opens a new one in its place."""
        self.messages = []
        self.last = None

    async def turn(self, said: Said) -> Turn:
        """Say something to the agent and sample its answer.

        Raises LimitReached when nothing may be sampled.
        """
        before_turn = self.before_turn
        if before_turn is not None:
            self.before_turn = None  # the turns that it takes itself are as it says them
            try:
                said = await before_turn(self, said)
            finally:
                self.before_turn = before_turn
        with self._cut_short():
            if isinstance(said, Observation) and said.text is not None:
                return await self._resume(said.text, said.kind)
            return await self._answer_to(_messages(said), _kinds(said))

    async def _answer_to(self, new: list[Message], kinds: Sequence[str | None]) -> Turn:
        if self.system is not None and not self.messages:
            new.insert(0, {"role": "system", "content": self.system})
        schemas = [tool.schema for tool in self.tools.values()]
        prompt = self.ledger.extend(new, tools=schemas, after=self.last, kinds=kinds)
        completion = await self._sample(prompt)
        self.messages.extend(new)
        return self._finish(prompt, completion, opened=None)

    async def _resume(self, text: str, kind: str | Sequence[str | None] | None) -> Turn:
        """Append raw text to the open turn and let the model go on in it."""
        if self.last is None:
            raise RolloutError("raw text cannot continue a turn before the first one was sampled")
        prompt = self.ledger.continue_turn(self.last, text, kind=kind if isinstance(kind, str) else None)
        completion = await self._sample(prompt)
        opened = self.messages.pop()
        return self._finish(prompt, completion, {**opened, "content": f"{opened['content']}{text}"})

    async def answer(self, turn: Turn, *, environment: Environment | None = None) -> Observation | None:
        """What follows `turn`: its tools' results, else what the environment shows; None: nothing does."""
        if turn.finish_reason == "length":
            return None
        if not turn.tool_calls and not turn.call_errors:
            return None if environment is None else await environment.step(turn)
        results = await self._call_tools(turn)
        if results.done and environment is not None:
            await environment.step(turn)
        return results

    async def loop(self, said: Said, *, environment: Environment | None = None) -> Turn:
        """Turns until nothing answers, the environment is done, or a limit is reached."""
        turn = await self.turn(said)
        try:
            while (seen := await self.answer(turn, environment=environment)) and not seen.done:
                turn = await self.turn(seen)
        except LimitReached as reached:
            self.truncated = reached.limit
        return turn

    @contextmanager
    def _cut_short(self) -> Iterator[None]:
        """Remember what ends a turn before it is there."""
        try:
            yield
        except LimitReached as reached:
            self.truncated = reached.limit
            raise
        except RolloutError as error:
            self.truncated = error.stage
            raise
        except RolloutAborted:
            self.aborted = True
            raise

    async def _sample(self, prompt: Prompt) -> Completion:
        if self.turns >= self.limits.max_turns:
            raise LimitReached("max_turns")
        return await self.engine.generate(
            prompt.input_ids, self._sampling(prompt.length), session=self.session
        )

    def _sampling(self, prompt_tokens: int) -> dict[str, Any]:
        """This turn's sampling parameters. Raises LimitReached when the context is full."""
        limits = [self.sampling.get("max_new_tokens"), self.limits.max_new_tokens]
        most = min((limit for limit in limits if limit is not None), default=DEFAULT_NEW_TOKENS)
        if self.limits.max_context_tokens is not None:
            most = min(most, self.limits.max_context_tokens - prompt_tokens)
        if most < 1:
            raise LimitReached("max_context_tokens")
        sampling = {**self.sampling, "max_new_tokens": most}
        if self.seed is not None:
            sampling["sampling_seed"] = self.seed(self.role, self.turns)
        return sampling

    def _finish(self, prompt: Prompt, completion: Completion, opened: Message | None) -> Turn:
        """Commit what was sampled, then read it."""
        text = self.ledger.renderer.decode(completion.token_ids)
        parsed = self.parser(opened is None and prompt.starts_in_reasoning).parse(text)
        message = _message(parsed, opened)
        self.last = self.ledger.commit(prompt, completion, message)
        self.messages.append(message)
        turn = Turn(
            role=self.role,
            index=self.turns,
            text=text,
            content=parsed.content,
            reasoning=parsed.reasoning,
            tool_calls=parsed.tool_calls,
            finish_reason=completion.finish_reason,
            matched=completion.matched if isinstance(completion.matched, str) else None,
            tokens=len(completion.token_ids),
            message=message,
            call_errors=tuple(broken.error for broken in parsed.broken_calls),
        )
        self.turns += 1
        cut = completion.finish_reason == "length"
        self.truncated = self.limit_at(prompt.length + turn.tokens) if cut else None
        self.on_turn(turn)
        if completion.finish_reason == "abort":
            raise RolloutAborted
        return turn

    async def _call_tools(self, turn: Turn) -> Observation:
        """Run the turn's calls at once; answers come in the order of the calls."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._call(call)) for call in turn.tool_calls]
        except ExceptionGroup as failed:
            error = first_leaf(failed) or failed
            raise error from error.__cause__
        results = [task.result() for task in tasks]
        answers: list[Message] = [
            {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": result.content}
            for call, result in zip(turn.tool_calls, results, strict=True)
        ]
        if turn.call_errors:
            answers.append({"role": "user", "content": "\n".join(turn.call_errors)})
        over = any(result.done for result in results)
        return Observation(messages=answers, done=over, kind=[result.kind for result in results])

    async def _call(self, call: ToolCall) -> ToolResult:
        tool = self.tools.get(call.name)
        if tool is None:
            known = ", ".join(self.tools) or "none"
            return ToolResult(f"Error: there is no tool {call.name!r}; the tools are: {known}", is_error=True)
        return await tool.call(call.arguments)


def _messages(said: Said) -> list[Message]:
    if isinstance(said, str):
        return [{"role": "user", "content": said}]
    return list(said.messages if isinstance(said, Observation) else said)


def _kinds(said: Said) -> Sequence[str | None]:
    """Of each message that is said; those left out have none."""
    if not isinstance(said, Observation) or said.kind is None:
        return ()
    return [said.kind] * len(said.messages) if isinstance(said.kind, str) else said.kind


def _message(parsed: Parsed, opened: Message | None) -> Message:
    """The assistant turn as a chat message; `opened` is the part of it that stood before."""
    message: Message = {"role": "assistant", "content": parsed.content}
    if opened is not None:
        message = {**opened, "content": f"{opened['content']}{parsed.content}"}
    if parsed.reasoning is not None:
        message["reasoning_content"] = parsed.reasoning
    if parsed.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
            }
            for call in parsed.tool_calls
        ]
    return message
