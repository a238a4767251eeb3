"""A second opinion where there is one: mistral_common encodes a conversation without any chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollhook.ledger import Ledger
from rollhook.protocols import Message
from rollhook.render import Renderer
from tests.exactness.families import FAMILIES, model_of
from tests.exactness.scenarios import TOOL, Sampled, answer, result, user


def test_a_tool_loop_has_the_ids_of_mistral_common() -> None:
    family = next(family for family in FAMILIES if family.tokenizer == "mistral")
    model = model_of(family)
    renderer = Renderer(model.tokenizer, chat_template=model.template)
    ledger = Ledger(renderer)
    calling = answer("", calls=["author"])
    body = '[TOOL_CALLS][{"name": "search", "arguments": {"query": "author"}, "id": "call00000"}]</s>'
    sampled = model.tokenizer.encode(body, add_special_tokens=False)

    turn = ledger.commit(
        ledger.extend([user("Who wrote it?")], tools=[TOOL]), Sampled(sampled, "stop", "r"), calling
    )
    prompt = ledger.extend([result("Ann")], after=turn)

    assert prompt.input_ids == encoded_by_mistral([user("Who wrote it?"), calling, result("Ann")])


def encoded_by_mistral(messages: list[Message]) -> list[int]:
    common = pytest.importorskip("mistral_common")
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    file = Path(common.__file__).parent / "data" / "tekken_240911.json"
    request: Any = ChatCompletionRequest.from_openai(messages=messages, tools=[TOOL])
    tokens: list[int] = MistralTokenizer.from_file(str(file)).encode_chat_completion(request).tokens
    return tokens
