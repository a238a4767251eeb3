"""`rollhook verify`: scores of answers that are already there, without an engine."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import IO

import click

from rollhook.answers import Answer, read_answers
from rollhook.cli.figures import counted, number
from rollhook.cli.options import (
    config_option,
    data_argument,
    key_options,
    load_config,
    make_plugins,
    plugin_options,
)
from rollhook.cli.run import INTERRUPTED
from rollhook.data import BadRow, DataKeys
from rollhook.errors import DataError, RolloutError
from rollhook.protocols import Score
from rollhook.runtime import Runtime
from rollhook.scoring import score_samples
from rollhook.spec import Choice, SpecError

_SHOWN_CHARS = 60
_SAME = 1e-9

Result = Score | RolloutError


@dataclass(slots=True)
class Tally:
    """What one verifier made of the rows. choice: None for those that the rows name."""

    choice: Choice | None
    values: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        """The verifier's full name."""
        return "the rows' own" if self.choice is None else self.choice.name

    def add(self, result: Result) -> None:
        """Count one row."""
        if isinstance(result, RolloutError):
            self.failures[result.stage] += 1
        else:
            self.values.append(result.value)


@dataclass(frozen=True, slots=True)
class Job:
    """What one command asked for. tallies: one verifier, or the two to compare."""

    data: Path
    keys: DataKeys
    response_key: str
    tallies: Sequence[Tally]
    out: IO[str] | None


@click.command("verify", short_help="Score answers that are already there, without an engine.")
@data_argument
@click.option("--verifier", metavar="NAME", help="Score every row by this verifier instead of the row's own.")
@click.option(
    "--compare", nargs=2, metavar="NAME NAME", help="Score by two verifiers and list where they differ."
)
@click.option("--out", type=click.Path(path_type=Path), help="A .jsonl file for the score of each row.")
@config_option
@plugin_options
@key_options
@click.option(
    "--response-key", default="response", show_default=True, help="The key of a row that holds the answer."
)
@click.pass_context
def command(
    ctx: click.Context,
    *,
    data: Path,
    verifier: str | None,
    compare: tuple[str, str] | None,
    out: Path | None,
    config_file: Path | None,
    plugin: tuple[str, ...],
    block: tuple[str, ...],
    input_key: str,
    label_key: str,
    metadata_key: str,
    tool_key: str,
    response_key: str,
) -> None:
    """Score the answers in DATA, a .jsonl or .parquet file with responses, or an exported run.

    Rows that cannot be read stop it before the first score. Exit code 0: every row is accounted for (failed
    ones are printed); 1: all failed; 2: bad usage or bad rows; 130: interrupted.
    """
    if verifier and compare:
        raise click.UsageError("--verifier and --compare exclude each other")
    if out is not None and out.suffix != ".jsonl":
        raise DataError(f"{out}: the name must end in .jsonl")
    plugins, config = make_plugins(load_config(config_file, block=block, plugin=plugin))
    runtime = Runtime(config, plugins=plugins)
    names = compare or ((verifier,) if verifier else ())
    tallies = [Tally(runtime.resolver.choose("verifier", name)) for name in names] or [Tally(None)]
    keys = DataKeys(input_key, label_key, metadata_key, tool_key)
    with ExitStack() as stack:
        file = stack.enter_context(out.open("w", encoding="utf-8")) if out else None
        job = Job(data, keys, response_key, tallies, file)
        _refuse_bad_rows(job, runtime)
        try:
            differing = asyncio.run(_score(job, runtime))
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
    _print_summary(tallies, differing)
    ctx.exit(0 if all(tally.values for tally in tallies) else 1)


