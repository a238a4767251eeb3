"""The cases of the exactness table, and what comes of a case in a family.

A case is a conversation. The model's turns are sampled as the family's template would write them, and at the
end the ids the ledger would send are compared with `apply_chat_template` of the whole history.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from jinja2 import TemplateError

from rollhook.carried import Carried
from rollhook.errors import RenderError
from rollhook.ledger import Ledger
from rollhook.protocols import FinishReason, Message
from rollhook.render import Renderer
from tests.exactness.families import Family, Model, model_of

MARK = "Zq9"
DEEPSEEK_CALLS = "<｜tool▁calls▁begin｜>"

TOOL = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search the web.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "What to look for."}},
            "required": ["query"],
        },
    },
}

Ending = Literal["token", "length", "stop string", "abort", "inside a character"]


@dataclass(frozen=True, slots=True)
class Said:
    """One turn of the model: the message, and how sampling ended."""

    message: Message
    ending: Ending = "token"


@dataclass(frozen=True, slots=True)
class Case:
    """turns: [(what is said to the model, what it says)]. last: what is said at the end."""

    turns: Sequence[tuple[Sequence[Message], Said]]
    last: Sequence[Message]
    tools: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case.

    kind: "ids" when there are two rows of ids to compare; "refused" when the template cannot express the
    case, for us as for anybody; "only ours" when it refuses the whole history, but nothing added to it.
    ours, theirs: ids. why: the refusal, in the words of the error.
    """

    kind: Literal["ids", "refused", "only ours"]
    ours: Sequence[int] = ()
    theirs: Sequence[int] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Sampled:
    token_ids: Sequence[int]
    finish_reason: FinishReason
    request_id: str
    weight_versions: Sequence[str] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    matched: str | int | None = None
    carried: Carried = field(default_factory=Carried)

    @property
    def log_probs(self) -> Sequence[float]:
        return [-0.5] * len(self.token_ids)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def answer(text: str, *, reasoning: str | None = None, calls: Sequence[str] = ()) -> Message:
    """calls: the queries of search calls."""
    message: Message = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call0000{n}",
                "type": "function",
                "function": {"name": "search", "arguments": {"query": query}},
            }
            for n, query in enumerate(calls)
        ]
    return message


def result(text: str, n: int = 0) -> Message:
    return {"role": "tool", "name": "search", "tool_call_id": f"call0000{n}", "content": text}


def _fifty_turns() -> Case:
    turns = [([user(f"Question {n}.")], Said(answer(f"Answer {n}."))) for n in range(50)]
    return Case(turns, [user("And now?")])


OFFERED = "tools offered"
THINKING_TOOL = "thinking, then a tool result"
THINKING_USER = "thinking, then a user turn"
CHARACTER = "cut inside a character"
CONTROL = "control tokens in messages"
ASKED = [user("Who wrote it?")]

CASES: Mapping[str, Case] = MappingProxyType(
    {
        "a second user turn": Case([(ASKED, Said(answer("Nobody knows.")))], [user("Guess.")]),
        OFFERED: Case([], ASKED, tools=True),
        "one call": Case([(ASKED, Said(answer("", calls=["author"])))], [result("Ann")], tools=True),
        "text beside a call": Case(
            [(ASKED, Said(answer("Let me look.", calls=["author"])))], [result("Ann")], tools=True
        ),
        "several calls, results in a row": Case(
            [(ASKED, Said(answer("", calls=["author", "writer"])))],
            [result("Ann"), result("Bob", 1)],
            tools=True,
        ),
        "a second round of calls": Case(
            [
                (ASKED, Said(answer("", calls=["author"]))),
                ([result("Ann")], Said(answer("", calls=["Ann who"]))),
            ],
            [result("Ann Lee")],
            tools=True,
        ),
        THINKING_TOOL: Case(
            [(ASKED, Said(answer("", reasoning="Hm, look.", calls=["author"])))], [result("Ann")], tools=True
        ),
        THINKING_USER: Case([(ASKED, Said(answer("Ann.", reasoning="Hm.")))], [user("Sure?")]),
        "cut by length": Case([(ASKED, Said(answer("It was wri"), "length"))], [user("Go on.")]),
        "cut by a stop string": Case(
            [(ASKED, Said(answer("It was <stop>"), "stop string"))], [user("Go on.")]
        ),
        "cut by an abort": Case([(ASKED, Said(answer("It"), "abort"))], [user("Go on.")]),
        CHARACTER: Case([(ASKED, Said(answer("It was 𐎀"), "inside a character"))], [user("Go on.")]),
        CONTROL: Case([([user("CONTROL is a token.")], Said(answer("Yes.")))], [user("And CONTROL?")]),
        "50 turns": _fifty_turns(),
    }
)


@dataclass(frozen=True, slots=True)
class _Stage:
    """What a case is played on."""

    family: Family
    model: Model
    renderer: Renderer
    tools: Sequence[Any]


def play(family: Family, name: str, *, control: str | None = None) -> Outcome:
    """What comes of a case in a family, under the policy "append".

    control: what the messages say where a case puts a control token; default the family's end of turn.
    """
    model = model_of(family)
    case = _spelt(CASES[name], control or str(model.tokenizer.eos_token))
    renderer = Renderer(model.tokenizer, chat_template=model.template)
    offered = case.tools and (family.writes_tools or name == OFFERED)
    stage = _Stage(family, model, renderer, [TOOL] if offered else [])
    ledger = Ledger(renderer)
    history: list[Message] = []
    turn = None
    try:
        for at, (inputs, said) in enumerate(case.turns):
            prompt = ledger.extend(inputs, tools=stage.tools, after=turn)
            history += inputs
            following = case.turns[at + 1][0] if at + 1 < len(case.turns) else case.last
            ids = _sampled_ids(stage, history, said, following)
            reason: FinishReason = "stop" if said.ending not in ("length", "abort") else said.ending
            turn = ledger.commit(prompt, Sampled(ids, reason, str(at)), said.message)
            history.append(_as_read(said, renderer, ids))
        ours = ledger.extend(case.last, tools=stage.tools, after=turn).input_ids
    except RenderError as error:
        return Outcome("refused", why=str(error))
    try:
        theirs = _whole(model, [*history, *case.last], stage.tools)
    except (TemplateError, TypeError) as error:
        return Outcome("only ours", ours, why=str(error))
    return Outcome("ids", ours, theirs)


