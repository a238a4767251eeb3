from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollhook_browser.budget import Budget
from rollhook_browser.tree import Node, read_tree, render

SNAPSHOT = """\
- generic [ref=e1] [box=0,0,1280,900]:
  - 'heading "Shop: \\"A\\"" [level=1] [ref=e2] [box=0,0,100,20]'
  - 'link "Cart #2" [ref=e3] [cursor=pointer] [box=0,30,40,20]':
    - /url: /cart
  - generic [ref=e4] [box=0,60,100,20]:
    - text: "Name:"
    - textbox "Name" [active] [ref=e5] [box=0,60,100,20]: Ann
  - iframe [ref=e6] [box=0,700,300,150]:
    - generic [ref=f1e1] [box=0,0,300,150]:
      - button "Inside" [disabled] [ref=f1e2] [box=0,100,50,20]
  - generic [ref=e7] [cursor=pointer] [box=0,800,20,20]
"""


def shown(snapshot: str, tokens: int = 8000) -> list[str]:
    budget = Budget(tokens, words)
    return render(read_tree(snapshot), counter(), budget=budget, viewport_height=719).text.splitlines()


def words(text: str) -> int:
    """Tokens of a simple tokenizer: words, marks and line ends."""
    return len(re.findall(r"\w+|[^\w ]", text))


class counter:  # noqa: N801  called like the function it stands for
    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, ref: str) -> int:
        return self.numbers.setdefault(ref, len(self.numbers) + 1)


def test_each_element_that_says_something_has_a_line_with_its_id() -> None:
    assert shown(SNAPSHOT) == [
        '[1] heading "Shop: \\"A\\"" (level=1)',
        '[2] link "Cart #2" url="/cart"',
        'text "Name:"',
        '[3] textbox "Name" value="Ann" (focused)',
        "[4] iframe",
        '  [5] button "Inside" (disabled)',
        "[6] text clickable",
    ]


def test_an_element_in_a_frame_is_where_the_frame_puts_it() -> None:
    frame = read_tree(SNAPSHOT)[0].children[3]
    button = frame.children[0].children[0]

    assert (button.top, button.bottom) == (800.0, 820.0)


def rows(count: int, extra: str = "") -> str:
    """A page of `count` rows of 40 pixels, a button and a text each, seen from row 0 on."""
    lines = [f"- generic [ref=e0] [box=0,0,100,{count * 40}]:"]
    for n in range(count):
        lines.append(f'  - paragraph [ref=p{n}] [box=0,{n * 40},100,20]: "text {n}"')
        lines.append(f'  - button "button {n}" [ref=b{n}] [box=0,{n * 40},100,20]{extra}')
    return "\n".join(lines)


def test_over_budget_the_viewport_comes_first_and_in_it_what_can_be_acted_on() -> None:
    """18 of 100 rows are in view: all their buttons stay, then their texts in the page's order."""
    lines = shown(rows(100), tokens=250)
    buttons = [line for line in lines if "button" in line]
    texts = [line for line in lines if "paragraph" in line]

    assert [f'"button {n}"' for n in range(18)] == [line.split(" ", 2)[2] for line in buttons]
    assert [f'"text {n}"' for n in range(len(texts))] == [line.split(" ", 2)[2] for line in texts]
    assert (
        f"({200 - 18 - len(texts)} more lines do not fit here; scroll to see what is near them)" == lines[-1]
    )


def test_what_scrolled_out_of_view_gives_way_to_what_is_in_it() -> None:
    scrolled = re.sub(r"box=0,(\d+)", lambda m: f"box=0,{int(m[1]) - 3000}", rows(100))

    [first, *_] = shown(scrolled, tokens=150)
    assert re.fullmatch(r'\[\d+\] button "button 75"', first)


def test_a_kept_line_keeps_the_lines_it_stands_under() -> None:
    snapshot = '- list "far" [ref=e1] [box=0,9000,9,9]:\n  - listitem [ref=e2] [box=0,9000,9,9]:\n'
    snapshot += '    - button "near" [ref=e3] [box=0,10,9,9]\n' + rows(50).replace("e0", "e9")

    assert shown(snapshot, tokens=100)[:3] == ['[1] list "far"', "  [2] listitem", '    [3] button "near"']


@given(
    st.recursive(
        st.builds(Node, st.sampled_from(["button", "generic", "text"]), st.text(max_size=300), st.text()),
        lambda inner: st.builds(
            Node, st.just("list"), st.text(), children=st.lists(inner, max_size=5), ref=st.just("e1")
        ),
        max_leaves=40,
    ),
    st.integers(50, 500),
)
def test_no_tree_exceeds_its_budget_and_no_text_makes_a_line(node: Node, tokens: int) -> None:
    rendered = render([node], lambda _: 7, budget=Budget(tokens, words), viewport_height=720)

    assert words(rendered.text) <= tokens
    for line in rendered.text.splitlines():
        assert re.match(r" *(\[7\] )?(button|text|list)\b|\(\d+ more lines", line)


@pytest.mark.parametrize("text", ["a: [", "- just words here", "- button 'x'"])
def test_what_is_no_snapshot_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="this is no ARIA snapshot"):
        read_tree(text)


def test_an_empty_page_has_no_lines() -> None:
    assert shown("") == []
