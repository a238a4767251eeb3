"""Actions by BrowserGym's names: what they take, how a model writes them, how it is told of them.

Invariant: an Action exists only with a known name and arguments of the right types, whether it came as text
or as a tool call; anything else is an ActionError whose sentence the model reads. Text is parsed, never run.
Source of names and arguments: BrowserGym's high-level action set.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

MAX_ACTION_CHARS = 20_000

Kind = Literal["id", "string", "strings", "number", "integer", "button"]


class ActionError(ValueError):
    """An action cannot be taken. Its text is a sentence for the model."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of an action. default: None where it must be given."""

    name: str
    kind: Kind
    default: Any = None


@dataclass(frozen=True, slots=True)
class ActionKind:
    """One action: `description` is the sentence a model is told."""

    name: str
    parameters: tuple[Parameter, ...]
    description: str

    @property
    def signature(self) -> str:
        """As a model may write it: `click(bid, button="left")`."""
        shown = [p.name if p.default is None else f"{p.name}={_quoted(p.default)}" for p in self.parameters]
        return f"{self.name}({', '.join(shown)})"

    @property
    def schema(self) -> dict[str, Any]:
        """Its arguments as a JSON schema."""
        return {
            "type": "object",
            "properties": {p.name: _SCHEMAS[p.kind] for p in self.parameters},
            "required": [p.name for p in self.parameters if p.default is None],
            "additionalProperties": False,
        }


@dataclass(frozen=True, slots=True)
class Action:
    """What the model wants done. arguments: every parameter of its kind, defaults filled in."""

    name: str
    arguments: Mapping[str, Any]


_BID = Parameter("bid", "id")
_BUTTON = Parameter("button", "button", "left")
KINDS: Mapping[str, ActionKind] = {
    kind.name: kind
    for kind in (
        ActionKind("click", (_BID, _BUTTON), "Click an element."),
        ActionKind("hover", (_BID,), "Move the mouse over an element."),
        ActionKind("fill", (_BID, Parameter("value", "string")), "Set the text of an input."),
        ActionKind(
            "press",
            (_BID, Parameter("key_comb", "string")),
            'Press keys on an element, such as "Enter", "ArrowDown" or "Control+a".',
        ),
        ActionKind(
            "select_option",
            (_BID, Parameter("options", "strings")),
            "Choose an option of a select element by its text or value, or a list of them.",
        ),
        ActionKind(
            "scroll",
            (Parameter("delta_x", "number"), Parameter("delta_y", "number")),
            "Turn the mouse wheel by pixels; scroll(0, 300) goes down.",
        ),
        ActionKind("noop", (Parameter("wait_ms", "number", 1000),), "Wait for milliseconds."),
        ActionKind("goto", (Parameter("url", "string"),), "Load a URL in this tab."),
        ActionKind("go_back", (), "Go back in this tab's history."),
        ActionKind("go_forward", (), "Go forward in this tab's history."),
        ActionKind("new_tab", (), "Open an empty tab and go to it."),
        ActionKind("tab_focus", (Parameter("index", "integer"),), "Go to a tab by its number."),
        ActionKind("tab_close", (), "Close this tab."),
        ActionKind("send_msg_to_user", (Parameter("text", "string"),), "Tell the user something."),
        ActionKind("report_infeasible", (Parameter("reason", "string"),), "Say that it cannot be done."),
    )
}
NAVIGATION = ("goto", "go_back", "go_forward", "new_tab", "tab_focus", "tab_close")


def read_action(text: str, kinds: Mapping[str, ActionKind] = KINDS) -> Action:
    """The one action of a turn: the call in its only fenced block, else behind its only `Action:`.

    Raises ActionError when there is none, more than one, or one that is wrong.
    """
    found = _FENCE.findall(text) or _LINE.findall(text)
    calls = [call for call in map(str.strip, found) if call]
    if len(calls) != 1:
        say = "no action was found" if not calls else f"{len(calls)} actions were found, none was taken"
        raise ActionError(f"{say}; give exactly one, as a call in a fenced block")
    return _read_call(calls[0], kinds)


