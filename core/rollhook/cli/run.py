"""`rollhook run`: every row of a data file becomes rollouts, recorded as they finish."""

from __future__ import annotations

import asyncio
import platform
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

import click

from rollhook.cli.figures import Figures, Totals, cause, counted, figures, number
from rollhook.cli.options import (
    check_data,
    config_option,
    data_argument,
    key_options,
    load_config,
    make_plugins,
    plugin_options,
)
from rollhook.cli.progress import RunProgress
from rollhook.config import RunConfig
from rollhook.data import DataKeys, data_digest, make_samples, read_rows
from rollhook.errors import DataError
from rollhook.generate import run_rollout
from rollhook.plugins import ENTRY_POINT_GROUP, Plugins
from rollhook.runtime import Runtime
from rollhook.sample import Sample
from rollhook.scheduler import run_rollouts
from rollhook.store import RunRecord, RunStore, read_rollouts
from rollhook.version import __version__

INTERRUPTED = 130
_NOT_IDENTITY = ("engine", "concurrency", "retries", "request_timeout_s")
"""Settings that may change between an interrupted run and its continuation: they shape no sample."""


@dataclass(frozen=True, slots=True)
class Job:
    """What one command asked for."""

    data: Path
    out: Path
    keys: DataKeys
    config: RunConfig
    plugins: Plugins
    samples_per_prompt: int
    limit: int | None
    evaluation: bool
    retry_failed: bool


@click.command("run", short_help="Run every row of a data file and record what comes of it.")
@data_argument
@click.option("--engine", metavar="URL|embedded", help="The inference engine: SGLang's URL, or `embedded`.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The run's directory.")
@click.option("--model", help="The embedded engine's model; by default the small one that is built in.")
@click.option(
    "--samples-per-prompt", default=1, show_default=True, type=click.IntRange(1), help="Rollouts a row."
)
@click.option("--concurrency", type=click.IntRange(1), help="How many rollouts run at once.")
@click.option("--limit", type=click.IntRange(1), help="Stop after so many rows.")
@click.option("--seed", type=int, help="Seeds every turn; by default the configuration's, else 0.")
@click.option("--retry-failed", is_flag=True, help="Run again what failed in this directory before.")
@click.option("--evaluation", is_flag=True, help="One sample for each rollout, with its whole reward.")
@click.option("--tokenizer", help="A directory or hub name; by default what the engine says.")
@click.option("--tool-parser", help="How the model writes tool calls.")
@click.option("--reasoning-parser", help="How the model writes its reasoning.")
@config_option
@plugin_options
@key_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    data: Path,
    out: Path,
    samples_per_prompt: int,
    limit: int | None,
    retry_failed: bool,
    evaluation: bool,
    config_file: Path | None,
    plugin: tuple[str, ...],
    block: tuple[str, ...],
    input_key: str,
    label_key: str,
    metadata_key: str,
    tool_key: str,
    **flags: Any,
) -> None:
    """Run rollouts for every row of DATA, a .jsonl or .parquet file, and record them in a directory.

    All rows are checked first, and the same command goes on where it stopped. Exit code 0: every rollout is
    accounted for (failed ones are printed); 1: all failed; 2: bad usage or bad rows; 130: interrupted.
    """
    plugins, config = make_plugins(load_config(config_file, block=block, plugin=plugin, **flags))
    if config.seed is None:
        config = config.model_copy(update={"seed": 0})
    keys = DataKeys(input_key, label_key, metadata_key, tool_key)
    job = Job(data, out, keys, config, plugins, samples_per_prompt, limit, evaluation, retry_failed)
    resume, totals = shlex.join(_command_line()), Totals()
    try:
        ctx.exit(_run(job, resume, totals))
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo(f"interrupted: {totals.rollouts} finished rollouts are kept; go on with:", err=True)
        click.echo(f"  {resume}", err=True)
        ctx.exit(INTERRUPTED)


def _run(job: Job, resume: str, totals: Totals) -> int:
    """Run the job to its exit code. resume: the command line that goes on with it. totals: filled."""
    started_s = time.monotonic()
    runtime = Runtime(job.config, plugins=job.plugins)
    total = _checked_rows(job, runtime) * job.samples_per_prompt
    with RunStore(job.out, RunRecord(_identity(job), _facts(resume))) as store:
        failed = _load_done(store, totals, retried=range(total if job.retry_failed else 0))
        missing = sum(index not in store.done for index in range(total))
        if store.done:
            again = f" ({len(failed)} of them failed; run them again with --retry-failed)"
            hint = again if failed and not job.retry_failed else ""
            click.echo(f"{len(store.done)} rollouts are in {job.out}{hint}, {missing} are to run", err=True)
        with RunProgress(totals, total) as progress:
            for one in failed:
                progress.say(_failure(one))
            if missing:
                asyncio.run(_run_missing(job, runtime, store, totals, progress))
    _print_summary(job.out, totals, time.monotonic() - started_s)
    return 1 if totals.failed == totals.rollouts else 0


