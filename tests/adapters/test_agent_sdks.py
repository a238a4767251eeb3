"""openai-agents and claude-agent-sdk, unmodified, through an adapter."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollhook.testing import ScriptedRequest
from tests.adapters.worlds import call, sampled, trained, world


def triage_and_weather(request: ScriptedRequest) -> str:
    """Hands over to the weather agent, which calls two tools at once and answers."""
    thought = "<think>\nhm\n</think>\n\n"
    if "You triage." in request.prompt:
        return thought + call("transfer_to_weather_agent")
    if "<tool_response>\n21" in request.prompt:
        return f"{thought}It is 21 degrees at noon."
    return f"{thought}{call('temperature', city='Oslo')}\n{call('clock', city='Oslo')}"


@pytest.mark.parametrize("kind", ["chat", "responses"])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_two_tools_and_a_hand_off_of_the_openai_agents_sdk(
    qwen3_tokenizer: Any, kind: str, streamed: bool
) -> None:
    agents = pytest.importorskip("agents")
    agents.set_tracing_disabled(True)

    @agents.function_tool  # type: ignore[untyped-decorator]  # the SDK may be missing
    def temperature(city: str) -> str:
        """The temperature of a city."""
        return "21"

    @agents.function_tool  # type: ignore[untyped-decorator]  # as above
    def clock(city: str) -> str:
        """The time in a city."""
        return "noon"

    async with world(qwen3_tokenizer, triage_and_weather) as w:
        session = w.adapter.open_session()
        async with w.openai(session) as client:
            made: Callable[..., Any] = (
                agents.OpenAIResponsesModel if kind == "responses" else agents.OpenAIChatCompletionsModel
            )
            model = made(model="m", openai_client=client)
            weather = agents.Agent(
                name="weather agent",
                instructions="You know the weather.",
                tools=[temperature, clock],
                model=model,
            )
            triage = agents.Agent(name="triage", instructions="You triage.", handoffs=[weather], model=model)
            if streamed:
                run = agents.Runner.run_streamed(triage, "How warm is it in Oslo?")
                kinds = [event.type async for event in run.stream_events()]
                assert "raw_response_event" in kinds
                result = run
            else:
                result = await agents.Runner.run(triage, "How warm is it in Oslo?")
        segments = await w.adapter.finish_session(session.session_id)

    assert result.final_output == "It is 21 degrees at noon."
    assert result.last_agent.name == "weather agent"
    assert [segment.turns for segment in segments] == [1, 2]
    ids = [token_id for kept, _ in trained(segments) for token_id in kept]
    assert ids == sampled(w.engine)[0]


@pytest.mark.skipif(
    not os.environ.get("ROLLHOOK_COMMAND_LINES"), reason="starts Claude Code's program: make test-cli"
)
async def test_the_claude_agent_sdk(qwen3_tokenizer: Any, tmp_path: Path) -> None:
    sdk = pytest.importorskip("claude_agent_sdk")

    def reply(request: ScriptedRequest) -> str:
        thought = "<think>\nhm\n</think>\n\n"
        if "<tool_response>\n" in request.prompt:
            return f"{thought}The file says hello."
        return thought + call("Bash", command="cat notes.txt", description="read")

    (tmp_path / "notes.txt").write_text("hello\n")
    async with world(qwen3_tokenizer, reply) as w:
        session = w.adapter.open_session()
        options = sdk.ClaudeAgentOptions(
            cwd=tmp_path,
            allowed_tools=["Bash"],
            env={
                "ANTHROPIC_BASE_URL": w.url,
                "ANTHROPIC_API_KEY": session.api_key,
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "CLAUDE_CONFIG_DIR": str(tmp_path / "claude"),
                "IS_SANDBOX": "1",
            },
        )
        messages = [m async for m in sdk.query(prompt="What does notes.txt say?", options=options)]
        segments = await w.adapter.finish_session(session.session_id)

    assert messages[-1].result == "The file says hello."
    assert [(segment.kind, segment.turns, segment.forks) for segment in segments] == [("main", 2, [])]
    assert trained(segments) == [sampled(w.engine)]
