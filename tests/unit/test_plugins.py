"""Plugins: found, loaded and described; and nothing is imported before it is named."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollhook import builtin
from rollhook.errors import ConfigError, PluginBroken, PluginConflict, PluginNotFound
from rollhook.hookspecs import (
    NoConfig,
    ToolSpec,
    TopologySpec,
    hookimpl,
)
from rollhook.plugins import Plugins, builtin_plugin
from rollhook.version import __version__
from tests.unit.plugin_sets import nothing, plugins_with, returns, tools


class Installed(Distribution):
    """A distribution as importlib.metadata shows one, without files."""

    def __init__(self, name: str, version: str = "1.0", requires: tuple[str, ...] = ()) -> None:
        self._text = f"Name: {name}\nVersion: {version}\n" + "".join(
            f"Requires-Dist: {r}\n" for r in requires
        )

    def read_text(self, filename: str) -> str | None:
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        raise FileNotFoundError(path)

    def offers(self, name: str, value: str) -> EntryPoint:
        point = EntryPoint(name, value, "rollhook.plugins")
        vars(point).update(dist=self)
        return point


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], str]]:
    """Writes a module that can be imported in this test only."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def write(name: str, source: str) -> str:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        return name

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


DICE = """
    from rollhook import ToolSpec, hookimpl

    @hookimpl
    def rollhook_tools():
        return [ToolSpec(name="dice", create=lambda config, rollout: None)]
"""


def test_a_plugin_holds_what_its_hooks_returned_by_name() -> None:
    def sink(event: object) -> None: ...

    plugin = plugins_with("dice", rollhook_tools=tools("d6", "d20"), rollhook_events=returns([sink])).load(
        "dice"
    )

    assert list(plugin.tools) == ["d6", "d20"]
    assert plugin.tools["d6"].config is NoConfig
    assert plugin.event_sinks == (sink,)
    assert [plugin.environments, plugin.verifiers, plugin.topologies, plugin.sandboxes] == [{}, {}, {}, {}]
    assert (plugin.name, plugin.distribution, plugin.version) == ("dice", "(not packaged)", "")


def test_a_plugin_is_read_once() -> None:
    calls = []

    @hookimpl
    def rollhook_tools() -> list[ToolSpec]:
        calls.append(1)
        return []

    plugins = plugins_with("dice", rollhook_tools=rollhook_tools)

    assert plugins.load("dice") is plugins.load("dice")
    assert calls == [1]


def test_one_plugins_hooks_are_not_called_for_another() -> None:
    plugins = Plugins(entry_points=[])
    plugins.add("one", SimpleNamespace(rollhook_tools=tools("a")))
    plugins.add("two", SimpleNamespace(rollhook_tools=tools("b")))

    assert [list(plugins.load(name).tools) for name in ("one", "two")] == [["a"], ["b"]]


def test_methods_of_an_instance_are_hooks() -> None:
    class Hooks:
        @hookimpl
        def rollhook_tools(self) -> list[ToolSpec]:
            return [ToolSpec(name="dice", create=nothing)]

    plugins = Plugins(entry_points=[])
    plugins.add("dice", Hooks())

    assert list(plugins.load("dice").tools) == ["dice"]


def test_a_plugin_that_broke_can_be_loaded_once_repaired() -> None:
    answer: list[Any] = ["wrong"]
    plugins = plugins_with("dice", rollhook_tools=hookimpl(lambda: answer))
    with pytest.raises(PluginBroken):
        plugins.load("dice")

    answer[:] = [ToolSpec(name="dice", create=nothing)]

    assert list(plugins.load("dice").tools) == ["dice"]


def test_a_broken_plugin_does_not_hinder_the_others() -> None:
    plugins = plugins_with("broken", rollhook_tools=returns(None))
    plugins.add("dice", SimpleNamespace(rollhook_tools=tools("dice")))
    with pytest.raises(PluginBroken):
        plugins.load("broken")

    assert list(plugins.load("dice").tools) == ["dice"]


def test_an_unknown_plugin_is_told_with_the_nearest_name() -> None:
    with pytest.raises(PluginNotFound) as caught:
        plugins_with("search-x9", rollhook_tools=tools()).load("serch-x9")

    assert str(caught.value) == 'no plugin named "serch-x9" is installed; did you mean "search-x9"?'


