"""`rollhook plugins`."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from rollhook import builtin
from rollhook.cli.options import load_config, make_plugins, plugin_options
from rollhook.cli.terminal import make_console
from rollhook.plugins import ITEM_LISTS, builtin_plugin
from rollhook.version import __version__


@click.command("plugins", short_help="List the installed plugins.")
@plugin_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list instead of a table.")
@click.pass_context
def command(ctx: click.Context, *, block: tuple[str, ...], plugin: tuple[str, ...], as_json: bool) -> None:
    """List the installed plugins and what they provide.

    Exits with 1 if any of them is broken. Blocked ones are named on stderr only.
    """
    plugins, config = make_plugins(load_config(None, block=block, plugin=plugin))
    rows = plugins.describe(builtin_plugin(builtin, __version__))
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        _print_table(rows)
    for name in config.block:
        click.echo(f"blocked: {name}", err=True)
    if any(row["status"] != "ok" for row in rows):
        ctx.exit(1)


def _print_table(rows: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("plugin", "distribution", "status", "provides"):
        table.add_column(name)
    for row in rows:
        ok = row["status"] == "ok"
        table.add_row(
            Text(row["name"]),
            Text(f"{row['distribution']} {row['version']}".strip()),
            Text(row["status"], style="green" if ok else "red"),
            Text(_provides(row) if ok else row["error"]),
        )
    make_console().print(table)


def _provides(row: dict[str, Any]) -> str:
    return "; ".join(f"{kind} {', '.join(row[kind])}" for kind in ITEM_LISTS if row[kind])
