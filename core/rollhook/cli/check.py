"""`rollhook check`."""

from __future__ import annotations

from pathlib import Path

import click

from rollhook.cli.options import (
    check_data,
    config_option,
    data_argument,
    key_options,
    load_config,
    make_plugins,
    plugin_options,
)
from rollhook.data import DataKeys
from rollhook.runtime import Runtime


@click.command("check", short_help="Check every row of a data file, before any token.")
@data_argument
@config_option
@plugin_options
@key_options
@click.pass_context
def command(
    ctx: click.Context,
    *,
    data: Path,
    config_file: Path | None,
    plugin: tuple[str, ...],
    block: tuple[str, ...],
    input_key: str,
    label_key: str,
    metadata_key: str,
    tool_key: str,
) -> None:
    """Check every row of DATA, a .jsonl or .parquet file, against the plugins it names.

    Prints FILE:LINE: key: message for each bad row and exits with 1 if there is any.
    """
    plugins, config = make_plugins(load_config(config_file, block=block, plugin=plugin))
    keys = DataKeys(input_key, label_key, metadata_key, tool_key)
    rows, problems = check_data(data, keys, Runtime(config, plugins=plugins).resolver)
    for problem in problems:
        click.echo(problem.show(data))
    if problems:
        click.echo(f"{rows} rows, {len(problems)} problems", err=True)
        ctx.exit(1)
    click.echo(f"{rows} rows, no problems")
