"""Options that several commands share, and what is made of them.

Invariant: a flag beats the configuration file, and a flag that was not given changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from rollhook.check import Problem, check_rows
from rollhook.config import RunConfig
from rollhook.data import DataKeys, read_rows
from rollhook.plugins import Plugins
from rollhook.spec import Resolver

_F = TypeVar("_F", bound=Callable[..., Any])


def data_argument(command: _F) -> _F:
    """DATA, an existing file."""
    path = click.Path(exists=True, dir_okay=False, path_type=Path)
    return click.argument("data", metavar="DATA", type=path)(command)


def key_options(command: _F) -> _F:
    """`--input-key` and its like, passed as `input_key`, `label_key`, `metadata_key`, `tool_key`."""
    for name, default, holds in (
        ("tool", "tools", "tool schemas, kept in the metadata for plugins"),
        ("metadata", "metadata", "the metadata"),
        ("label", "label", "the label"),
        ("input", "prompt", "the prompt: text, or a list of messages"),
    ):
        option = click.option(
            f"--{name}-key", default=default, show_default=True, help=f"The key of a row that holds {holds}."
        )
        command = option(command)
    return command


def plugin_options(command: _F) -> _F:
    """`--plugin MODULE` and `--block NAME`, each as often as wanted."""
    command = click.option(
        "--block", multiple=True, metavar="NAME", help="A plugin that is never imported; repeatable."
    )(command)
    return click.option(
        "--plugin",
        multiple=True,
        metavar="[NAME=]MODULE",
        help="A module with hooks that is not packaged; repeatable. The working directory is searched too.",
    )(command)


def config_option(command: _F) -> _F:
    """`--config FILE`, the run configuration."""
    path = click.Path(exists=True, dir_okay=False, path_type=Path)
    return click.option("--config", "config_file", type=path, help="The run configuration, in YAML.")(command)


def load_config(path: Path | None, *, block: Sequence[str], plugin: Sequence[str], **flags: Any) -> RunConfig:
    """The configuration in `path`, or the default one, under the flags that are not None.

    block, plugin: added to the configuration's `block` and `modules`.
    """
    config = RunConfig.load(path) if path else RunConfig()
    given = {name: value for name, value in flags.items() if value is not None}
    added = {"block": [*config.block, *block], "modules": [*config.modules, *plugin]}
    return RunConfig.of({**config.model_dump(exclude_unset=True), **added, **given}, where="the command line")


def make_plugins(config: RunConfig) -> tuple[Plugins, RunConfig]:
    """The run's plugins, and the configuration with those of its `modules` among its `plugins`."""
    if config.modules and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does; a console script starts without it
    plugins = Plugins(block=config.block)
    names = [plugins.add_module(module) for module in config.modules]
    plugins.check_block()
    return plugins, config.model_copy(update={"plugins": (*config.plugins, *names)})


def check_data(path: Path, keys: DataKeys, resolver: Resolver) -> tuple[int, list[Problem]]:
    """How many rows a data file has, and everything wrong with them; one row in memory at a time."""
    count, problems = 0, []
    for row in read_rows(path, keys):
        count += 1
        problems += check_rows([row], resolver, metadata_key=keys.metadata)
    return count, problems