def test_only_the_projects_own_plugins_come_with_an_install_line() -> None:
    plugins = Plugins(entry_points=[])

    with pytest.raises(PluginNotFound) as own:
        plugins.load("debate")
    with pytest.raises(PluginNotFound) as foreign:
        plugins.load("rm-rf")

    assert str(own.value) == 'no plugin named "debate" is installed; try: pip install rollhook-debate'
    assert str(foreign.value) == 'no plugin named "rm-rf" is installed'


def test_discovery_imports_nothing(module: Callable[[str, str], str]) -> None:
    module("never_imported", "raise AssertionError")
    plugins = Plugins(entry_points=[Installed("rollhook-dice").offers("dice", "never_imported")])

    assert plugins.names() == ["dice"]
    assert "never_imported" not in sys.modules


def test_loading_one_plugin_imports_only_that(module: Callable[[str, str], str]) -> None:
    module("dice_hooks", DICE)
    module("never_imported", "raise AssertionError")
    plugins = Plugins(
        entry_points=[
            Installed("rollhook-dice", "0.3").offers("dice", "dice_hooks"),
            Installed("rollhook-other").offers("other", "never_imported"),
        ]
    )
    plugin = plugins.load("dice")

    assert (plugin.distribution, plugin.version, list(plugin.tools)) == ("rollhook-dice", "0.3", ["dice"])
    assert "never_imported" not in sys.modules


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (
            "import no_such_module",
            "importing hooks_x raised ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("raise SystemExit(3)", "importing hooks_x raised SystemExit: 3"),
        ("x = (", "importing hooks_x raised SyntaxError: '(' was never closed"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told(
    source: str, told: str, module: Callable[[str, str], str]
) -> None:
    module("hooks_x", source)
    plugins = Plugins(entry_points=[Installed("rollhook-dice", "0.3").offers("dice", "hooks_x")])

    with pytest.raises(PluginBroken) as caught:
        plugins.load("dice")

    assert str(caught.value).startswith(f'plugin "dice" (rollhook-dice 0.3): {told}')


def test_two_distributions_with_one_name_are_both_named_and_the_rest_works(
    module: Callable[[str, str], str],
) -> None:
    module("dice_hooks", DICE)
    plugins = Plugins(
        entry_points=[
            Installed("dice-a", "1.0").offers("dice", "a.hooks"),
            Installed("dice-b", "2.0").offers("dice", "b.hooks"),
            Installed("dice-c").offers("other", "dice_hooks"),
        ]
    )
    with pytest.raises(PluginConflict) as caught:
        plugins.load("dice")

    assert str(caught.value) == (
        'plugin "dice" has more than one owner: dice-a 1.0 (a.hooks) and dice-b 2.0 (b.hooks); '
        "uninstall all but one"
    )
    assert list(plugins.load("other").tools) == ["dice"]


def test_one_distribution_seen_twice_is_one_plugin(module: Callable[[str, str], str]) -> None:
    module("dice_hooks", DICE)
    twice = [
        Installed("rollhook-dice").offers("dice", "dice_hooks"),
        Installed("Rollhook_Dice").offers("dice", "dice_hooks"),
    ]

    assert list(Plugins(entry_points=twice).load("dice").tools) == ["dice"]


def test_a_blocked_plugin_is_never_imported(module: Callable[[str, str], str]) -> None:
    module("never_imported", "raise AssertionError")
    plugins = Plugins(
        entry_points=[Installed("rollhook-dice").offers("dice", "never_imported")], block=["dice"]
    )

    with pytest.raises(PluginNotFound, match='plugin "dice" is blocked by this run'):
        plugins.load("dice")
    assert plugins.names() == []
    assert plugins.describe() == []
    assert "never_imported" not in sys.modules


def test_the_builtins_cannot_be_blocked() -> None:
    with pytest.raises(ConfigError, match='block: "rollhook" holds the built-ins'):
        Plugins(entry_points=[], block=["rollhook"])


@pytest.mark.parametrize(
    ("requirement", "fits"),
    [
        ("rollhook", True),
        ("rollhook>=0.1,<2", True),
        ("rollhook>=9", False),
        ("Roll-Hook>=9", True),  # another distribution
        ("rollhook>=9; extra == 'test'", True),
        ("rollhook>=9; python_version < '3'", True),
        ("numpy>=99", True),
    ],
)
def test_the_declared_core_range_is_held_against_the_core(
    requirement: str, fits: bool, module: Callable[[str, str], str]
) -> None:
    module("dice_hooks", DICE)
    point = Installed("rollhook-dice", "0.3", (requirement,)).offers("dice", "dice_hooks")
    plugins = Plugins(entry_points=[point], core_version="1.4.0")

    if fits:
        assert list(plugins.load("dice").tools) == ["dice"]
        return
    with pytest.raises(PluginBroken, match=r"it needs rollhook >=9, and rollhook 1\.4\.0 is running"):
        plugins.load("dice")
    assert "dice_hooks" not in sys.modules


def test_a_prerelease_core_satisfies_the_range_it_lies_in(module: Callable[[str, str], str]) -> None:
    module("dice_hooks", DICE)
    point = Installed("rollhook-dice", "0.3", ("rollhook>=0.1",)).offers("dice", "dice_hooks")

    assert Plugins(entry_points=[point], core_version="0.2.0.dev1").load("dice").name == "dice"


@pytest.mark.parametrize("name", ["rollhook", "Dice", "a/b", "-dice", ""])
def test_a_name_that_no_plugin_may_have_is_refused(name: str) -> None:
    plugins = Plugins(entry_points=[Installed("rollhook-dice").offers(name, "never_imported")])

    with pytest.raises(ConfigError):
        plugins.add(name, SimpleNamespace())
    with pytest.raises(PluginBroken, match=r"rollhook-dice 1\.0"):
        plugins.load(name)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("my_tools", "my-tools"),
        ("pkg.my_tools", "my-tools"),
        ("pkg.my_tools.hooks", "my-tools"),
        ("hooks", "hooks"),
        ("dice=pkg.other", "dice"),
    ],
)
def test_a_modules_plugin_is_named_by_its_last_part(module: str, name: str) -> None:
    plugins = Plugins(entry_points=[])

    assert plugins.add_module(module) == name
    assert plugins.names() == [name]


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'"my-tools\.py" is not MODULE or NAME=MODULE'):
        Plugins(entry_points=[]).add_module("my-tools.py")


