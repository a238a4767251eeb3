from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from rollhook_browser.actions import KINDS, NAVIGATION, Action, ActionError, make_action, read_action


def fenced(call: str) -> str:
    return f"I see the page.\n\n```\n{call}\n```"


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (fenced('click("12")'), Action("click", {"bid": "12", "button": "left"})),
        (fenced("click(12, button='right')"), Action("click", {"bid": "12", "button": "right"})),
        (fenced('click(bid="[12]")'), Action("click", {"bid": "12", "button": "left"})),
        ('```python\nhover("3")\n```', Action("hover", {"bid": "3"})),
        ("```go_back()```", Action("go_back", {})),
        ('So.\nAction: fill("7", "a \\"b\\" ü")', Action("fill", {"bid": "7", "value": 'a "b" ü'})),
        (fenced('press("7", "Control+a")'), Action("press", {"bid": "7", "key_comb": "Control+a"})),
        (fenced('select_option("5", "blue")'), Action("select_option", {"bid": "5", "options": ["blue"]})),
        (
            fenced('select_option("5", ["blue", "red"])'),
            Action("select_option", {"bid": "5", "options": ["blue", "red"]}),
        ),
        (fenced("scroll(0, -200.5)"), Action("scroll", {"delta_x": 0, "delta_y": -200.5})),
        (fenced("noop()"), Action("noop", {"wait_ms": 1000})),
        (fenced('goto("http://a.test/")'), Action("goto", {"url": "http://a.test/"})),
        (fenced("tab_focus(index=1)"), Action("tab_focus", {"index": 1})),
        (fenced('send_msg_to_user("""42""")'), Action("send_msg_to_user", {"text": "42"})),
    ],
)
def test_an_action_is_read_as_written(text: str, action: Action) -> None:
    assert action == read_action(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no action was found; give exactly one, as a call in a fenced block"),
        ("I would click(12).", "no action was found; give exactly one, as a call in a fenced block"),
        (
            fenced("noop()") + fenced("noop()"),
            "2 actions were found, none was taken; give exactly one, as a call in a fenced block",
        ),
        (fenced("noop()\nnoop()"), "'noop()\\nnoop()' is not one call; write it like click(\"12\")"),
        (fenced("click"), "'click' is not one call; write it like click(\"12\")"),
        (fenced("page.click('1')"), '"page.click(\'1\')" is not one call; write it like click("12")'),
        (fenced("click(12"), "'click(12' is not one call; write it like click(\"12\")"),
        (fenced("eval('1')"), f"there is no action 'eval' here; the actions are {', '.join(KINDS)}"),
        (fenced("click()"), 'click needs bid; write click(bid, button="left")'),
        (fenced("click('a1')"), "click: bid must be an element's number, as 12 of [12], not 'a1'"),
        (fenced("click(True)"), "click: bid must be an element's number, not 'True'"),
        (fenced("click(1, 'up')"), 'click: button must be "left", "middle" or "right", not \'up\''),
        (fenced("hover(1, 2)"), "hover takes at most 1 arguments; write hover(bid)"),
        (fenced("hover(1, bid=2)"), "hover is given an argument twice, or by **; give each once"),
        (fenced("hover(ref=2)"), "hover has no argument 'ref'; write hover(bid)"),
        (fenced("hover(x)"), "the arguments of hover must be plain strings and numbers"),
        (fenced("fill(1, 2)"), "fill: value must be a string, not '2'"),
        (fenced("fill(1, 'x' * 9)"), "the arguments of fill must be plain strings and numbers"),
        (fenced("tab_focus('1')"), "tab_focus: index must be a whole number, not '1'"),
        (
            fenced("select_option(1, [])"),
            "select_option: options must be a string or a list of strings, not '[]'",
        ),
        (
            fenced(f"fill(1, '{'x' * 20_000}')"),
            "the action has 20011 characters, and at most 20000 are read",
        ),
    ],
)
def test_a_refusal_says_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(ActionError, match=f"^{re.escape(why)}$"):
        read_action(text)


@given(st.text(max_size=200))
def test_any_text_gets_an_action_or_a_sentence(text: str) -> None:
    for form in (text, fenced(text), f"Action: {text}", fenced(f"click({text})")):
        try:
            said = read_action(form).name
        except ActionError as error:
            said = str(error)
        assert said in KINDS or " " in said


_JSON = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.lists(st.text())
)


@given(st.sampled_from(list(KINDS)), st.data())
def test_what_a_tools_schema_accepts_makes_an_action_or_a_sentence(name: str, data: st.DataObject) -> None:
    parameters = [parameter.name for parameter in KINDS[name].parameters]
    arguments: dict[str, Any] = {key: data.draw(_JSON) for key in parameters}
    fits = Draft202012Validator(KINDS[name].schema).is_valid(arguments)
    try:
        made = make_action(name, arguments)
    except ActionError:
        return

    assert fits
    assert list(made.arguments) == parameters


def test_actions_that_leave_a_page_can_be_taken_away() -> None:
    kinds = {name: kind for name, kind in KINDS.items() if name not in NAVIGATION}

    with pytest.raises(ActionError, match=r"^there is no action 'goto' here; the actions are click, hover"):
        read_action(fenced('goto("http://a.test/")'), kinds)
