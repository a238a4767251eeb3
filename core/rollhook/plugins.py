"""Plugins of one run: found, blocked, loaded, checked, described. The only user of pluggy's PluginManager.

Invariant: nothing of a plugin is imported before `load` names it (or `describe` lists all). A plugin that
breaks a rule leaves no trace: only runs that name it stop, and it can be loaded again once repaired.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pluggy
from packaging.requirements import InvalidRequirement
from packaging.utils import canonicalize_name

from rollhook.errors import ConfigError, PluginBroken, PluginConflict
from rollhook.hookspecs import (
    EnvironmentSpec,
    EventSink,
    HookSpecs,
    Normalizer,
    SandboxSpec,
    ToolSpec,
    TopologySpec,
    VerifierSpec,
)
from rollhook.names import BUILTIN_PLUGIN, ITEM_NAME, UnknownName, did_you_mean, unknown_plugin
from rollhook.plugin_rules import HOOKS, SPEC_OF_HOOK, RuleError, check_answer, check_core_range, check_hooks
from rollhook.version import __version__

ENTRY_POINT_GROUP = "rollhook.plugins"
NOT_PACKAGED = "(not packaged)"
ITEM_LISTS = tuple(hook.removeprefix("rollhook_") for hook in SPEC_OF_HOOK)
"""The fields of a Plugin that hold items: tools, environments, verifiers, topologies, sandboxes."""


@dataclass(frozen=True)
class Plugin:
    """A loaded plugin: what its hooks returned, items by their own name."""

    name: str
    distribution: str
    version: str
    tools: Mapping[str, ToolSpec]
    environments: Mapping[str, EnvironmentSpec]
    verifiers: Mapping[str, VerifierSpec]
    topologies: Mapping[str, TopologySpec]
    sandboxes: Mapping[str, SandboxSpec]
    event_sinks: tuple[EventSink, ...]
    normalizers: tuple[Normalizer, ...]


@dataclass(frozen=True)
class _Source:
    """Where a plugin comes from. value: its module, for messages. find: imports it."""

    name: str
    distribution: str
    version: str
    value: str
    find: Callable[[], object]
    requires: tuple[str, ...] = ()

    @property
    def owner(self) -> str:
        return f"{self.distribution} {self.version}".strip()

    def broken(self, why: str) -> PluginBroken:
        return PluginBroken(f'plugin "{self.name}" ({self.owner}): {why}')


class Plugins:
    """The plugins of one run.

    entry_points: None means those installed in the group `rollhook.plugins`.
    block: plugin names that are never imported. core_version: what plugins' declared ranges are held against.
    """

    def __init__(
        self,
        *,
        entry_points: Iterable[EntryPoint] | None = None,
        block: Collection[str] = (),
        core_version: str = __version__,
    ) -> None:
        self._block = frozenset(block)
        if BUILTIN_PLUGIN in self._block:
            raise ConfigError(f'block: "{BUILTIN_PLUGIN}" holds the built-ins and cannot be blocked')
        self._core_version = core_version
        self._loaded: dict[str, Plugin] = {}
        self._sources: dict[str, list[_Source]] = {}
        if entry_points is None:
            entry_points = metadata.entry_points(group=ENTRY_POINT_GROUP)
        for source in sorted(map(_packaged, entry_points), key=lambda source: (source.name, source.owner)):
            self._note(source)

    def add_module(self, module: str) -> str:
        """Add hooks that are not packaged, as `MODULE` or `NAME=MODULE`; returns the plugin's name.

        The name is the module's last part, without a trailing `hooks`: `my_tools.hooks` is `my-tools`.
        """
        name, _, path = module.rpartition("=")
        if not name:
            parts = path.split(".")
            last = parts[-2] if parts[-1] == "hooks" and len(parts) > 1 else parts[-1]
            name = last.replace("_", "-")
        if not all(part.isidentifier() for part in path.split(".")):
            raise ConfigError(f'"{module}" is not MODULE or NAME=MODULE with a dotted module name')
        _check_name(name)
        self._note(_Source(name, NOT_PACKAGED, "", path, lambda: importlib.import_module(path)))
        return name

    def add(self, name: str, namespace: object, *, distribution: str = NOT_PACKAGED) -> None:
        """Add an object with hookimpls: a module, a class or an instance. For tests and for embedding."""
        _check_name(name)
        self._note(_Source(name, distribution, "", _called(namespace), lambda: namespace))

    def names(self) -> list[str]:
        """The names of all plugins that may be loaded, sorted; nothing is imported."""
        return sorted(name for name in self._sources if not self.is_blocked(name))

    def check_block(self) -> None:
        """Raise ConfigError for a blocked name that no plugin has but one nearly has."""
        for name in sorted(self._block - set(self._sources)):
            if hint := did_you_mean(name, self._sources):
                raise ConfigError(f'block: no plugin is named "{name}"; {hint}')

    def is_blocked(self, name: str) -> bool:
        """Whether this run may not load the plugin."""
        return name in self._block

    def load(self, name: str) -> Plugin:
        """The plugin `name`, imported and checked on first use; no other plugin is imported.

        Raises PluginNotFound (also when blocked), PluginConflict (two owners) or PluginBroken.
        """
        if name in self._loaded:
            return self._loaded[name]
        if self.is_blocked(name):
            raise UnknownName(
                f'plugin "{name}" is blocked by this run', "take it off the block list to use it"
            )
        sources = self._sources.get(name)
        if not sources:
            raise unknown_plugin(name, self.names())
        self._loaded[name] = self._load(*sources)
        return self._loaded[name]

    def describe(self, builtins: Plugin | None = None) -> list[dict[str, Any]]:
        """Every plugin, broken ones too, with its items' names; `builtins` first. Imports them all."""
        rows = [_description(builtins)] if builtins else []
        for name in self.names():
            try:
                plugin = self.load(name)
                if builtins:
                    refuse_shadowing(plugin, builtins)
            except ConfigError as error:
                rows += [_failure(source, error) for source in self._sources[name]]
            else:
                rows.append(_description(plugin))
        return rows

    def _note(self, source: _Source) -> None:
        known = self._sources.setdefault(source.name, [])
        same = (canonicalize_name(source.distribution), source.value)
        if all(same != (canonicalize_name(other.distribution), other.value) for other in known):
            known.append(source)

    def _load(self, source: _Source, *others: _Source) -> Plugin:
        if others:
            owners = " and ".join(f"{other.owner} ({other.value})" for other in (source, *others))
            raise PluginConflict(
                f'plugin "{source.name}" has more than one owner: {owners}; uninstall all but one'
            )
        try:
            _check_name(source.name)
            check_core_range(source.requires, self._core_version)
            return _read(source, _import(source))
        except (RuleError, InvalidRequirement, ConfigError) as error:
            raise source.broken(str(error)) from error


