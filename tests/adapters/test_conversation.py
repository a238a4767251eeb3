"""Histories in the shape that a chat template can write: nothing a client says is lost on the way."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from rollhook.adapters.conversation import SystemStyle
from rollhook.render import Renderer
from tests.adapters.worlds import ANTHROPIC_TOOL, call, sampled, trained, world

LOOP = "{% for m in messages %}"
SAY = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
END = "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
NO_SYSTEM = LOOP + "{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + SAY + END
ONLY_FIRST = LOOP + "{% if m.role != 'system' or loop.first %}" + SAY + "{% endif %}" + END

SYSTEM: Any = {"role": "system", "content": "S"}
DEVELOPER: Any = {"role": "developer", "content": "D"}
USER: Any = {"role": "user", "content": "U"}
ANSWER: Any = {"role": "assistant", "content": "A"}


def fitted(tokenizer: Any, template: str | None, *messages: Any) -> list[tuple[str, str]]:
    style = SystemStyle.of(Renderer(tokenizer, chat_template=template))
    return [(message["role"], message["content"]) for message in style.fit(messages)]


def test_leading_system_and_developer_messages_are_one_system_message(qwen3_tokenizer: Any) -> None:
    made = fitted(qwen3_tokenizer, None, SYSTEM, DEVELOPER, USER, ANSWER, DEVELOPER, USER)

    assert made == [("system", "S\n\nD"), ("user", "U"), ("assistant", "A"), ("system", "D"), ("user", "U")]


def test_a_template_without_system_messages_gets_them_in_the_first_user_message(qwen3_tokenizer: Any) -> None:
    made = fitted(qwen3_tokenizer, NO_SYSTEM, SYSTEM, USER, ANSWER, SYSTEM)

    assert made == [("user", "S\n\nU"), ("assistant", "A"), ("user", "S")]


def test_a_template_that_drops_later_system_messages_gets_them_as_the_users(qwen3_tokenizer: Any) -> None:
    made = fitted(qwen3_tokenizer, ONLY_FIRST, SYSTEM, USER, ANSWER, SYSTEM)

    assert made == [("system", "S"), ("user", "U"), ("assistant", "A"), ("user", "S")]


async def test_what_claude_code_changes_between_turns_makes_no_fork(qwen3_tokenizer: Any) -> None:
    """A billing header that differs, markers that move, and a system message among the others."""

    def system(request: int) -> Any:
        marker = {"cache_control": {"type": "ephemeral"}} if request else {}
        return [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2; cch={request};"},
            {"type": "text", "text": "Be brief.", **marker},
        ]

    reminder: Any = {"role": "system", "content": "Today is Monday."}
    async with world(qwen3_tokenizer, [f"See.\n{call(city='Oslo')}", "Rain."]) as w:
        session = w.adapter.open_session()
        async with w.anthropic(session) as client:
            asked: Any = {"model": "m", "max_tokens": 99, "tools": [ANTHROPIC_TOOL]}
            first = await client.messages.create(system=system(0), messages=[USER, reminder], **asked)
            result: Any = {"type": "tool_result", "tool_use_id": first.content[-1].id, "content": "rain"}
            marked: Any = {"role": "user", "content": [{**result, "cache_control": {"type": "ephemeral"}}]}
            history: Any = [USER, reminder, first.to_param(), marked]
            await client.messages.create(system=system(1), messages=history, **asked)
        segments = await w.adapter.finish_session(session.session_id)

    assert "billing" not in w.engine.requests[0].prompt
    assert "Today is Monday." in w.engine.requests[0].prompt
    assert [(segment.kind, segment.forks) for segment in segments] == [("main", [])]
    assert trained(segments) == [sampled(w.engine)]


def test_importing_the_adapters_imports_no_sdk() -> None:
    program = (
        "import sys, rollhook.adapters; print(sorted({'openai', 'anthropic', 'torch'} & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )

    assert ran.stdout == "[]\n"
