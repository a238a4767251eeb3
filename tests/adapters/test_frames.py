"""Frames that are filled in for each token are what the SDK's own types would write."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollhook.adapters.body import Fields
from rollhook.adapters.chat import Chat
from rollhook.adapters.conversation import SystemStyle
from rollhook.adapters.messages import Messages
from rollhook.adapters.protocol import Wire
from rollhook.adapters.reading import ArgumentsDelta, CallClosed, CallOpened, TurnEvent
from rollhook.adapters.responses import Responses
from rollhook.adapters.sessions import Session
from rollhook.parsing import TextDelta

STYLE = SystemStyle(leading=True, later=True)
USER: Any = {"role": "user", "content": "Hi"}
BODY = {"model": "m", "max_tokens": 9, "messages": [USER], "input": [USER], "stream": True}
HARD = 'a "quoted"\n\\ line, é 🦊'
SAID: list[TurnEvent] = [
    TextDelta("reasoning", "one"),
    TextDelta("reasoning", HARD),
    TextDelta("content", "two"),
    TextDelta("content", HARD),
    CallOpened(0, "c0", "f"),
    ArgumentsDelta(0, '{"x": '),
    ArgumentsDelta(0, '"\\u00e9"}'),
    CallClosed(0, "c0", "f", '{"x": "\\u00e9"}'),
    TextDelta("content", "three"),
    TextDelta("content", HARD),
]


def events(wire: Wire) -> list[dict[str, Any]]:
    session = Session("s", b"", {}, 0, "s", lambda purpose: pytest.fail("no ledger is needed"))
    body = Fields(BODY)
    frames = wire.frames(body, wire.read(body, session))
    stream = frames.start("0" * 24, 3) + b"".join(map(frames.event, SAID))
    return [json.loads(line[6:]) for line in stream.decode().split("\n") if line.startswith("data: ")]


def test_chat_chunks() -> None:
    deltas = [event["choices"][0]["delta"] for event in events(Chat(STYLE))]

    assert [delta.get("reasoning_content") for delta in deltas[1:3]] == ["one", HARD]
    assert [delta["content"] for delta in (*deltas[3:5], *deltas[-2:])] == ["two", HARD, "three", HARD]


def test_message_blocks() -> None:
    made = events(Messages(STYLE))
    deltas = [(event["index"], event["delta"]) for event in made if event["type"] == "content_block_delta"]

    assert deltas == [
        (0, {"type": "thinking_delta", "thinking": "one"}),
        (0, {"type": "thinking_delta", "thinking": HARD}),
        (0, {"type": "signature_delta", "signature": "0" * 24}),
        (1, {"type": "text_delta", "text": "two"}),
        (1, {"type": "text_delta", "text": HARD}),
        (2, {"type": "input_json_delta", "partial_json": '{"x": '}),
        (2, {"type": "input_json_delta", "partial_json": '"\\u00e9"}'}),
        (3, {"type": "text_delta", "text": "three"}),
        (3, {"type": "text_delta", "text": HARD}),
    ]


def test_response_items() -> None:
    made = events(Responses(STYLE))
    deltas = [(event["item_id"][:3], event["delta"]) for event in made if event["type"].endswith(".delta")]

    assert [event["sequence_number"] for event in made] == list(range(len(made)))
    assert deltas == [
        ("rs_", "one"),
        ("rs_", HARD),
        ("msg", "two"),
        ("msg", HARD),
        ("fc_", '{"x": '),
        ("fc_", '"\\u00e9"}'),
        ("msg", "three"),
        ("msg", HARD),
    ]
    done = [event["item"] for event in made if event["type"] == "response.output_item.done"]
    assert [item["id"] for item in done] == [f"{kind}_{'0' * 24}" for kind in ("rs", "msg", "fc")]
    assert done[1]["content"][0]["text"] == "two" + HARD