def builtin_plugin(namespace: object, version: str) -> Plugin:
    """The core's own hookimpls as the plugin `rollhook`, kept to the same rules."""
    source = _Source(BUILTIN_PLUGIN, BUILTIN_PLUGIN, version, _called(namespace), lambda: namespace)
    return _read(source, namespace)


def refuse_shadowing(plugin: Plugin, builtins: Plugin) -> None:
    """Raise PluginConflict when a plugin's name would hide a built-in item of a kind it provides."""
    for kind in ITEM_LISTS:
        if getattr(plugin, kind) and plugin.name in getattr(builtins, kind):
            raise PluginConflict(
                f'plugin "{plugin.name}" ({plugin.distribution} {plugin.version}) provides {kind}, and '
                f'"{plugin.name}" already names one of the built-in {kind}; rename the plugin'
            )


def _read(source: _Source, namespace: object) -> Plugin:
    """Check the hooks, call each once and check the answers. Raises RuleError.

    Each plugin has a manager of its own, so it is plain whose answer is whose, and a failure leaves nothing.
    """
    check_hooks(namespace)
    manager = pluggy.PluginManager("rollhook")
    manager.add_hookspecs(HookSpecs)
    try:
        manager.register(namespace, name=source.name)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise RuleError(str(error)) from error
    answers = {hook: _ask(getattr(manager.hook, hook)) for hook in HOOKS}
    items: dict[str, Any] = {
        hook.removeprefix("rollhook_"): {item.name: item for item in answers[hook]} for hook in SPEC_OF_HOOK
    }
    return Plugin(
        name=source.name,
        distribution=source.distribution,
        version=source.version,
        event_sinks=answers["rollhook_events"],
        normalizers=answers["rollhook_normalizers"],
        **items,
    )


def _ask(hook: pluggy.HookCaller) -> tuple[Any, ...]:
    if not hook.get_hookimpls():
        return ()
    try:
        answers = hook()
    except (Exception, SystemExit) as error:
        raise RuleError(f"{hook.name} raised {type(error).__name__}: {error}") from error
    return check_answer(hook.name, answers[0] if answers else None)  # pluggy leaves out an answer of None


def _import(source: _Source) -> object:
    try:
        return source.find()
    except (Exception, SystemExit) as error:
        raise RuleError(f"importing {source.value} raised {type(error).__name__}: {error}") from error


def _called(namespace: object) -> str:
    """A name for messages that two different objects do not share."""
    name = getattr(namespace, "__name__", type(namespace).__name__)
    return name if isinstance(namespace, ModuleType) else f"{name} at {id(namespace):#x}"


def _check_name(name: str) -> None:
    if not re.fullmatch(ITEM_NAME, name):
        raise ConfigError(f'"{name}" cannot name a plugin; a name must match {ITEM_NAME}')
    if name == BUILTIN_PLUGIN:
        raise ConfigError(f'the plugin name "{BUILTIN_PLUGIN}" is reserved for the built-ins; choose another')


def _packaged(entry_point: EntryPoint) -> _Source:
    distribution = entry_point.dist
    if distribution is None:
        return _Source(entry_point.name, "(unknown)", "", entry_point.value, entry_point.load)
    return _Source(
        entry_point.name,
        distribution.name,
        distribution.version,
        entry_point.value,
        entry_point.load,
        tuple(distribution.requires or ()),
    )


def _description(plugin: Plugin) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "status": "ok",
        "error": None,
        **{kind: sorted(getattr(plugin, kind)) for kind in ITEM_LISTS},
    }


def _failure(source: _Source, error: ConfigError) -> dict[str, Any]:
    return {
        "name": source.name,
        "distribution": source.distribution,
        "version": source.version,
        "status": "broken",
        "error": str(error),
        **{kind: [] for kind in ITEM_LISTS},
    }
