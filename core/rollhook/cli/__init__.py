"""The command `rollhook`: arguments and printing only.

Invariant: an error of ours is one sentence on standard error and exit code 2, never a traceback. A command's
module is imported when that command is asked for, so `rollhook --version` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from rollhook.errors import RollhookError
from rollhook.version import __version__

COMMANDS = ("check", "run", "verify", "export", "show", "plugins", "serve", "sandbox")


class Failure(click.ClickException):
    """One sentence for the user. Exit code 2."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        click.echo(f"rollhook: {self.message}", err=True)


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"rollhook.cli.{cmd_name}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RollhookError as error:
            raise Failure(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rollhook", message="%(prog)s %(version)s")
def main() -> None:
    """Turn agents' runs into token-exact training data."""
