"""Four small plugins, and rows resolved against them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, field_validator, model_validator

from rollhook import builtin
from rollhook.config import RunConfig
from rollhook.errors import RowError
from rollhook.hookspecs import (
    Defaults,
    EnvironmentSpec,
    RunOnly,
    ToolSpec,
    TopologySpec,
    VerifierSpec,
    hookimpl,
)
from rollhook.plugins import Plugins, builtin_plugin
from rollhook.registry import Registry
from rollhook.spec import Choice, Resolved, Resolver
from rollhook.version import __version__


def nothing(config: Any, rollout: Any) -> Any:
    raise AssertionError("no test here runs a rollout")


class Search(BaseModel):
    topk: int = Field(3, ge=1, le=10)
    mode: Literal["dense", "sparse"] = "dense"
    index: str | None = None
    corpus_dir: Path | None = None
    secret_sauce: Annotated[int, RunOnly()] = 0


class Match(BaseModel):
    topk: int = 1
    partial: bool = False


class Picky(BaseModel):
    low: int = 1
    high: int = 5

    @field_validator("low")
    @classmethod
    def _even(cls, value: int) -> int:
        if value == 13:
            raise KeyError("thirteen")
        if value % 2 == 0:
            raise ValueError("must be odd")
        return value

    @model_validator(mode="after")
    def _ordered(self) -> Picky:
        if self.low > self.high:
            raise ValueError("low must not be above high")
        return self


class SearchPlugin:
    @hookimpl
    def rollhook_environments(self) -> list[EnvironmentSpec]:
        defaults = Defaults(
            verifier={"name": "search-r1/em", "partial": True},
            tools=["calculator"],
            limits={"max_turns": 4, "max_new_tokens": 500},
            stop=("</search>", "</answer>"),
        )
        return [
            EnvironmentSpec(name="search-r1", create=nothing, config=Search, defaults=defaults),
            EnvironmentSpec(name="plain", create=nothing),
            EnvironmentSpec(name="bad", create=nothing, defaults=Defaults(verifier="search-r1/enn")),
            EnvironmentSpec(name="worse", create=nothing, defaults=Defaults(limits={"max_turn": 1})),
        ]

    @hookimpl
    def rollhook_verifiers(self) -> list[VerifierSpec]:
        return [VerifierSpec(name="em", create=nothing, config=Match)]


class CalculatorPlugin:
    @hookimpl
    def rollhook_tools(self) -> list[ToolSpec]:
        return [
            ToolSpec(name="calculator", create=nothing),
            ToolSpec(name="picky", create=nothing, config=Picky),
        ]


class DebatePlugin:
    @hookimpl
    def rollhook_topologies(self) -> list[TopologySpec]:
        return [TopologySpec(name="debate", create=nothing)]


def resolver(**config: Any) -> Resolver:
    plugins = Plugins(entry_points=[])
    plugins.add("search-r1", SearchPlugin())
    plugins.add("calculator", CalculatorPlugin())
    plugins.add("debate", DebatePlugin())
    plugins.add("broken", SimpleNamespace())
    return Resolver(
        Registry(plugins, builtin_plugin(builtin, __version__)), RunConfig.of(config, where="test")
    )


def resolve(rollhook: Any, **config: Any) -> Resolved:
    return resolver(**config).resolve({"rollhook": rollhook})


def error_of(rollhook: Any, **config: Any) -> str:
    with pytest.raises(RowError) as caught:
        resolve(rollhook, **config)
    return str(caught.value)


def names(resolved: Resolved) -> dict[str, Any]:
    def name(choice: Choice | None) -> str | None:
        return None if choice is None else choice.name

    return {
        "environment": name(resolved.environment),
        "tools": [tool.name for tool in resolved.tools],
        "verifier": name(resolved.verifiers[0] if resolved.verifiers else None),
        "topology": name(resolved.topology),
    }
