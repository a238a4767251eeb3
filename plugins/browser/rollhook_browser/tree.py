"""The page's accessibility tree, as the model reads it: one line an element, cut to a budget of tokens.

Invariant: what is rendered never exceeds its budget, and page text cannot make a line of its own: names,
texts and values are quoted, each cut at 200 characters.

How it is cut: structure that says nothing is folded away. Of the rest, lines are taken in the order of their
distance from the viewport; at one distance what can be acted on comes first, then the order of the page. A
line brings the lines it stands under, or stays away with them; after 32 that do not fit, no more are tried. A
last line counts what is left out.

The tree comes from Playwright's ARIA snapshot in its mode for models, with boxes: YAML whose keys are
`role "name" [attribute]...`, whose `ref` names an element, and whose frames are inlined.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import yaml

from rollhook_browser.budget import Budget

MAX_TEXT_CHARS = 200
_MOST_MISFITS = 32  # further lines would seldom fit, and each is counted
_LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


@dataclass(slots=True)
class Node:
    """One element. ref: Playwright's name for it, None for mere text.

    top, bottom: where it is, in pixels below the viewport's upper edge. states: checked, disabled, ...
    """

    role: str
    name: str = ""
    text: str = ""
    ref: str | None = None
    states: list[str] = field(default_factory=list)
    properties: dict[str, str] = field(default_factory=dict)
    pointer: bool = False
    top: float = 0.0
    bottom: float = 0.0
    children: list[Node] = field(default_factory=list)

    @property
    def actionable(self) -> bool:
        return self.ref is not None and (self.pointer or self.role in _ACTIONABLE)

    @property
    def structural(self) -> bool:
        """It says nothing itself, so that its children may stand in its place."""
        said = self.name or self.text or self.states or self.properties or self.pointer
        return self.role in _STRUCTURE and not said


@dataclass(frozen=True, slots=True)
class Rendered:
    """text: the lines. shown: the elements that have a line, by ref. left_out: lines that did not fit."""

    text: str
    shown: Mapping[str, Node]
    left_out: int


def whole(text: str) -> str:
    """Text with each half of a character, which JavaScript allows and no tokenizer takes, as U+FFFD."""
    return _HALF_PAIR.sub("\ufffd", text)


def read_tree(snapshot: str) -> list[Node]:
    """The top elements of an ARIA snapshot. Raises ValueError for text that is none."""
    try:
        document = yaml.load(whole(snapshot), Loader=_LOADER)
    except yaml.YAMLError as error:
        raise ValueError(f"this is no ARIA snapshot: {error}") from error
    root = Node("document")
    _read_children(document or [], root, 0.0)
    return root.children


def render(
    nodes: Sequence[Node], number: Callable[[str], int], *, budget: Budget, viewport_height: float
) -> Rendered:
    """The tree as text within `budget`. number: gives the id shown for a ref."""
    lines = list(_lines(nodes, number, viewport_height))
    if budget.holds("\n".join(line.text for line in lines)):
        return _rendered(lines, range(len(lines)))
    taken = _taken(lines, budget)
    made = _rendered(lines, sorted(chain(*taken)))
    while taken and budget.count(made.text) > budget.tokens:
        taken.pop()
        made = _rendered(lines, sorted(chain(*taken)))
    return made


def _taken(lines: Sequence[_Line], budget: Budget) -> list[list[int]]:
    """The places of lines that fit, each with those it stands under that no earlier one took."""
    room = budget.tokens - budget.count(_left_out(len(lines)))
    kept: set[int] = set()
    taken: list[list[int]] = []
    misfits = 0
    for line in sorted(lines, key=lambda line: (line.distance, not line.node.actionable, line.place)):
        places = []
        place = line.place
        while place >= 0 and place not in kept:
            places.append(place)
            place = lines[place].parent
        cost = sum(budget.count(f"{lines[place].text}\n") for place in places)
        if places and cost <= room:
            room -= cost
            kept.update(places)
            taken.append(places)
        elif places:
            misfits += 1
            if misfits == _MOST_MISFITS:
                break
    return taken


def _rendered(lines: Sequence[_Line], places: Sequence[int]) -> Rendered:
    shown = [lines[place] for place in places]
    left_out = len(lines) - len(shown)
    text = "\n".join(line.text for line in shown)
    if left_out:
        text += _left_out(left_out)
    refs = {line.node.ref: line.node for line in shown if line.node.ref is not None}
    return Rendered(text.lstrip("\n"), refs, left_out)


def _left_out(lines: int) -> str:
    return f"\n({lines} more lines do not fit here; scroll to see what is near them)"


@dataclass(frozen=True, slots=True)
class _Line:
    node: Node
    text: str
    place: int
    parent: int
    distance: float


def _lines(nodes: Sequence[Node], number: Callable[[str], int], height: float) -> Iterator[_Line]:
    """One line a node that says something, parents first; iterative, since pages nest deeply."""
    place = 0
    waiting = [(node, 0, -1) for node in reversed(nodes)]
    while waiting:
        node, depth, parent = waiting.pop()
        if not node.structural:
            text = "  " * min(depth, 12) + _said(node, number)
            distance = max(0.0, node.top - height, -node.bottom)
            yield _Line(node, text, place, parent, distance)
            depth, parent, place = depth + 1, place, place + 1
        waiting += [(child, depth, parent) for child in reversed(node.children)]


def _said(node: Node, number: Callable[[str], int]) -> str:
    words = [] if node.ref is None else [f"[{number(node.ref)}]"]
    words.append("text" if node.role in _STRUCTURE else node.role)
    if node.name:
        words.append(_quote(node.name))
    if node.text:
        words.append(f"value={_quote(node.text)}" if node.role in _VALUED else _quote(node.text))
    words += [f"{name}={_quote(value)}" for name, value in node.properties.items()]
    if node.pointer and node.role not in _ACTIONABLE:
        words.append("clickable")
    if node.states:
        words.append(f"({', '.join(node.states)})")
    return " ".join(words)


def _quote(text: str) -> str:
    if len(text) > MAX_TEXT_CHARS:
        text = text[: MAX_TEXT_CHARS - 1] + "…"
    return json.dumps(text, ensure_ascii=False).translate(_LINE_ENDS)


def _read_children(items: Any, parent: Node, frame_top: float) -> None:
    """Append what `items` of the document say to `parent`. frame_top: where the frame's viewport begins."""
    waiting = [(items, parent, frame_top)]
    while waiting:
        items, parent, frame_top = waiting.pop()
        for item in items if isinstance(items, list) else [items]:
            key, value = next(iter(item.items())) if isinstance(item, dict) and item else (item, "")
            key = str(key)
            if key.startswith("/"):
                parent.properties[key[1:]] = str(value)
                continue
            node = _read_node(key, parent, frame_top)
            parent.children.append(node)
            if isinstance(value, str):
                node.text = value
            else:
                waiting.append((value, node, node.top if node.role == "iframe" else frame_top))


