"""The name table: which item a name in a row or in the run configuration means.

Invariant: a name means the same item in every row of a run, whatever was loaded before; looking one up
imports at most the one plugin it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rollhook.hookspecs import ItemSpec
from rollhook.names import BUILTIN_PLUGIN, UnknownName, did_you_mean, unknown_plugin
from rollhook.plugins import Plugin, Plugins, refuse_shadowing

Kind = Literal["environment", "tool", "verifier", "topology", "sandbox"]

PLURAL: Mapping[Kind, str] = {
    "environment": "environments",
    "tool": "tools",
    "verifier": "verifiers",
    "topology": "topologies",
    "sandbox": "sandboxes",
}


@dataclass(frozen=True)
class Item:
    """One item of a plugin. name: the full one, `plugin/item`; built-ins are `rollhook/item`."""

    kind: Kind
    name: str
    spec: ItemSpec[Any]


class Registry:
    """Finds items by name among the built-ins and the plugins, which load on first use."""

    def __init__(self, plugins: Plugins, builtins: Plugin) -> None:
        self._plugins = plugins
        self._builtins = builtins

    def find(self, kind: Kind, name: str) -> Item:
        """The item of `kind` that `name` means.

        A bare name means a built-in, else the plugin's main item: the one named like the plugin, else the
        only one of its kind. Raises PluginNotFound with the nearest right name, PluginBroken or
        PluginConflict.
        """
        owner, slash, item = name.partition("/")
        if slash:
            return _item(kind, self._plugin(owner), item)
        if name in _items(kind, self._builtins):
            return _item(kind, self._builtins, name)
        return _main_item(kind, self._named(name, kind))

    def main(self, name: str) -> Item:
        """The item a bare string in a row means: an environment, else a topology."""
        owner, slash, item = name.partition("/")
        kinds: tuple[Kind, ...] = ("environment", "topology")
        for kind in kinds:
            if not slash and name in _items(kind, self._builtins):
                return _item(kind, self._builtins, name)
        plugin = self._plugin(owner) if slash else self._named(name, *kinds)
        for kind in kinds:
            if item in _items(kind, plugin) or (not slash and _items(kind, plugin)):
                return _item(kind, plugin, item) if slash else _main_item(kind, plugin)
        named = f' named "{item}"' if slash else ""
        message = f'plugin "{owner}" has no environment and no topology{named}'
        raise UnknownName(message, f"it provides {_provided(plugin)}")

    def items(self, name: str) -> list[Item]:
        """Every item, of whatever kind, that `name` can mean: what `settings` under that name is for."""
        owner, slash, item = name.partition("/")
        found = [_item(kind, self._builtins, name) for kind in PLURAL if name in _items(kind, self._builtins)]
        if found:
            return found
        plugin = self._plugin(owner) if slash else self._named(name, *PLURAL)
        for kind in PLURAL:
            items = _items(kind, plugin)
            wanted = item if slash else _main_name(plugin, items)
            if wanted is not None and wanted in items:
                found.append(_item(kind, plugin, wanted))
        if not found:
            known = [f"{owner}/{other}" for kind in PLURAL for other in _items(kind, plugin)] if slash else []
            wrong = f'has nothing named "{item}"' if slash else "has no main item"
            hint = did_you_mean(name, known) or f"it provides {_provided(plugin)}"
            raise UnknownName(f'plugin "{owner}" {wrong}', hint)
        return found

    def _plugin(self, name: str) -> Plugin:
        """The plugin before a slash."""
        if name == BUILTIN_PLUGIN:
            return self._builtins
        plugin = self._plugins.load(name)
        refuse_shadowing(plugin, self._builtins)
        return plugin

    def _named(self, name: str, *kinds: Kind) -> Plugin:
        """The plugin that a bare name means; built-ins of `kinds` may have been meant too."""
        if name in self._plugins.names() or self._plugins.is_blocked(name):
            return self._plugin(name)
        builtin = [item for kind in kinds for item in _items(kind, self._builtins)]
        raise unknown_plugin(name, [*self._plugins.names(), *builtin])


def _items(kind: Kind, plugin: Plugin) -> Mapping[str, ItemSpec[Any]]:
    items: Mapping[str, ItemSpec[Any]] = getattr(plugin, PLURAL[kind])
    return items


def _item(kind: Kind, plugin: Plugin, name: str) -> Item:
    items = _items(kind, plugin)
    if name not in items:
        near = did_you_mean(f"{plugin.name}/{name}", [f"{plugin.name}/{item}" for item in items])
        hint = near or f"it provides {_provided(plugin)}"
        raise UnknownName(f'plugin "{plugin.name}" has no {kind} named "{name}"', hint)
    return Item(kind, f"{plugin.name}/{name}", items[name])


def _main_name(plugin: Plugin, items: Mapping[str, object]) -> str | None:
    if plugin.name in items:
        return plugin.name
    return next(iter(items)) if len(items) == 1 else None


def _main_item(kind: Kind, plugin: Plugin) -> Item:
    items = _items(kind, plugin)
    if not items:
        raise UnknownName(f'plugin "{plugin.name}" has no {kind}', f"it provides {_provided(plugin)}")
    name = _main_name(plugin, items)
    if name is None:
        choices = ", ".join(f'"{plugin.name}/{item}"' for item in sorted(items))
        raise UnknownName(f'plugin "{plugin.name}" has several {PLURAL[kind]}', f"choose {choices}")
    return _item(kind, plugin, name)


def _provided(plugin: Plugin) -> str:
    parts = [
        f"{PLURAL[kind]} ({', '.join(sorted(items))})" for kind in PLURAL if (items := _items(kind, plugin))
    ]
    return ", ".join(parts) or "no items"
