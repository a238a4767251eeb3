"""`rollhook serve`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import signal
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rollhook.embedded import EmbeddedEngine


@click.command("serve", short_help="Serve the embedded engine, or adapters for agents' own clients.")
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
@click.option(
    "--adapters",
    is_flag=True,
    help="Serve Anthropic's and OpenAI's protocols, in front of the embedded engine or of --engine.",
)
@click.option("--engine", metavar="URL", help="With --adapters: the SGLang server to use.")
@click.option("--tokenizer", help="With --engine: the served model's; by default what the engine names.")
@click.option("--tool-parser", help="With --adapters: the model family's, for example qwen25.")
@click.option("--reasoning-parser", help="With --adapters: the model family's, for example qwen3.")
def command(model: str | None, host: str, port: int, dtype: str, **options: Any) -> None:
    """Serve the embedded engine, in SGLang's wire form, until Ctrl-C.

    With --adapters, serve Anthropic's and OpenAI's protocols instead, for agents' own clients.
    """
    adapters = options.pop("adapters")
    if not adapters and any(options.values()):
        raise click.UsageError("--engine, --tokenizer and the parsers belong to --adapters")
    if options["engine"] is None:
        click.echo("loading the model ...", err=True)
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        if adapters:
            asyncio.run(_stoppable(_serve_adapters(model, host, port, dtype, **options)))
        else:
            asyncio.run(_stoppable(_serve_engine(model, host, port, dtype)))
    click.echo("stopped", err=True)


async def _stoppable(work: Awaitable[None]) -> None:
    """Run until done, Ctrl-C or SIGTERM."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await work


async def _serve_engine(model: str | None, host: str, port: int, dtype: str) -> None:
    from rollhook.embedded import serve_forever

    await serve_forever(model, host=host, port=port, dtype=dtype, ready=_say_ready)


def _say_ready(engine: EmbeddedEngine) -> None:
    click.echo(f"{engine.model_path} is served at {engine.url}; stop with Ctrl-C. Try:")
    click.echo(f"  {_example(engine.url)}")


def _example(url: str) -> str:
    body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 8}, "return_logprob": True}
    return f"curl -s {url}/generate -H 'Content-Type: application/json' -d '{json.dumps(body)}'"


async def _serve_adapters(
    model: str | None,
    host: str,
    port: int,
    dtype: str,
    *,
    engine: str | None,
    tokenizer: str | None,
    tool_parser: str | None,
    reasoning_parser: str | None,
) -> None:
    from rollhook.adapters import Adapter
    from rollhook.adapters.admin import add_admin_routes
    from rollhook.adapters.server import serve_forever
    from rollhook.embedded import EmbeddedEngine
    from rollhook.engine import SGLangClient
    from rollhook.served import load_tokenizer

    async with contextlib.AsyncExitStack() as stack:
        if engine is None:
            engine = (await stack.enter_async_context(EmbeddedEngine(model, dtype=dtype))).url
        client = await stack.enter_async_context(SGLangClient(engine))
        info = {} if tokenizer else await client.model_info()
        path = tokenizer or info.get("tokenizer_path") or info.get("model_path")
        adapter = Adapter(
            tokenizer=await asyncio.to_thread(load_tokenizer, str(path)),
            engine=client,
            tool_parser=tool_parser,
            reasoning_parser=reasoning_parser,
        )
        admin_key = "rha-" + secrets.token_urlsafe(24)
        add_admin_routes(adapter, admin_key)
        await serve_forever(adapter, host=host, port=port, ready=lambda url: _say_adapters(url, admin_key))


def _say_adapters(url: str, admin_key: str) -> None:
    click.echo(f"adapters are served at {url}; stop with Ctrl-C. Open a session for each rollout:")
    click.echo(f"  curl -s -X POST {url}/sessions -H 'Authorization: Bearer {admin_key}'")
