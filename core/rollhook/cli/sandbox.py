"""`rollhook sandbox`."""

from __future__ import annotations

import click


@click.group("sandbox", short_help="End sandboxes that were left behind.")
def command() -> None:
    """Look after the sandboxes of this machine."""


@command.command("gc")
@click.option("--owner", metavar="PID", help="End those of this process, though it lives; also as PID/START.")
@click.option("--dry-run", is_flag=True, help="Say what would be ended, and end nothing.")
def collect(owner: str | None, dry_run: bool) -> None:
    """End sandboxes whose owner has died."""
    from rollhook.errors import ConfigError
    from rollhook.sandbox import end_leftovers, find_leftovers

    found = find_leftovers(owner)
    if not dry_run:
        try:
            end_leftovers(found)
        except (PermissionError, TimeoutError) as error:
            raise ConfigError(
                f"sandbox gc: {error}; run it as the user that started the sandboxes"
            ) from error
    verb = "would end" if dry_run else "ended"
    for process in found:
        click.echo(f"{verb} process {process.pid} of owner {process.owner}")
    click.echo(f"{verb} {len(found)} processes of sandboxes")