def test_a_module_that_takes_an_installed_name_is_a_conflict(module: Callable[[str, str], str]) -> None:
    plugins = Plugins(entry_points=[Installed("rollhook-dice").offers("dice", "rollhook_dice.hooks")])
    plugins.add_module("dice=mine")

    with pytest.raises(PluginConflict) as caught:
        plugins.load("dice")

    assert "rollhook-dice 1.0 (rollhook_dice.hooks) and (not packaged) (mine)" in str(caught.value)


def test_adding_a_module_twice_is_adding_it_once(module: Callable[[str, str], str]) -> None:
    module("dice", DICE)
    plugins = Plugins(entry_points=[])
    plugins.add_module("dice")
    plugins.add_module("dice")

    assert list(plugins.load("dice").tools) == ["dice"]


def test_describe_lists_the_builtins_first_and_broken_plugins_with_their_error() -> None:
    plugins = plugins_with("broken", rollhook_tools=returns(None))
    plugins.add("dice", SimpleNamespace(rollhook_tools=tools("d6", "d20")))

    builtins, broken, dice = plugins.describe(builtin_plugin(builtin, __version__))

    assert (builtins["name"], builtins["version"], builtins["status"]) == ("rollhook", __version__, "ok")
    assert builtins["topologies"] == ["single"]
    assert (broken["status"], broken["tools"]) == ("broken", [])
    assert "rollhook_tools returned None" in broken["error"]
    assert dice == {
        "name": "dice",
        "distribution": "(not packaged)",
        "version": "",
        "status": "ok",
        "error": None,
        "tools": ["d20", "d6"],
        "environments": [],
        "verifiers": [],
        "topologies": [],
        "sandboxes": [],
    }


def test_describe_lists_both_owners_of_one_name() -> None:
    points = [Installed("dice-a").offers("dice", "a"), Installed("dice-b").offers("dice", "b")]
    rows = Plugins(entry_points=points).describe()

    assert [(row["distribution"], row["status"]) for row in rows] == [
        ("dice-a", "broken"),
        ("dice-b", "broken"),
    ]


def test_a_plugin_that_would_hide_a_builtin_is_described_as_broken() -> None:
    plugins = plugins_with("single", rollhook_topologies=returns([TopologySpec(name="x", create=nothing)]))

    row = plugins.describe(builtin_plugin(builtin, __version__))[1]

    assert row["status"] == "broken"
    assert '"single" already names one of the built-in topologies' in row["error"]


def test_two_runs_do_not_share_plugins() -> None:
    plugins_with("dice", rollhook_tools=tools("dice")).load("dice")

    assert Plugins(entry_points=[]).names() == []
