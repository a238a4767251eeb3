"""Images reach the engine beside the prompt, in order, in every protocol; prompts hold only their places."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest

from rollhook.engine import SGLangClient
from rollhook.sample import Sample
from rollhook.testing import ScriptedEngine
from tests.adapters.worlds import (
    ANTHROPIC_TOOL,
    CHAT_TOOL,
    RESPONSES_TOOL,
    World,
    call,
    original_template,
    sampled,
    trained,
    world,
)

RED, BLUE = (base64.b64encode(f"\x89PNG {colour}".encode("latin-1")).decode() for colour in ("red", "blue"))
PLACE = "<|vision_start|><|image_pad|><|vision_end|>"


@pytest.fixture(scope="module")
def template() -> str:
    return original_template("qwen3_vl")


def url(data: str) -> str:
    return f"data:image/png;base64,{data}"


async def chat(w: World, session: Any) -> AsyncIterator[None]:
    """Three turns: an image, a tool's result that is an image, a text."""
    image = {"type": "image_url", "image_url": {"url": url(RED)}}
    history: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "What is "}, image, TEXT]}]
    async with w.openai(session) as client:
        for n in range(3):
            answer = await client.chat.completions.create(model="m", messages=history, tools=[CHAT_TOOL])
            message = answer.choices[0].message
            history.append(message.model_dump(exclude_none=True))
            for made in message.tool_calls or ():
                shown = [{"type": "image_url", "image_url": {"url": url(BLUE)}}]
                history.append({"role": "tool", "tool_call_id": made.id, "content": shown})
            if n == 1:
                history.append({"role": "user", "content": "And?"})
            yield


async def responses(w: World, session: Any) -> AsyncIterator[None]:
    previous: Any = openai.omit
    image: Any = {"type": "input_image", "detail": "auto", "image_url": url(RED)}
    parts = [{"type": "input_text", "text": "What is "}, image, {"type": "input_text", "text": "?"}]
    new: list[Any] = [{"role": "user", "content": parts}]
    async with w.openai(session) as client:
        for n in range(3):
            answer = await client.responses.create(
                model="m", input=new, tools=[RESPONSES_TOOL], previous_response_id=previous
            )
            previous, new = answer.id, []
            for item in answer.output:
                if item.type == "function_call":
                    shown = [{"type": "input_image", "image_url": url(BLUE)}]
                    new.append({"type": "function_call_output", "call_id": item.call_id, "output": shown})
            if n == 1:
                new.append({"role": "user", "content": "And?"})
            yield


async def messages(w: World, session: Any) -> AsyncIterator[None]:
    def image(data: str) -> Any:
        return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}

    history: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "What is "}, image(RED), TEXT]}
    ]
    async with w.anthropic(session) as client:
        for n in range(3):
            answer = await client.messages.create(
                model="m", max_tokens=99, messages=history, tools=[ANTHROPIC_TOOL]
            )
            history.append({"role": "assistant", "content": answer.content})
            new: list[Any] = [
                {"type": "tool_result", "tool_use_id": block.id, "content": [image(BLUE)]}
                for block in answer.content
                if block.type == "tool_use"
            ]
            history.append({"role": "user", "content": "And?" if n == 1 else new})
            yield


TEXT = {"type": "text", "text": "?"}


@pytest.mark.parametrize("converse", [chat, responses, messages])
async def test_each_turn_is_sent_all_images_of_its_prompt_in_order(
    qwen3_tokenizer: Any, template: str, converse: Any
) -> None:
    script = ["Red. " + call(city="x"), "Blue.", "Done."]
    async with world(qwen3_tokenizer, script, chat_template=template) as w:
        session = w.adapter.open_session()
        async for _ in converse(w, session):
            pass
        row = Sample(index=0, prompt="")
        samples = await w.adapter.finish_session(session.session_id, base_sample=row, reward=1.0)

    sent = [request.body["image_data"] for request in w.engine.requests]
    assert sent == [[url(RED)], [url(RED), url(BLUE)], [url(RED), url(BLUE)]]
    assert [request.prompt.count(PLACE) for request in w.engine.requests] == [1, 2, 2]
    assert f"What is {PLACE}?<|im_end|>" in w.engine.requests[0].prompt
    assert not any(RED in request.prompt for request in w.engine.requests)
    assert len(samples) == 1
    assert samples[0].multimodal_inputs == {"images": [url(RED), url(BLUE)]}
    assert sum(samples[0].loss_mask or ()) == len(sampled(w.engine)[0])


async def test_another_image_or_place_is_another_conversation(qwen3_tokenizer: Any, template: str) -> None:
    async with world(qwen3_tokenizer, ["Red.", "Blue.", "Blue!"], chat_template=template) as w:
        session = w.adapter.open_session()
        async with w.openai(session) as client:
            for data, first in ((RED, False), (BLUE, False), (BLUE, True)):
                image: Any = {"type": "image_url", "image_url": {"url": url(data)}}
                content = [TEXT, image] if first else [image, TEXT]
                await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": content}]
                )
        segments = await w.adapter.finish_session(session.session_id)

    assert len(trained(segments)) == 3
    assert [request.body["image_data"] for request in w.engine.requests] == [
        [url(RED)],
        [url(BLUE)],
        [url(BLUE)],
    ]
    assert f"?{PLACE}" in w.engine.requests[2].prompt


async def test_an_image_as_text_is_text(qwen3_tokenizer: Any, template: str) -> None:
    async with world(qwen3_tokenizer, ["No."], chat_template=template) as w:
        session = w.adapter.open_session()
        async with w.openai(session) as client:
            image: Any = {"type": "image_url", "image_url": {"url": url(RED)}}
            content: Any = [{"type": "text", "text": f"Is {PLACE} an image?"}, image]
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": content}])

    assert w.engine.requests[0].body["image_data"] == [url(RED)]
    assert w.engine.requests[0].input_ids.count(qwen3_tokenizer.convert_tokens_to_ids("<|image_pad|>")) == 1


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ({"type": "url", "url": "http://169.254.169.254/latest"}, "no URL is fetched"),
        ({"type": "file", "file_id": "f"}, "no files are held"),
        ({"type": "base64", "media_type": "image/png", "data": "%%"}, "not valid base64"),
        ({"type": "base64", "media_type": "text/html", "data": RED}, "'text/html' is none of"),
        ({"type": "base64", "media_type": "a" * 999, "data": RED}, "'a{30,60}' is none of"),
    ],
)
async def test_only_images_that_are_sent_themselves_are_taken(
    qwen3_tokenizer: Any, template: str, source: Any, why: str
) -> None:
    said: Any = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    async with (
        world(qwen3_tokenizer, [], chat_template=template) as w,
        w.anthropic(w.adapter.open_session()) as client,
    ):
        with pytest.raises(anthropic.BadRequestError, match=why):
            await client.messages.create(model="m", max_tokens=9, messages=said)

    assert w.engine.requests == []


async def test_an_engine_that_takes_no_images_is_sent_none(qwen3_tokenizer: Any, template: str) -> None:
    class TextOnly(SGLangClient):
        async def model_info(self) -> dict[str, Any]:
            return {**await super().model_info(), "has_image_understanding": False}

    image: Any = {"type": "image_url", "image_url": {"url": url(RED)}}
    async with (
        ScriptedEngine(qwen3_tokenizer, []) as engine,
        TextOnly(engine.url) as client,
        world(qwen3_tokenizer, [], chat_template=template, engine=client, sglang_url=None) as w,
        w.openai(w.adapter.open_session()) as sdk,
    ):
        with pytest.raises(openai.BadRequestError, match="takes text only"):
            await sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": [image]}])