def _read_node(key: str, parent: Node, frame_top: float) -> Node:
    match = _KEY.fullmatch(key)
    if match is None:
        raise ValueError(f"this is no ARIA snapshot: {key[:100]!r} names no element")
    name = match["name"] or ""
    node = Node(match["role"], name=json.loads(name) if name.startswith('"') else name)
    beside = parent.children[-1] if parent.children else parent  # text has no box: it is near these
    node.top, node.bottom = beside.top, beside.bottom
    for attribute, value in _ATTRIBUTE.findall(match["attributes"] or ""):
        match attribute:
            case "ref":
                node.ref = value
            case "box":
                _, top, _, height = map(float, value.split(","))
                node.top, node.bottom = frame_top + top, frame_top + top + height
            case "cursor":
                node.pointer = value == "pointer"
            case "active":
                node.states.append("focused")
            case _:
                node.states.append(f"{attribute}={value}" if value else attribute)
    return node


_KEY = re.compile(r'(?P<role>[\w-]+)(?: (?P<name>"(?:[^"\\]|\\.)*"))?(?P<attributes>(?: \[[^\]]*\])*)', re.S)
_ATTRIBUTE = re.compile(r"\[([\w-]+)(?:=([^\]]*))?\]")
_HALF_PAIR = re.compile("[\ud800-\udfff]")
_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}  # JSON escapes the others
_STRUCTURE = frozenset({"generic", "text", "group", "none", "presentation"})
_VALUED = frozenset({"textbox", "searchbox", "combobox", "spinbutton", "slider"})
_ACTIONABLE = frozenset(
    {"button", "link", "checkbox", "radio", "option", "tab", "switch", "treeitem", "gridcell"}
    | {"menuitem", "menuitemcheckbox", "menuitemradio", "listbox"}
    | _VALUED
)
