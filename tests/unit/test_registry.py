"""The name table: what a name means, and what is said of one that means nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rollhook import builtin
from rollhook.errors import PluginBroken, PluginConflict, PluginNotFound
from rollhook.hookspecs import (
    EnvironmentSpec,
    ItemSpec,
    SandboxSpec,
    ToolSpec,
    TopologySpec,
    VerifierSpec,
    hookimpl,
)
from rollhook.plugins import Plugins, builtin_plugin
from rollhook.registry import Kind, Registry
from rollhook.version import __version__

SPECS: dict[str, type[ItemSpec[Any]]] = {
    "tools": ToolSpec,
    "environments": EnvironmentSpec,
    "verifiers": VerifierSpec,
    "topologies": TopologySpec,
    "sandboxes": SandboxSpec,
}


def nothing(config: Any, rollout: Any) -> Any:
    raise AssertionError("no test here runs a rollout")


def provide(plugins: Plugins, name: str, **items: list[str]) -> None:
    hooks = {}
    for kind, names in items.items():
        specs = [SPECS[kind](name=item, create=nothing) for item in names]
        hooks[f"rollhook_{kind}"] = _hook(specs)
    plugins.add(name, SimpleNamespace(**hooks))


def _hook(specs: list[ItemSpec[Any]]) -> Any:
    return hookimpl(lambda: specs)


@pytest.fixture
def plugins() -> Plugins:
    plugins = Plugins(entry_points=[], block=["forbidden"])
    provide(plugins, "search-r1", environments=["search-r1", "wide"], verifiers=["em"])
    provide(plugins, "calculator", tools=["calculator"])
    provide(plugins, "debate", topologies=["debate", "panel"])
    provide(plugins, "games", environments=["chess", "go"])
    provide(plugins, "forbidden", tools=["forbidden"])
    plugins.add("broken", SimpleNamespace())
    return plugins


@pytest.fixture
def registry(plugins: Plugins) -> Registry:
    return Registry(plugins, builtin_plugin(builtin, __version__))


def error_of(registry: Registry, kind: Kind, name: str) -> str:
    with pytest.raises(PluginNotFound) as caught:
        registry.find(kind, name)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "name", "full"),
    [
        ("environment", "search-r1", "search-r1/search-r1"),  # named like the plugin
        ("verifier", "search-r1", "search-r1/em"),  # the only one of its kind
        ("environment", "search-r1/wide", "search-r1/wide"),
        ("topology", "single", "rollhook/single"),
        ("topology", "rollhook/single", "rollhook/single"),
        ("verifier", "number", "rollhook/number"),
        ("tool", "calculator", "calculator/calculator"),
    ],
)
def test_a_name_means_one_item(registry: Registry, kind: Kind, name: str, full: str) -> None:
    item = registry.find(kind, name)

    assert (item.kind, item.name, item.spec.name) == (kind, full, full.partition("/")[2])


def test_a_misspelt_plugin_is_told_with_the_nearest(registry: Registry) -> None:
    assert error_of(registry, "environment", "serch-r1") == (
        'no plugin named "serch-r1" is installed; did you mean "search-r1"?'
    )


def test_a_misspelt_builtin_is_told_with_the_nearest_of_its_kind(registry: Registry) -> None:
    assert 'did you mean "exact_match"?' in error_of(registry, "verifier", "exact-match")
    assert "did you mean" not in error_of(registry, "tool", "exact-match")


def test_a_misspelt_item_is_told_with_the_nearest(registry: Registry) -> None:
    assert error_of(registry, "environment", "search-r1/wyde") == (
        'plugin "search-r1" has no environment named "wyde"; did you mean "search-r1/wide"?'
    )


def test_an_item_of_another_kind_is_told_what_the_plugin_provides(registry: Registry) -> None:
    assert error_of(registry, "environment", "calculator") == (
        'plugin "calculator" has no environment; it provides tools (calculator)'
    )


def test_a_plugin_without_a_main_item_asks_which(registry: Registry) -> None:
    assert error_of(registry, "environment", "games") == (
        'plugin "games" has several environments; choose "games/chess", "games/go"'
    )


def test_a_blocked_plugin_is_told_as_blocked(registry: Registry) -> None:
    assert error_of(registry, "tool", "forbidden") == (
        'plugin "forbidden" is blocked by this run; take it off the block list to use it'
    )


def test_a_broken_plugin_stops_only_who_names_it(registry: Registry) -> None:
    with pytest.raises(PluginBroken, match="it has no hooks"):
        registry.find("tool", "broken")

    assert registry.find("tool", "calculator").name == "calculator/calculator"


@pytest.mark.parametrize(
    ("name", "kind", "full"),
    [
        ("search-r1", "environment", "search-r1/search-r1"),
        ("debate", "topology", "debate/debate"),
        ("debate/panel", "topology", "debate/panel"),
        ("search-r1/wide", "environment", "search-r1/wide"),
        ("single", "topology", "rollhook/single"),
        ("rollhook/single", "topology", "rollhook/single"),
    ],
)
def test_a_bare_string_means_an_environment_else_a_topology(
    registry: Registry, name: str, kind: Kind, full: str
) -> None:
    item = registry.main(name)

    assert (item.kind, item.name) == (kind, full)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "calculator",
            'plugin "calculator" has no environment and no topology; it provides tools (calculator)',
        ),
        (
            "search-r1/em",
            'plugin "search-r1" has no environment and no topology named "em"; '
            "it provides environments (search-r1, wide), verifiers (em)",
        ),
        ("sngle", 'no plugin named "sngle" is installed; did you mean "single"?'),
    ],
)
def test_a_bare_string_that_means_neither_is_told(registry: Registry, name: str, told: str) -> None:
    with pytest.raises(PluginNotFound) as caught:
        registry.main(name)

    assert str(caught.value) == told


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("search-r1", [("environment", "search-r1/search-r1"), ("verifier", "search-r1/em")]),
        ("search-r1/em", [("verifier", "search-r1/em")]),
        ("single", [("topology", "rollhook/single")]),
        ("rollhook/number", [("verifier", "rollhook/number")]),
    ],
)
def test_settings_are_for_every_item_the_name_can_mean(
    registry: Registry, name: str, found: list[tuple[str, str]]
) -> None:
    assert [(item.kind, item.name) for item in registry.items(name)] == found


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("search-r1/enn", 'plugin "search-r1" has nothing named "enn"'),
        ("games", 'plugin "games" has no main item; it provides environments (chess, go)'),
        ("nowhere", 'no plugin named "nowhere" is installed'),
        ("nowhere/x", 'no plugin named "nowhere" is installed'),
    ],
)
def test_settings_for_nothing_are_told(registry: Registry, name: str, told: str) -> None:
    with pytest.raises(PluginNotFound) as caught:
        registry.items(name)

    assert str(caught.value).startswith(told)


def test_a_plugin_that_hides_a_builtin_of_a_kind_it_provides_is_a_conflict(plugins: Plugins) -> None:
    provide(plugins, "single", topologies=["other"])
    provide(plugins, "number", tools=["number"])  # a built-in verifier: another kind, no conflict
    registry = Registry(plugins, builtin_plugin(builtin, __version__))

    with pytest.raises(PluginConflict, match='"single" already names one of the built-in topologies'):
        registry.find("topology", "single/other")
    assert registry.find("tool", "number").name == "number/number"


def test_a_lookup_loads_only_the_plugin_it_names() -> None:
    loaded = []

    def hooks(name: str) -> Any:
        @hookimpl
        def rollhook_tools() -> list[ToolSpec]:
            loaded.append(name)
            return [ToolSpec(name=name, create=nothing)]

        return SimpleNamespace(rollhook_tools=rollhook_tools)

    plugins = Plugins(entry_points=[])
    for name in ("one", "two", "three"):
        plugins.add(name, hooks(name))
    registry = Registry(plugins, builtin_plugin(builtin, __version__))
    registry.find("tool", "two")
    registry.find("tool", "two")
    with pytest.raises(PluginNotFound):
        registry.find("tool", "fuor")

    assert loaded == ["two"]
