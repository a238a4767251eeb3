"""Spans: exactly the tokens that hold what was named, whatever the tokenizer and the template."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollhook.ledger import Ledger
from rollhook.protocols import Message
from rollhook.render import Renderer
from rollhook.spans import Span, covering, spans_of, stubs
from tests.unit.ledger_script import Script, user


def decode(ids: Any) -> str:
    """Of a tokenizer whose tokens are one or two characters."""
    return "".join("ab\n|<>"[token] if token < 6 else "a\n" for token in ids)


def named(
    ids: list[int], *contents: str, kinds: list[str | None], template: str = "<{}>"
) -> list[tuple[int, int, str]]:
    """What is named in `ids`, which a template made that writes each message so."""
    stubbed = "".join(template.format(stub) for stub in stubs(len(contents)))
    return [(*span,) for span in spans_of(ids, contents, kinds, stubbed, decode)]


def test_each_message_has_its_own_tokens() -> None:
    ids = [4, 0, 1, 5, 4, 0, 1, 5]

    assert named(ids, "ab", "ab", kinds=["x", "y"]) == [(1, 2, "x"), (5, 2, "y")]
    assert named(ids, "ab", "ab", kinds=[None, "y"]) == [(5, 2, "y")]


def test_what_a_template_writes_around_is_not_taken_for_the_message() -> None:
    assert named([0, 4, 0, 5], "a", kinds=["x"], template="a<{}>") == [(2, 1, "x")]


def test_a_token_that_holds_what_follows_too_belongs_to_it() -> None:
    assert named([4, 0, 6, 5], "aa", kinds=["x"], template="<{}\n>") == [(1, 2, "x")]


def test_space_that_a_template_drops_is_not_looked_for() -> None:
    assert named([4, 0, 1, 5], "\n ab ", kinds=["x"]) == [(1, 2, "x")]


def test_what_a_template_writes_otherwise_gives_a_shared_name_to_all() -> None:
    assert named([4, 0, 5], "bbb", kinds=["x"]) == [(0, 3, "x")]
    assert named([4, 0, 5, 4, 0, 5], "bbb", "a", kinds=["x", None]) == [(0, 6, "x")]
    assert named([4, 0, 5, 4, 0, 5], "bbb", "a", kinds=["x", "y"]) == []
    assert named([4, 0, 5], "a", kinds=["x"], template="no message") == [(0, 3, "x")]


def test_an_empty_message_has_no_tokens() -> None:
    assert named([4, 5], "", kinds=["x"]) == []


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=4),
    st.integers(0, 9),
    st.integers(0, 3),
)
def test_spans_cover_an_insertion_without_a_gap(pieces: list[tuple[int, int]], start: int, rest: int) -> None:
    inner, at = [], 0
    for gap, length in pieces:
        inner.append(Span(at + gap, length, "own"))
        at += gap + length
    made = list(covering(start, at + rest, inner, "messages"))

    edges = [start, *(span.start + span.length for span in made)]
    assert [span.start for span in made] == edges[:-1]
    assert edges[-1] == start + at + rest
    assert all(span.length for span in made)
    assert [span for span in made if span.kind == "own"] == [
        Span(start + span.start, span.length, "own") for span in inner
    ]


@pytest.mark.parametrize(
    "content", ["Doc 1(Title: Lima) Lima.", "é中🙂", "<|im_end|>x", "a", "user", '{"a": "\\n"}']
)
@pytest.mark.parametrize(("family", "role"), [("qwen3", "tool"), ("smollm2", "user")])
def test_in_a_real_template_a_named_message_is_exactly_its_tokens(
    family: str, role: str, content: str, request: pytest.FixtureRequest
) -> None:
    tokenizer = request.getfixturevalue(f"{family}_tokenizer")
    ledger = Ledger(Renderer(tokenizer, check=False))
    script = Script(ledger)
    turn = script.answer(ledger.extend([user("q")]), "hm")
    said: list[Message] = [{"role": role, "content": "before"}, {"role": role, "content": content}]
    script.answer(ledger.extend(said, after=turn, kinds=[None, "retrieved"]), "so")

    [segment] = ledger.segments()
    assert [span.kind for span in segment.spans] == ["prompt", "messages", "retrieved", "messages"]
    start, length, _ = segment.spans[2]
    assert content.strip() in tokenizer.decode(segment.tokens[start : start + length])
    assert tokenizer.decode(segment.tokens[:start]).endswith(">\n" if role == "tool" else "user\n")
    for narrower in (slice(start + 1, start + length), slice(start, start + length - 1)):
        assert content.strip() not in tokenizer.decode(segment.tokens[narrower])


def test_raw_text_is_named_whole(smollm2_tokenizer: Any) -> None:
    ledger = Ledger(Renderer(smollm2_tokenizer))
    script = Script(ledger)
    turn = script.answer(ledger.extend([user("q")]), "hm", end="")
    prompt = ledger.continue_turn(turn, "\n<information>x</information>\n", kind="retrieved")
    script.answer(prompt, "so")

    [segment] = ledger.segments()
    opening, shown = segment.spans
    assert (opening.kind, shown.kind, shown.length) == ("prompt", "retrieved", len(prompt.delta))
