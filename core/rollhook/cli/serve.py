"""`rollhook serve`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rollhook.embedded import EmbeddedEngine


@click.command("serve", short_help="Serve the embedded engine.")
@click.option("--model", help="A model directory or hub name; by default the small one that is built in.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", default=30000, show_default=True, type=click.IntRange(0, 65535), help="0: any free one."
)
@click.option(
    "--dtype",
    default="float32",
    show_default=True,
    type=click.Choice(["float32", "bfloat16"]),
    help="The type of the weights.",
)
def command(model: str | None, host: str, port: int, dtype: str) -> None:
    """Serve the embedded engine, in SGLang's wire form, until Ctrl-C."""
    click.echo("loading the model ...", err=True)
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(_serve(model, host, port, dtype))
    click.echo("stopped", err=True)


async def _serve(model: str | None, host: str, port: int, dtype: str) -> None:
    from rollhook.embedded import serve_forever

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await serve_forever(model, host=host, port=port, dtype=dtype, ready=_say_ready)


def _say_ready(engine: EmbeddedEngine) -> None:
    click.echo(f"{engine.model_path} is served at {engine.url}; stop with Ctrl-C. Try:")
    click.echo(f"  {_example(engine.url)}")


def _example(url: str) -> str:
    body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 8}, "return_logprob": True}
    return f"curl -s {url}/generate -H 'Content-Type: application/json' -d '{json.dumps(body)}'"
