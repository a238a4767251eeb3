"""Plugins made in a test, without a distribution."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from rollhook.hookspecs import ToolSpec, hookimpl
from rollhook.plugins import Plugins


def nothing(config: Any, rollout: Any) -> Any:
    raise AssertionError("no test here runs a rollout")


def tools(*names: str) -> Callable[[], list[ToolSpec]]:
    @hookimpl
    def rollhook_tools() -> list[ToolSpec]:
        return [ToolSpec(name=name, create=nothing) for name in names]

    return rollhook_tools


def plugins_with(name: str, **hooks: Any) -> Plugins:
    plugins = Plugins(entry_points=[])
    plugins.add(name, SimpleNamespace(**hooks))
    return plugins


def returns(answer: Any) -> Any:
    return hookimpl(lambda: answer)
