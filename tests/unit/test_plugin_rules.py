"""Plugin rules: each one broken, and what the error says."""

from __future__ import annotations

import math
import sys
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import BaseModel, RootModel

from rollhook.errors import PluginBroken
from rollhook.hookspecs import (
    EnvironmentSpec,
    NoConfig,
    ToolSpec,
    TopologySpec,
    VerifierSpec,
    hookimpl,
)
from tests.unit.plugin_sets import nothing, plugins_with, returns, tools


def error_of(**hooks: Any) -> str:
    with pytest.raises(PluginBroken) as caught:
        plugins_with("dice", **hooks).load("dice")
    return str(caught.value)


Untyped: Any = ToolSpec
"""ToolSpec as an author without a type checker may call it."""


def test_a_hook_that_raises_is_named_with_its_error() -> None:
    @hookimpl
    def rollhook_tools() -> list[ToolSpec]:
        raise KeyError("sides")

    assert error_of(rollhook_tools=rollhook_tools) == (
        "plugin \"dice\" ((not packaged)): rollhook_tools raised KeyError: 'sides'"
    )


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("rollhook_tool", "rollhook_tool is not a hook; did you mean rollhook_tools?"),
        ("tools", "tools is not a hook; did you mean rollhook_tools?"),
        ("rollhook_environment", "rollhook_environment is not a hook; did you mean rollhook_environments?"),
    ],
)
def test_a_misspelt_hook_is_told_with_the_right_name(name: str, told: str) -> None:
    assert told in error_of(**{name: tools("dice")})


def test_a_function_named_like_a_hook_without_the_mark_is_told() -> None:
    def rollhook_tools() -> list[ToolSpec]:
        return []

    assert "rollhook_tools is not marked; write @hookimpl" in error_of(rollhook_tools=rollhook_tools)


def test_a_plain_function_with_the_prefix_that_is_no_hook_is_told() -> None:
    def rollhook_toolz() -> list[ToolSpec]:
        return []

    told = error_of(rollhook_toolz=rollhook_toolz, rollhook_tools=tools())
    assert "rollhook_toolz is not a hook; did you mean rollhook_tools?" in told


def test_a_list_in_place_of_a_hook_is_told() -> None:
    assert "rollhook_tools is a list; a hook is a plain function" in error_of(rollhook_tools=[])


def test_a_module_named_with_the_prefix_is_no_hook() -> None:
    plugins = plugins_with("dice", rollhook_tools=tools("dice"), rollhook_dice=sys)

    assert list(plugins.load("dice").tools) == ["dice"]


@pytest.mark.parametrize(
    ("implementation", "signature"),
    [
        (lambda config: [], "(config)"),
        (lambda config=None: [], "(config=None)"),
        (lambda *, config: [], "(*, config)"),
        (lambda *args: [], "(*args)"),
        (lambda **options: [], "(**options)"),
    ],
)
def test_a_hook_with_any_argument_is_refused(implementation: Any, signature: str) -> None:
    told = error_of(rollhook_tools=hookimpl(implementation))

    assert f"rollhook_tools{signature} takes arguments; a hook takes none" in told


def test_an_async_hook_is_refused() -> None:
    @hookimpl
    async def rollhook_tools() -> list[ToolSpec]:
        return []

    assert "rollhook_tools is an async def; a hook is a plain function" in error_of(
        rollhook_tools=rollhook_tools
    )


def test_a_hook_that_returns_a_coroutine_is_refused_without_a_warning() -> None:
    async def later() -> list[ToolSpec]:
        return []

    @hookimpl
    def rollhook_tools() -> Any:
        return later()

    told = error_of(rollhook_tools=rollhook_tools)

    assert "rollhook_tools returned a coroutine; the rule is a list of ToolSpec" in told


def test_a_generator_is_refused() -> None:
    @hookimpl
    def rollhook_tools() -> Any:
        yield ToolSpec(name="dice", create=nothing)

    assert "rollhook_tools is a generator" in error_of(rollhook_tools=rollhook_tools)