def make_action(name: str, arguments: Mapping[str, Any], kinds: Mapping[str, ActionKind] = KINDS) -> Action:
    """The action of that name. Raises ActionError for an unknown name and for wrong arguments."""
    kind = kinds.get(name)
    if kind is None:
        raise ActionError(f"there is no action {name!r} here; the actions are {', '.join(kinds)}")
    unknown = next((key for key in arguments if key not in {p.name for p in kind.parameters}), None)
    if unknown is not None:
        raise ActionError(f"{name} has no argument {unknown!r}; write {kind.signature}")
    given = {}
    for parameter in kind.parameters:
        if parameter.name not in arguments and parameter.default is None:
            raise ActionError(f"{name} needs {parameter.name}; write {kind.signature}")
        value = arguments.get(parameter.name, parameter.default)
        given[parameter.name] = _checked(value, parameter, name)
    return Action(name, given)


def _read_call(text: str, kinds: Mapping[str, ActionKind]) -> Action:
    if len(text) > MAX_ACTION_CHARS:
        raise ActionError(f"the action has {len(text)} characters, and at most {MAX_ACTION_CHARS} are read")
    not_one = ActionError(f'{_short(text)!r} is not one call; write it like click("12")')
    try:
        call = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise not_one from error
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise not_one
    name = call.func.id
    parameters = kinds[name].parameters if name in kinds else ()
    if len(call.args) > len(parameters) and name in kinds:
        raise ActionError(f"{name} takes at most {len(parameters)} arguments; write {kinds[name].signature}")
    arguments: dict[str, Any] = {}
    for parameter, node in zip(parameters, call.args, strict=False):
        arguments[parameter.name] = _literal(node, name)
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise ActionError(f"{name} is given an argument twice, or by **; give each once")
        arguments[keyword.arg] = _literal(keyword.value, name)
    return make_action(name, arguments, kinds)


def _literal(node: ast.expr, name: str) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ActionError(f"the arguments of {name} must be plain strings and numbers") from error


def _checked(value: Any, parameter: Parameter, name: str) -> Any:
    """The argument in its own type. A number is taken where an id is asked, as models write both."""
    where = f"{name}: {parameter.name}"
    match parameter.kind:
        case "id" if isinstance(value, str | int) and not isinstance(value, bool):
            if number := _ID.fullmatch(str(value)):
                return number[1]
            raise ActionError(f"{where} must be an element's number, as 12 of [12], not {_short(value)!r}")
        case "string" if isinstance(value, str):
            return value
        case "strings":
            values = [value] if isinstance(value, str) else value
            if isinstance(values, Sequence) and values and all(isinstance(one, str) for one in values):
                return list(values)
        case "number" if isinstance(value, int | float) and not isinstance(value, bool):
            return max(-1e5, min(1e5, value))
        case "integer" if isinstance(value, int) and not isinstance(value, bool):
            return value
        case "button" if value in _BUTTONS:
            return value
    raise ActionError(f"{where} must be {_ASKED[parameter.kind]}, not {_short(value)!r}")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:79] + "…"


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


_BUTTONS = ("left", "middle", "right")
_SCHEMAS: Mapping[Kind, Mapping[str, Any]] = {
    "id": {"type": ["string", "integer"], "description": "the element's number, as 12 of [12]"},
    "string": {"type": "string"},
    "strings": {"type": ["string", "array"], "items": {"type": "string"}},
    "number": {"type": "number"},
    "integer": {"type": "integer"},
    "button": {"type": "string", "enum": list(_BUTTONS)},
}
_ASKED: Mapping[Kind, str] = {
    "id": "an element's number",
    "string": "a string",
    "strings": "a string or a list of strings",
    "number": "a number",
    "integer": "a whole number",
    "button": '"left", "middle" or "right"',
}
_FENCE = re.compile(r"```(?:\w*\n)?(.*?)```", re.DOTALL)
_LINE = re.compile(r"^[ \t]*Action:[ \t]*(.*)$", re.MULTILINE)
_ID = re.compile(r"\[?(\d{1,9})\]?")
