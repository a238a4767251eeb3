"""The exactness table: every family and case, each difference explained and proven.

python -m tests.exactness.table        writes docs/exactness.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

from rollhook.render import Renderer
from tests.exactness.families import FAMILIES, Family, model_of
from tests.exactness.scenarios import CASES, CHARACTER, CONTROL, THINKING_TOOL, THINKING_USER, play

PAGE = Path(__file__).parents[2] / "docs" / "exactness.md"

NOT_APPLICABLE = "–"

REASONS: Mapping[str, str] = MappingProxyType(
    {
        "equal": "The ids are those of `apply_chat_template` on the whole history.",
        "reasoning": (
            "The template leaves an earlier turn's reasoning out, or the `<think>` it put into that turn's "
            "prompt. What was prompted and sampled stays. Without those stretches both texts are the same."
        ),
        "end token": (
            "The model ends its answer with `<|return|>`, where the template later writes `<|end|>`; the "
            "sampled one stands. Earlier reasoning is left out as above."
        ),
        "second round": (
            "The template forgets to reset two flags and writes a second round of calls without the tags "
            "that open it. Each round is written like the first."
        ),
        "boundary": (
            "The text is the same. The prompt ends in a newline and the model samples another; tokenised at "
            "once, the two would be one token. What was sampled stays."
        ),
        "character": (
            "The text is the same. The turn was cut inside a character; the bytes that were sampled stay, "
            "where text can only hold a replacement mark."
        ),
        "control": (
            "The text is the same. A message spells the model's end of turn; `apply_chat_template` makes a "
            "control token of it, here it stays text."
        ),
        "refused": "The template cannot express the case, and rollhook says so. The sentences are below.",
        "only ours": "The template refuses the whole history, but nothing of what is put behind the turn.",
        NOT_APPLICABLE: "The family's template has no reasoning.",
    }
)

Rewrite = Callable[[str], str]


def _without_reasoning(text: str) -> str:
    text = re.sub(r"<think>\n.*?</think>\n\n(?!\Z)", "", text, flags=re.DOTALL)
    return re.sub(r"(?<=\n)<think>[^\n]+?</think>", "<think></think>", text)


def _with_template_ends(text: str) -> str:
    analysis = r"<\|channel\|>analysis<\|message\|>.*?<\|end\|><\|start\|>assistant"
    text = re.sub(analysis + r"(?=<\|channel\|>final)", "", text, flags=re.DOTALL)
    return re.sub(r"<\|return\|>(?=<\|start\|>user)", "<|end|>", text)


def _with_forgotten_flags(text: str) -> str:
    text = text.replace("<｜tool▁outputs▁end｜><｜tool▁calls▁begin｜>", "\n")
    before, tag, after = text.partition("<｜tool▁outputs▁begin｜>")
    return before + tag + after.replace(tag, "") if tag else text


REWRITES: Mapping[str, Rewrite] = MappingProxyType(
    {
        "reasoning": _without_reasoning,
        "end token": _with_template_ends,
        "second round": _with_forgotten_flags,
    }
)


class UnexplainedError(AssertionError):
    """A difference that no known reason accounts for."""


@cache
def cell(family: Family, case: str) -> tuple[Sequence[str], str]:
    """The reasons for what the table says of a case, and the words of a refusal.

    Raises UnexplainedError where ours and the template's writing differ in any other way.
    """
    if case in (THINKING_TOOL, THINKING_USER) and not family.thinks:
        return [NOT_APPLICABLE], ""
    outcome = play(family, case)
    if outcome.kind != "ids":
        return [outcome.kind], outcome.why
    if outcome.ours == outcome.theirs:
        return ["equal"], ""
    tokenizer = model_of(family).tokenizer
    text, whole = tokenizer.decode(outcome.ours), tokenizer.decode(outcome.theirs)
    reasons = []
    for reason, rewrite in REWRITES.items():
        if text != whole and rewrite(text) != text:
            text = rewrite(text)
            reasons.append(reason)
    if text != whole:
        raise UnexplainedError(f"{family.name}, {case}:\nours   {text!r}\ntheirs {whole!r}")
    if case == CHARACTER:
        reasons.append("character")
    elif case == CONTROL:
        added = tokenizer.added_tokens_decoder
        plain = play(family, case, control="nothing")
        if [i for i in outcome.ours if i in added] != [i for i in plain.ours if i in added]:
            raise UnexplainedError(f"{family.name}, {case}: a message made a control token")
        reasons.append("control")
    elif not reasons:
        if tokenizer.encode(text, add_special_tokens=False) != list(outcome.theirs):
            raise UnexplainedError(f"{family.name}, {case}: the same text, but other ids than the text's own")
        reasons.append("boundary")
    return reasons, ""


def page(rows: Mapping[str, Mapping[str, tuple[Sequence[str], str]]]) -> str:
    """The page of the docs, from cells by family and case."""
    lines = [
        "# Exactness",
        "",
        "<!-- written by `python -m tests.exactness.table`; a test compares it with what the code does -->",
        "",
        "What the ledger would send, rendered turn by turn, against `apply_chat_template` of the whole",
        "history, with real tokenizers and original chat templates, under the default policy `append`.",
        "`equal` is id for id; every other word is explained below the table, and the tests prove the",
        "explanation: with that difference undone, the texts are the same.",
        "",
        "| | " + " | ".join(CASES) + " |",
        "|---" * (len(CASES) + 1) + "|",
    ]
    for name, cells in rows.items():
        lines.append(f"| **{name}** | " + " | ".join(", ".join(cells[case][0]) for case in CASES) + " |")
    lines += ["", "| word | meaning |", "|---|---|"]
    lines += [f"| {word} | {_escaped(sentence)} |" for word, sentence in REASONS.items()]
    lines += ["", "## What a family cannot express", ""]
    for name, cells in rows.items():
        refusals: dict[str, list[str]] = {}
        for case, (_, why) in cells.items():
            if why:
                refusals.setdefault(why, []).append(case)
        lines += [f"- {name}, {'; '.join(cases)}: *{why}*" for why, cases in refusals.items()]
    lines += ["", "## Control tokens in messages", ""]
    lines += [
        "Inside user, tool and document text these stay text: every special token of the tokenizer, and of",
        "its other added tokens those in control form (`<|...|>`). Added tokens that models write as text",
        "are left to the template.",
        "",
        "| | stay text | left to the template |",
        "|---|---|---|",
    ]
    for family in FAMILIES:
        stay, left = control_tokens(family)
        lines.append(f"| **{family.name}** | {_sample(stay)} | {_sample(left)} |")
    lines += ["", "## Tokenizers and templates", ""]
    lines += [f"- {family.name}: {family.source}." for family in FAMILIES]
    lines += [
        "",
        "Qwen3-Coder has no row: its template is in none of the packages that the tests install. How it",
        "writes calls is covered by Qwen3.5, whose template writes them the same way.",
    ]
    return "\n".join(lines) + "\n"


def control_tokens(family: Family) -> tuple[list[str], list[str]]:
    """The family's added tokens: those that stay text in messages, and those left to the template."""
    model = model_of(family)
    neutralised = Renderer(model.tokenizer, chat_template=model.template).neutralised
    added = {token.content for token in model.tokenizer.added_tokens_decoder.values()}
    reserved = re.compile(r"reserved|place▁holder|unused|SPECIAL_\d+|^\s+$|^▁+$")
    named = sorted(token for token in added if not reserved.search(token))
    return [token for token in named if token in neutralised], [t for t in named if t not in neutralised]


def _sample(tokens: Sequence[str]) -> str:
    shown = ", ".join(_escaped(f"`{token}`") for token in tokens[:8])
    return f"{shown} and {len(tokens) - 8} more" if len(tokens) > 8 else shown or NOT_APPLICABLE


def _escaped(text: str) -> str:
    """Text for a table's cell."""
    return text.replace("|", "\\|")


def main() -> int:
    """Write the page."""
    rows = {family.name: {case: cell(family, case) for case in CASES} for family in FAMILIES}
    PAGE.write_text(page(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
