"""How each model family writes tool calls.

Invariant: a grammar decides from the text from a call's opening tag on, and its decision about a stretch of
text never changes when more text comes. Tags inside an argument's value are part of the value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from rollhook.parsing.arguments import from_text
from rollhook.parsing.json_text import JsonEnd, ends_in_string, json_value, json_values
from rollhook.parsing.results import BrokenSyntax, NotACall, ToolSchemas, WrittenCall


class Tagged:
    """A call between an opening and a closing tag.

    inside_value: whether text stops inside an argument's value, where a closing tag is part of the value.
    """

    def __init__(
        self, opener: str, closer: str, inside_value: Callable[[str], bool], *, ignored: Sequence[str] = ()
    ) -> None:
        self.openers: Sequence[str] = (opener,)
        self.ignored = ignored
        self.bare_opener: str | None = None
        self._closer = closer
        self._inside_value = inside_value

    def end_of_call(self, text: str, opener: str, start: int, *, whole: bool) -> int | None:
        """Behind the first closing tag outside a value; failing that, the first at all, or the text's end."""
        at = text.find(self._closer, max(len(opener), start - len(self._closer)))
        while at >= 0:
            if not self._inside_value(text[len(opener) : at]):
                return at + len(self._closer)
            at = text.find(self._closer, at + 1)
        if not whole:
            return None
        first = text.find(self._closer)
        return len(text) if first < 0 else first + len(self._closer)

    def body(self, block: str, opener: str) -> str:
        """The block without its tags; a missing closing tag is forgiven, since turns get cut."""
        return block.removeprefix(opener).removesuffix(self._closer)


class Hermes(Tagged):
    """Qwen2.5 and Qwen3: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

    def __init__(self) -> None:
        super().__init__("<tool_call>", "</tool_call>", ends_in_string)

    def read(self, block: str, opener: str, schemas: ToolSchemas) -> list[WrittenCall]:
        """One call."""
        return [named_call(json_value(self.body(block, opener)))]


class Qwen3Coder(Tagged):
    """Qwen3-Coder, Qwen3.5: `<function=f><parameter=key>value</parameter></function>` in `<tool_call>` tags.

    The outer tags, which the model sometimes leaves out, may be missing.
    """

    _function = re.compile(r"<function=([^>\n]+)>(.*?)(?:</function>\s*$|$)", re.DOTALL)
    _parameter = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|$)", re.DOTALL)

    def __init__(self) -> None:
        super().__init__("<tool_call>", "</tool_call>", unclosed("<parameter=", "</parameter>"))
        self.openers = ("<tool_call>", "<function=")
        self._bare_end: int | None = None

    def end_of_call(self, text: str, opener: str, start: int, *, whole: bool) -> int | None:
        """As the outer tag closes, or the inner one where the outer is missing."""
        if opener == "<tool_call>":
            return super().end_of_call(text, opener, start, whole=whole)
        end = self._bare_end  # found before, when it was not yet certain whether the outer tag follows
        if end is None:
            bare = Tagged(opener, "</function>", self._inside_value)
            end = bare.end_of_call(text, opener, start, whole=whole)
        if end is None:
            return None
        rest = text[end:].lstrip()
        if not whole and rest != self._closer and self._closer.startswith(rest):
            self._bare_end = end
            return None
        self._bare_end = None
        return len(text) - len(rest) + len(self._closer) if rest.startswith(self._closer) else end

    def read(self, block: str, opener: str, schemas: ToolSchemas) -> list[WrittenCall]:
        """One call."""
        function = self._function.search(block.removesuffix(self._closer))
        if function is None:
            raise BrokenSyntax("a tool call must hold <function=name>...</function>")
        name, body = function.group(1).strip(), function.group(2)
        properties = schemas.parameters(name).get("properties") or {}
        arguments = {}
        for key, value in self._parameter.findall(body):
            arguments[key.strip()] = from_text(value, properties.get(key.strip()))
        return [WrittenCall(name, arguments)]


class Glm(Tagged):
    """GLM-4.5: `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`."""

    _argument = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)

    def __init__(self) -> None:
        super().__init__("<tool_call>", "</tool_call>", unclosed("<arg_value>", "</arg_value>"))

    def read(self, block: str, opener: str, schemas: ToolSchemas) -> list[WrittenCall]:
        """One call."""
        name, _, rest = self.body(block, opener).strip().partition("<arg_key>")
        name = name.strip()
        if not name or "\n" in name or "<" in name:
            raise BrokenSyntax("a tool call must begin with the function's name on a line of its own")
        if rest and rest.count("<arg_value>") != rest.count("</arg_value>"):
            raise BrokenSyntax(f"the call of {name} leaves an <arg_value> open")
        properties = schemas.parameters(name).get("properties") or {}
        arguments = {}
        for key, value in self._argument.findall("<arg_key>" + rest if rest else ""):
            arguments[key.strip()] = from_text(value, properties.get(key.strip()))
        return [WrittenCall(name, arguments)]


class DeepSeekV3(Tagged):
    """DeepSeek V3 and R1: the function's name, then its arguments in a fenced JSON block."""

    _call = re.compile(r"\s*function<｜tool▁sep｜>([^\n`]+?)\s*```(?:json)?\n(.*?)\n?```\s*", re.DOTALL)

    def __init__(self) -> None:
        super().__init__(
            "<｜tool▁call▁begin｜>",
            "<｜tool▁call▁end｜>",
            lambda text: ends_in_string(text[text.find("{") :]) if "{" in text else False,
            ignored=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        )

    def read(self, block: str, opener: str, schemas: ToolSchemas) -> list[WrittenCall]:
        """One call."""
        call = self._call.fullmatch(self.body(block, opener))
        if call is None:
            raise BrokenSyntax("a tool call must be the function's name and a fenced json block")
        return [named_call({"name": call.group(1), "arguments": json_value(call.group(2))})]


