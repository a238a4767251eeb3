"""`rollhook export`."""

from __future__ import annotations

from pathlib import Path

import click

from rollhook.export import export_run


@click.command("export", short_help="Write a run's samples to one training file.")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
def command(directory: Path, out: Path) -> None:
    """Write the samples of the run in DIR to OUT, a .jsonl or .parquet file.

    One row for each Sample, under slime's field names, ordered by index and segment. In Parquet, metadata and
    any prompt, label or reward that is not a scalar are JSON text.
    """
    click.echo(f"{export_run(directory, out)} samples written to {out}")