@pytest.mark.parametrize("option", ["hookwrapper", "wrapper", "tryfirst", "trylast", "optionalhook"])
def test_options_of_hookimpl_are_refused(option: str) -> None:
    marker: Any = hookimpl
    mark = marker(**{option: True})

    def rollhook_tools() -> Any:
        yield

    told = error_of(rollhook_tools=mark(rollhook_tools))

    assert f"rollhook_tools is marked @hookimpl({option}); the rule is plain @hookimpl" in told


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (None, "returned None; the rule is a list of ToolSpec; [] where there is nothing"),
        ((), "returned a tuple; the rule is a list of ToolSpec"),
        (["dice"], "returned a str as item 0; the rule is a list of ToolSpec"),
        ([ToolSpec], "returned the class ToolSpec as item 0"),
        ([VerifierSpec(name="dice", create=nothing)], "returned a VerifierSpec as item 0"),
        ([ToolSpec(name="dice", create=nothing)] * 2, 'returned two items named "dice"'),
        ([ToolSpec(name="Dice", create=nothing)], 'item "Dice": a name must match [a-z0-9][a-z0-9_-]*'),
        ([ToolSpec(name="a/b", create=nothing)], 'item "a/b": a name must match'),
        ([ToolSpec(name="", create=nothing)], 'item "": a name must match'),
        ([Untyped(name=7, create=nothing)], 'item "7": a name must match'),
        ([Untyped(name="dice", create=None)], "create is None; it must be callable as (resource, rollout)"),
        (
            [Untyped(name="dice", create=nothing, open=3)],
            "open is a int; it must be callable as (config, run)",
        ),
        (
            [Untyped(name="dice", create=nothing, config=dict)],
            "config is the class dict; the rule is a pydantic",
        ),
        ([Untyped(name="dice", create=nothing, config=NoConfig())], "config is a NoConfig; the rule is"),
        (
            [Untyped(name="dice", create=nothing, config=RootModel[int])],
            "the rule is a pydantic model class",
        ),
    ],
)
def test_a_wrong_answer_is_told(answer: Any, told: str) -> None:
    assert told in error_of(rollhook_tools=returns(answer))


def test_an_async_create_is_refused() -> None:
    async def create(config: Any, rollout: Any) -> Any: ...

    told = error_of(rollhook_tools=returns([Untyped(name="dice", create=create)]))

    assert 'rollhook_tools item "dice": create is an async def; it must be callable plainly' in told


def test_an_open_that_is_no_context_manager_is_told_what_is_missing() -> None:
    async def opener(config: Any, run: Any) -> Any:
        yield None

    bare = Untyped(name="dice", create=nothing, open=opener)
    right = Untyped(name="dice", create=nothing, open=asynccontextmanager(opener))

    assert "open is an async def; it must be callable plainly; decorate it with contextlib" in error_of(
        rollhook_tools=returns([bare])
    )
    assert plugins_with("dice", rollhook_tools=returns([right])).load("dice").tools["dice"] is right


def test_environment_defaults_and_topology_credit_are_checked() -> None:
    wrong: Any = {}
    environment = EnvironmentSpec(name="e", create=nothing, defaults=wrong)
    wrong = "shared"
    topology = TopologySpec(name="t", create=nothing, credit=wrong)

    assert "defaults is a dict; the rule is rollhook's Defaults" in error_of(
        rollhook_environments=returns([environment])
    )
    known = "broadcast, split, split_segments, roles, zero_sum"
    assert f"credit is 'shared'; the rule is one of {known}" in error_of(
        rollhook_topologies=returns([topology])
    )


@pytest.mark.parametrize("weights", [{"judge": -1.0}, {"judge": math.inf}, {"judge": "much"}, {1: 1.0}, 2.0])
def test_role_weights_are_finite_numbers_by_role(weights: Any) -> None:
    topology = TopologySpec(name="t", create=nothing, credit="roles", role_weights=weights)

    assert f"role_weights is {weights!r}; the rule is finite numbers of at least 0 by role" in error_of(
        rollhook_topologies=returns([topology])
    )


def test_an_async_event_sink_is_refused() -> None:
    async def sink(event: object) -> None: ...

    assert "rollhook_events item 0 is an async def" in error_of(rollhook_events=returns([sink]))
    assert "rollhook_normalizers item 0 is a int; it must be callable as (message)" in error_of(
        rollhook_normalizers=returns([1])
    )


def test_callables_that_cannot_take_their_arguments_are_told_before_any_rollout() -> None:
    def too_few(config: Any) -> Any: ...

    class AsyncSink:
        async def __call__(self, event: object) -> None: ...

    create = returns([Untyped(name="dice", create=too_few)])
    opener = returns([Untyped(name="dice", create=nothing, open=lambda: None)])

    assert (
        "item \"dice\": create takes (config: 'Any') -> 'Any'; it must be callable as (resource, rollout)"
        in (error_of(rollhook_tools=create))
    )
    assert 'item "dice": open takes (); it must be callable as (config, run)' in error_of(
        rollhook_tools=opener
    )
    assert "rollhook_events item 0 takes (); it must be callable as (event)" in error_of(
        rollhook_events=returns([lambda: None])
    )
    assert "rollhook_events item 0 is an async def" in error_of(rollhook_events=returns([AsyncSink()]))


def test_a_config_field_called_name_is_refused_as_rows_cannot_set_it() -> None:
    class Config(BaseModel):
        name: str = ""

    told = error_of(rollhook_tools=returns([ToolSpec(name="dice", create=nothing, config=Config)]))

    assert 'config has a field "name", which in a row is the name of the item; rename it' in told


def test_a_namespace_without_hooks_is_told() -> None:
    assert "it has no hooks; a plugin implements at least one of rollhook_tools" in error_of()


def test_a_config_model_is_any_pydantic_model() -> None:
    class Config(BaseModel):
        sides: int = 6

    spec = ToolSpec(name="dice", create=nothing, config=Config)

    assert plugins_with("dice", rollhook_tools=returns([spec])).load("dice").tools == {"dice": spec}