class KimiK2(Tagged):
    """Kimi K2: `functions.name:0`, which is the call's id, then the arguments in JSON."""

    _call = re.compile(r"\s*((?:functions\.)?([\w.\-]+):\d+)\s*<\|tool_call_argument_begin\|>(.*)", re.DOTALL)

    def __init__(self) -> None:
        super().__init__(
            "<|tool_call_begin|>",
            "<|tool_call_end|>",
            lambda text: ends_in_string(text.partition("<|tool_call_argument_begin|>")[2]),
            ignored=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        )

    def read(self, block: str, opener: str, schemas: ToolSchemas) -> list[WrittenCall]:
        """One call, with the id the model gave it."""
        call = self._call.fullmatch(self.body(block, opener))
        if call is None:
            raise BrokenSyntax("a tool call must be functions.name:number and JSON arguments")
        call_id, name, arguments = call.groups()
        return [named_call({"name": name, "arguments": json_value(arguments), "id": call_id})]


class Mistral:
    """Mistral: `[TOOL_CALLS] [{"name": ..., "arguments": ...}, ...]` or `[TOOL_CALLS]name[ARGS]{...}`."""

    openers: Sequence[str] = ("[TOOL_CALLS]",)
    ignored: Sequence[str] = ()
    bare_opener: str | None = None
    _compact = re.compile(r"\s*([\w.\-]+)(?:\[CALL_ID\]([\w\-]+))?(?:\[ARGS\])?\s*(\{.*)", re.DOTALL)

    def __init__(self) -> None:
        self._end = JsonEnd()

    def end_of_call(self, text: str, opener: str, start: int, *, whole: bool) -> int | None:
        """Behind the array that follows the tag, or behind the object that follows the name."""
        body_at = _skip(text, len(opener), " \n")
        value_at = body_at if text[body_at : body_at + 1] in ("[", "{") else text.find("{", body_at)
        end = self._end.of(text, value_at) if 0 <= value_at < len(text) else None
        if end is None:
            return len(text) if whole else None
        self._end = JsonEnd()
        return end

    def read(self, block: str, opener: str, schemas: ToolSchemas) -> list[WrittenCall]:
        """The calls of an array, or the one of the compact form."""
        body = block.removeprefix(opener)
        if compact := self._compact.fullmatch(body):
            name, call_id, arguments = compact.groups()
            return [named_call({"name": name, "arguments": json_value(arguments), "id": call_id})]
        calls = json_value(body)
        return [named_call(call) for call in (calls if isinstance(calls, list) else [calls])]


class Llama3:
    """Llama 3: `{"name": ..., "parameters": {...}}`, several joined by `;`, behind `<|python_tag|>` or bare.

    Bare JSON is taken for a call only at the very start of a turn, and stays text when it names no function.
    """

    openers: Sequence[str] = ("<|python_tag|>",)
    ignored: Sequence[str] = ()
    bare_opener: str | None = "{"

    _separators = "; \n\t"

    def __init__(self) -> None:
        self._end = JsonEnd()
        self._value_at = 0
        self._row_end: int | None = None

    def end_of_call(self, text: str, opener: str, start: int, *, whole: bool) -> int | None:
        """Behind the last of a row of JSON objects."""
        if opener != self.bare_opener:
            self._value_at = max(self._value_at, len(opener))
        while True:
            self._value_at = _skip(text, self._value_at, self._separators)
            if self._value_at == len(text):
                end = self._row_end or len(text)
            elif text[self._value_at] == "{":
                if value_end := self._end.of(text, self._value_at):
                    self._row_end = self._value_at = value_end
                    self._end = JsonEnd()
                    continue
                end = len(text)
            elif self._row_end is not None:
                end, whole = self._row_end, True  # other text ends the row
            else:
                end = len(text)
            if whole:
                self._restart()
            return end if whole else None

    def _restart(self) -> None:
        self._end = JsonEnd()
        self._value_at = 0
        self._row_end = None

    def read(self, block: str, opener: str, schemas: ToolSchemas) -> list[WrittenCall]:
        """The calls of the row."""
        bare = opener == self.bare_opener
        body = block if bare else block.removeprefix(opener)
        if bare and '"name"' not in body:
            raise NotACall
        return [named_call(value) for value in json_values(body, separators=self._separators)]


def named_call(value: Any) -> WrittenCall:
    """The call a JSON object states. Raises BrokenSyntax unless it has a name and an object of arguments."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        raise BrokenSyntax('a tool call must be a JSON object with "name" and "arguments"')
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = json_value(arguments)
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise BrokenSyntax(f'the "arguments" of {value["name"]} must be a JSON object')
    call_id = value.get("id")
    return WrittenCall(value["name"], arguments, call_id if isinstance(call_id, str) and call_id else None)


def _skip(text: str, at: int, characters: str) -> int:
    """The first position from `at` on that holds none of `characters`."""
    while at < len(text) and text[at] in characters:
        at += 1
    return at


def unclosed(opener: str, closer: str) -> Callable[[str], bool]:
    """Whether a text leaves the last `opener` open."""
    return lambda text: text.rfind(opener) > text.rfind(closer)
