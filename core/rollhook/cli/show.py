"""`rollhook show`: a run as a table, one rollout as a transcript."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rollhook.cli.figures import Figures, cause, figures, number, trained_tokens
from rollhook.cli.terminal import make_console
from rollhook.errors import ConfigError
from rollhook.sample import Sample
from rollhook.siblings import result_of
from rollhook.store import StoredRollout, read_record, read_rollout, read_rollouts

_PALETTE = ("green", "magenta", "cyan", "yellow", "blue", "red")
Decode = Callable[[Sequence[int]], str]


@click.command("show", short_help="Show a run as a table, or one rollout token by token.")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("index", required=False, type=int)
@click.option("--color/--no-color", default=None, help="Colour or none; by default as the terminal allows.")
@click.option("--tokenizer", help="Decode with this tokenizer instead of the run's.")
def command(directory: Path, index: int | None, color: bool | None, tokenizer: str | None) -> None:
    """Show the run in DIR as a table of rollouts, or the rollout INDEX token by token.

    In a rollout, siblings are lettered A, B, ...; `+` marks what is trained and `-` what is masked.
    """
    console = make_console(color)
    if index is None:
        _print_table(console, directory)
        return
    rollout = read_rollout(directory, index)
    try:
        decode, reason = _decoder(tokenizer or read_record(directory).pinned.get("tokenizer")), ""
    except ConfigError as error:
        decode, reason = None, str(error)
    _print_rollout(console, rollout, decode)
    if decode is None:
        console.print(
            Text(f"(without its tokenizer a rollout shows only response text: {reason})"), soft_wrap=True
        )


def _print_table(console: Console, directory: Path) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("index", "group", "status", "reward", "samples", "turns", "sampled", "trained", "forks"):
        table.add_column(name, justify="left" if name == "status" else "right", no_wrap=True)
    table.add_column("roles or cause")
    for rollout in read_rollouts(directory, by_index=True):
        one = figures(rollout.index, rollout.samples)
        table.add_row(
            str(one.index),
            "-" if one.group is None else str(one.group),
            Text(one.status, style="red" if one.status == "failed" else ""),
            number(one.reward),
            str(len(one.roles)),
            str(one.turns),
            str(one.sampled),
            str(one.trained),
            str(len(one.forks)),
            Text(cause(one.error) if one.error else _roles(one)),
        )
    console.print(table)
    console.print(f"{table.row_count} rollouts; one of them: rollhook show {directory} INDEX", soft_wrap=True)


def _roles(one: Figures) -> str:
    limit = f" ({one.limit})" if one.limit else ""
    return f"{', '.join(one.roles)}{limit}"


def _decoder(path: str | None) -> Decode:
    if path is None:
        raise ConfigError("the run does not say which tokenizer it used; name one with --tokenizer")
    from rollhook.served import load_tokenizer

    tokenizer = load_tokenizer(path)

    def decode(tokens: Sequence[int]) -> str:
        text: str = tokenizer.decode(
            list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    return decode


def _print_rollout(console: Console, rollout: StoredRollout, decode: Decode | None) -> None:
    first, one = rollout.samples[0], figures(rollout.index, rollout.samples)
    lines = [
        Text(
            f"rollout {rollout.index}  group {first.group_index}  samples {len(rollout.samples)}  "
            f"tokens sampled {one.sampled}  trained {one.trained}"
        ),
        Text(f"label   {_visible(repr(first.label))}"),
        Text("+ trained   - masked"),
    ]
    for position, sample in enumerate(rollout.samples):
        letter, colour = _letter(position), _PALETTE[position % len(_PALETTE)]
        lines += [Text(""), Text(f"{letter}   {_header(sample)}", style=f"bold {colour}")]
        if error := result_of(sample).get("error"):
            lines.append(Text(f"{letter}   {_visible(cause(error))}", style="red"))
        spans = [(None, sample.response)] if decode is None else _spans(sample, decode)
        lines += [line for trained, text in spans for line in _marked(letter, colour, trained, text)]
    for line in lines:
        console.print(line, soft_wrap=True)


def _header(sample: Sample) -> str:
    result = result_of(sample)
    reward = sample.reward if isinstance(sample.reward, dict) else number(sample.reward)
    limit = f" ({result['limit']})" if result.get("limit") else ""
    forks = [f"turn {fork['turn']}: {fork['reason']}" for fork in result.get("forks", ())]
    return "  ".join(
        [
            f"segment {result.get('segment', 0) + 1}/{result.get('segments', 1)}",
            f"kind {result.get('kind', '-')}",
            f"role {result.get('role', '-')}",
            f"status {sample.status.value}{limit}",
            f"reward {reward}",
            f"turns {result.get('turns', '-')}",
            f"trained {trained_tokens(sample)} of {len(sample.tokens)} tokens",
            f"forks {len(forks)}" + (f" ({'; '.join(forks)})" if forks else ""),
        ]
    )


def _spans(sample: Sample, decode: Decode) -> Iterator[tuple[bool, str]]:
    """The sample's tokens as texts, cut where training begins and ends.

    Decoded span by span, because one token may be a part of a character only.
    """
    prompt_length = len(sample.tokens) - sample.response_length
    mask = [0] * prompt_length + (sample.loss_mask or [0] * sample.response_length)
    for trained, span in groupby(zip(mask, sample.tokens, strict=True), key=lambda pair: pair[0] == 1):
        yield trained, decode([token for _, token in span])


def _marked(letter: str, colour: str, trained: bool | None, text: str) -> Iterator[Text]:
    """The lines of one span behind their marks; `⏎` stands for each line end that is in the text."""
    mark = {True: "+", False: "-", None: "?"}[trained]
    style = "dim" if trained is False else colour
    *ended, rest = text.split("\n")
    for line in ended:
        yield Text.assemble((f"{letter} {mark} ", colour), (_visible(line), style), ("⏎", "dim"))
    if rest:
        yield Text.assemble((f"{letter} {mark} ", colour), (_visible(rest), style))


def _visible(text: str) -> str:
    """`text` with what could steer a terminal spelled out."""
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


def _letter(position: int) -> str:
    """A, B, ..., Z, AA, AB, ..."""
    letters = ""
    position += 1
    while position:
        position, rest = divmod(position - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters
