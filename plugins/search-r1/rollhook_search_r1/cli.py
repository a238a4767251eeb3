"""`rollhook-search-r1`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from rollhook_search_r1.config import Source
from rollhook_search_r1.serve import make_app, serving
from rollhook_search_r1.sources import open_source


@click.group()
def main() -> None:
    """Search-R1's retrieval."""


@main.command("serve", short_help="Serve a corpus: POST /retrieve.")
@click.option("--corpus", required=True, type=click.Path(path_type=Path), help="JSON lines of passages.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0: any free one."
)
@click.option(
    "--topk",
    default=3,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Passages for a query of a request that names no number.",
)
@click.option(
    "--ranking",
    default="bm25",
    show_default=True,
    type=click.Choice(["bm25", "dense"]),
    help="By words, or by an embedding model.",
)
@click.option("--embedder", type=click.Path(path_type=Path), help="The embedding model's folder.")
@click.option("--device", default="cpu", show_default=True, help="Where the embedding model computes.")
@click.option("--cache", type=click.Path(path_type=Path), help="Where indexes are kept.")
def serve(host: str, port: int, topk: int, **settings: Any) -> None:
    """Serve a corpus of passages until Ctrl-C, in the form that Search-R1's clients expect."""
    try:
        source = Source(**settings)
    except ValidationError as error:
        raise click.UsageError("; ".join(fault["msg"] for fault in error.errors())) from error
    click.echo(f"opening the index of {source.corpus} ...", err=True)
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        try:
            asyncio.run(_serve(source, host, port, topk))
        except (ValueError, RuntimeError, OSError) as error:
            raise click.ClickException(str(error)) from error
    click.echo("stopped", err=True)


async def _serve(source: Source, host: str, port: int, topk: int) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with (
        open_source(source, connections=1) as batched,
        serving(make_app(batched, topk=topk), host, port) as url,
    ):
        click.echo(f"{source.corpus} is served at {url}; stop with Ctrl-C")
        await asyncio.Event().wait()