def _sampled_ids(
    stage: _Stage, history: Sequence[Message], said: Said, following: Sequence[Message]
) -> list[int]:
    """The turn as the family writes it: the text behind the prompt, and the token that ends it."""
    body, end = _body(stage, history, said.message, following)
    ids: list[int] = stage.model.tokenizer.encode(body, add_special_tokens=False)
    if said.ending == "inside a character":
        return ids[:-1]
    return ids if said.ending != "token" else [*ids, end]


def _body(
    stage: _Stage, history: Sequence[Message], message: Message, following: Sequence[Message]
) -> tuple[str, int]:
    model, tools = stage.model, stage.tools
    marked = _marked(message)
    prompt = _text(model, history, tools)
    forms = [
        _written(model, [*history, marked, *following], tools),
        _written(model, [*history, marked], tools, last=True),
    ]
    if message.get("reasoning_content"):
        forms.reverse()  # an earlier turn's thinking may be left out, the last one's never is
    for text in forms:
        mark = text.find(MARK)
        if text.startswith(prompt) and mark >= 0:
            tail = text[mark + len(MARK) :]
            end = min((e for e in stage.renderer.end_strings if e in tail), key=tail.find, default="")
            body = text[len(prompt) : mark] + (tail[: tail.find(end)] if end else tail)
            return body, _end_id(stage, message, end)
    return _free_body(model, prompt, message), model.tokenizer.eos_token_id


def _free_body(model: Model, prompt: str, message: Message) -> str:
    """A body where the template writes none behind this very prompt: it refuses the turn, or it opened
    reasoning in the prompt that it leaves out of turns."""
    body = str(message["content"])
    if prompt.endswith("<think>\n"):
        body = f"{message.get('reasoning_content', '')}\n</think>\n\n{body}"
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    if calls and DEEPSEEK_CALLS in model.template:
        blocks = "\n".join(
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{call['name']}\n"
            f"```json\n{json.dumps(call['arguments'])}\n```<｜tool▁call▁end｜>"
            for call in calls
        )
        body += f"{DEEPSEEK_CALLS}{blocks}<｜tool▁calls▁end｜>"
    return body


def _end_id(stage: _Stage, message: Message, end: str) -> int:
    if stage.family.name == "gpt-oss":
        end = "<|call|>" if message.get("tool_calls") else "<|return|>"
    if not end:  # GLM closes a turn only by the next header
        end = "<|observation|>" if message.get("tool_calls") else "<|user|>"
    found: int = stage.model.tokenizer.convert_tokens_to_ids(end)
    return found


def _marked(message: Message) -> Message:
    """The message with a mark at the end of its body."""
    calls = message.get("tool_calls")
    if not calls:
        return {**message, "content": message["content"] + MARK}
    last = calls[-1]["function"]
    arguments = {"query": last["arguments"]["query"] + MARK}
    marked = {**calls[-1], "function": {**last, "arguments": arguments}}
    return {**message, "tool_calls": [*calls[:-1], marked]}


def _written(model: Model, messages: Sequence[Message], tools: Sequence[Any], *, last: bool = False) -> str:
    """The template's text, "" where it refuses."""
    try:
        return _text(model, messages, tools, last=last)
    except (TemplateError, TypeError):
        return ""


def _text(model: Model, messages: Sequence[Message], tools: Sequence[Any], *, last: bool = False) -> str:
    text: str = model.tokenizer.apply_chat_template(
        _arguments_for(model, messages),
        tools=list(tools) or None,
        chat_template=model.template,
        tokenize=False,
        add_generation_prompt=not last,
    )
    return text


def _whole(model: Model, messages: Sequence[Message], tools: Sequence[Any]) -> list[int]:
    ids: list[int] = model.tokenizer.apply_chat_template(
        _arguments_for(model, messages),
        tools=list(tools) or None,
        chat_template=model.template,
        add_generation_prompt=True,
        return_dict=False,
    )
    return ids


def _arguments_for(model: Model, messages: Sequence[Message]) -> list[Message]:
    """DeepSeek's templates want arguments as JSON text."""
    if DEEPSEEK_CALLS not in model.template:
        return list(messages)
    return [_with_argument_text(message) for message in messages]


def _with_argument_text(message: Message) -> Message:
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls") or ()
    ]
    return {**message, "tool_calls": calls} if calls else message


def _as_read(said: Said, renderer: Renderer, ids: Sequence[int]) -> Message:
    """The message as the loop would know it: what was cut inside a character ends in a replacement mark."""
    if said.ending != "inside a character":
        return said.message
    text = renderer.decode(ids)
    return {**said.message, "content": re.sub(r"^.*?(?=It was)", "", text, flags=re.DOTALL)}


def _spelt(case: Case, control: str) -> Case:
    """The case with `control` where its messages say CONTROL."""

    def spell(messages: Sequence[Message]) -> list[Message]:
        return [
            {**message, "content": message["content"].replace("CONTROL", control)} for message in messages
        ]

    return Case([(spell(inputs), said) for inputs, said in case.turns], spell(case.last), case.tools)