def _refuse_bad_rows(job: Job, runtime: Runtime) -> None:
    """Raise DataError, after printing every bad row, unless all can be scored."""
    rows = bad = 0
    for row in read_answers(job.data, job.keys, job.response_key):
        rows += 1
        problem = f"{row.key}: {row.message}" if isinstance(row, BadRow) else _unresolved(row, job, runtime)
        if problem is not None:
            bad += 1
            click.echo(f"{job.data}:{row.line}: {problem}", err=True)
    if bad or not rows:
        raise DataError(f"{job.data} has {'bad' if bad else 'no'} rows: nothing was scored")


def _unresolved(answer: Answer, job: Job, runtime: Runtime) -> str | None:
    """What is wrong with the row's own metadata, where it is needed."""
    if job.tallies[0].choice is not None and answer.sample.metadata.get("rollhook") is None:
        return None
    try:
        runtime.resolver.resolve(answer.sample.metadata)
    except SpecError as error:
        return str(error)
    return None


async def _score(job: Job, runtime: Runtime) -> int:
    """Score all rows and tell of each; returns how many were scored differently."""
    differing = 0
    async with runtime.scoring():
        for batch in _batches(job, runtime.config.concurrency):
            scored = [await _score_batch(runtime, batch, tally) for tally in job.tallies]
            for answer, results in zip(batch, zip(*scored, strict=True), strict=True):
                differing += _tell(job, answer, results)
    return differing


def _batches(job: Job, size: int) -> Iterator[list[Answer]]:
    """Whole groups, as many as make `size` rows or more."""
    batch: list[Answer] = []
    rows = read_answers(job.data, job.keys, job.response_key)
    answers = (row for row in rows if isinstance(row, Answer))
    for _, group in groupby(answers, key=lambda answer: answer.sample.group_index):
        batch += group
        if len(batch) >= size:
            yield batch
            batch = []
    if batch:
        yield batch


async def _score_batch(runtime: Runtime, batch: Sequence[Answer], tally: Tally) -> list[Result]:
    there = [answer.sample for answer in batch if answer.failed is None]
    scores = iter(await score_samples(runtime, there, by=tally.choice))
    results = [next(scores) if answer.failed is None else answer.failed for answer in batch]
    for result in results:
        tally.add(result)
    return results


def _tell(job: Job, answer: Answer, results: Sequence[Result]) -> bool:
    """Write and print one row's results; whether two verifiers scored it differently."""
    for tally, result in zip(job.tallies, results, strict=True):
        if job.out is not None:
            job.out.write(json.dumps(_record(answer, tally, result)) + "\n")
        if isinstance(result, RolloutError):
            click.echo(f"{job.data}:{answer.line}: {result.stage}: {result}", err=True)
    values = [result.value for result in results if isinstance(result, Score)]
    if len(values) < 2 or abs(values[0] - values[1]) <= _SAME:
        return False
    shown = " vs ".join(number(value) for value in values)
    label, said = _short(answer.sample.label), _short(answer.sample.response)
    click.echo(f"{job.data}:{answer.line}: {shown}  label {label}  answer {said}")
    return True


def _record(answer: Answer, tally: Tally, result: Result) -> dict[str, object]:
    score = result if isinstance(result, Score) else None
    error = (
        None
        if isinstance(result, Score)
        else {
            "stage": result.stage,
            "plugin": result.plugin,
            "type": result.cause_type,
            "message": str(result),
        }
    )
    return {
        "line": answer.line,
        "verifier": None if tally.choice is None else tally.choice.name,
        "value": score.value if score else None,
        "parts": dict(score.parts) if score else {},
        "error": error,
    }


def _short(value: object) -> str:
    """A text on one line, the end of a long one: answers end with what is scored."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARS else f"...{text[3 - _SHOWN_CHARS :]}"


def _print_summary(tallies: Sequence[Tally], differing: int) -> None:
    for tally in tallies:
        mean = sum(tally.values) / len(tally.values) if tally.values else None
        click.echo(
            f"{tally.name}: {len(tally.values)} scored, mean {number(mean)}, failed {counted(tally.failures)}"
        )
    if len(tallies) == 2:
        click.echo(f"{differing} rows scored differently")
