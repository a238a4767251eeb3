"""One agent's turns: messages in, a sampled turn out, tools and observations fed back.

Invariant: what the model sampled reaches the ledger before anything else looks at it, and work per turn
grows with what is new. Limits end a loop, not a rollout: what was sampled stays and trains.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollhook.engine import Completion, Engine
from rollhook.errors import LimitReached, RolloutAborted, RolloutError, first_leaf
from rollhook.ledger import Ledger, Prompt, TurnId
from rollhook.limits import DEFAULT_NEW_TOKENS
from rollhook.opened import OpenTool
from rollhook.parsing import Parsed, Parser
from rollhook.protocols import Environment, Message, ToolCall, ToolResult, Turn


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
    truncated: the limit that ended this agent's last turn or loop, None while none did.
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
    truncated: str | None = None
    turns: int = 0
    last: TurnId | None = None
    messages: list[Message] = field(default_factory=list)

    async def turn(self, messages: str | Sequence[Message]) -> Turn:
        """Say `messages` to the agent and sample its answer.

        Raises LimitReached when nothing may be sampled.
        """
        new = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        if self.system is not None and not self.messages:
            new.insert(0, {"role": "system", "content": self.system})
        prompt = self.ledger.extend(new, tools=[tool.schema for tool in self.tools.values()], after=self.last)
        completion = await self._sample(prompt)
        self.messages.extend(new)
        return self._finish(prompt, completion, opened=None)

    async def resume(self, text: str) -> Turn:
        """Append raw text to the open turn and let the model go on in it."""
        if self.last is None:
            raise RolloutError("raw text cannot continue a turn before the first one was sampled")
        prompt = self.ledger.continue_turn(self.last, text)
        completion = await self._sample(prompt)
        opened = self.messages.pop()
        return self._finish(prompt, completion, {**opened, "content": f"{opened['content']}{text}"})

    async def loop(
        self, messages: str | Sequence[Message], *, environment: Environment | None = None
    ) -> Turn:
        """Turns until nothing answers, the environment is done, or a limit is reached."""
        turn = await self.turn(messages)
        while turn.finish_reason != "length":
            try:
                if turn.tool_calls or turn.call_errors:
                    turn = await self.turn(await self._call_tools(turn))
                    continue
                if environment is None:
                    break
                seen = await environment.step(turn)
                if seen.done:
                    break
                turn = await (self.turn(seen.messages) if seen.text is None else self.resume(seen.text))
            except LimitReached as reached:
                self.truncated = reached.limit
                break
        return turn

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
        self.truncated = "max_new_tokens" if completion.finish_reason == "length" else None
        self.on_turn(turn)
        if completion.finish_reason == "abort":
            raise RolloutAborted
        return turn

    async def _call_tools(self, turn: Turn) -> list[Message]:
        """Run the turn's calls at once; answers come in the order of the calls."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._call(call)) for call in turn.tool_calls]
        except ExceptionGroup as failed:
            error = first_leaf(failed) or failed
            raise error from error.__cause__
        answers: list[Message] = [
            {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": task.result().content}
            for call, task in zip(turn.tool_calls, tasks, strict=True)
        ]
        if turn.call_errors:
            answers.append({"role": "user", "content": "\n".join(turn.call_errors)})
        return answers

    async def _call(self, call: ToolCall) -> ToolResult:
        tool = self.tools.get(call.name)
        if tool is None:
            known = ", ".join(self.tools) or "none"
            return ToolResult(f"Error: there is no tool {call.name!r}; the tools are: {known}", is_error=True)
        return await tool.call(call.arguments)


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