def _checked_rows(job: Job, runtime: Runtime) -> int:
    """How many rows will run. Raises DataError, after printing every bad row, unless all are good."""
    rows, problems = check_data(job.data, job.keys, runtime.resolver)
    for problem in problems:
        click.echo(problem.show(job.data), err=True)
    if problems:
        raise DataError(f"{job.data} has bad rows: nothing was run")
    if not rows:
        raise DataError(f"{job.data} has no rows")
    return rows if job.limit is None else min(rows, job.limit)


def _load_done(store: RunStore, totals: Totals, *, retried: range) -> list[Figures]:
    """Count what an earlier command finished; returns what failed.

    retried: indices of which failed rollouts run again, and are neither counted nor returned.
    """
    failed, again = [], []
    for rollout in read_rollouts(store.directory):
        one = figures(rollout.index, rollout.samples)
        if one.error and one.index in retried:
            again.append(one.index)
            continue
        totals.add(one)
        if one.error:
            failed.append(one)
    store.reopen(again)
    return failed


async def _run_missing(
    job: Job, runtime: Runtime, store: RunStore, totals: Totals, progress: RunProgress
) -> None:
    """Run the rollouts that are not in the store yet."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    rows = islice(read_rows(job.data, job.keys), job.limit)
    samples = make_samples(rows, job.keys, samples_per_prompt=job.samples_per_prompt)
    missing = (sample for sample in samples if sample.index not in store.done)

    async def rollout(sample: Sample) -> Sequence[Sample]:
        return await run_rollout(runtime, sample, {}, evaluation=job.evaluation)

    async def on_done(sample: Sample, made: Sequence[Sample]) -> None:
        assert sample.index is not None
        await asyncio.to_thread(store.append, sample.index, made)
        one = figures(sample.index, made)
        totals.add(one)
        if one.error:
            progress.say(_failure(one))
        progress.update()

    async with runtime:
        info = await runtime.engine.model_info()
        store.pin(model=str(info.get("model_path")), tokenizer=str(runtime.tokenizer.name_or_path))
        progress.begin()
        await run_rollouts(missing, rollout, concurrency=job.config.concurrency, on_done=on_done)


def _identity(job: Job) -> dict[str, Any]:
    """What makes two commands the same run. The seed is told apart from the rest to be named in a refusal."""
    return {
        "data": data_digest(job.data),
        "configuration": job.config.fingerprint(exclude=[*_NOT_IDENTITY, "seed"]),
        "seed": job.config.seed,
        "samples_per_prompt": job.samples_per_prompt,
        "evaluation": job.evaluation,
        "keys": asdict(job.keys),
    }


def _facts(resume: str) -> dict[str, Any]:
    plugins = {
        found.dist.name: found.dist.version
        for found in metadata.entry_points(group=ENTRY_POINT_GROUP)
        if found.dist is not None
    }
    versions = {"rollhook": __version__, "python": platform.python_version(), **plugins}
    return {"command": resume, "versions": versions}


def _command_line() -> list[str]:
    """The command as the user gave it."""
    program = Path(sys.argv[0])
    name = ["python", "-m", "rollhook"] if program.name == "__main__.py" else [program.name]
    return [*name, *sys.argv[1:]]


def _failure(one: Figures) -> str:
    return f"rollout {one.index} FAILED: {cause(one.error or {})}"


def _print_summary(out: Path, totals: Totals, elapsed_s: float) -> None:
    lines = {
        "rollouts": totals.rollouts,
        "siblings": totals.siblings,
        "tokens sampled": totals.sampled,
        "tokens trained": totals.trained,
        "forks": counted(totals.forks),
        "kept": counted(totals.kept),
        "mean reward": number(totals.mean_reward),
        "truncated": counted(totals.truncations),
        "failed": counted(totals.failures),
        **({"unscored": totals.unscored} if totals.unscored else {}),
        "wall time": f"{elapsed_s:.1f} s",
        "recorded in": out,
    }
    for name, value in lines.items():
        click.echo(f"{name:<15}{value}")
