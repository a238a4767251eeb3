"""What a run itself says of items: its `settings`, and the configuration in its `default`.

Invariant: every name and key is looked up when the run starts, before any row is read, also those of
topologies that are named inside others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from rollhook.errors import ConfigError
from rollhook.fields import Misfit, fields_of, misfits_of_part, plain, takes
from rollhook.items import Use, naming_fields
from rollhook.names import did_you_mean
from rollhook.registry import Item, Kind, Registry

Settings = dict[tuple[Kind, str], dict[str, Any]]
"""Configuration by kind and full name of the item."""


def read_settings(registry: Registry, settings: Mapping[str, Mapping[str, Any]]) -> Settings:
    """The run's settings, checked. Raises ConfigError.

    One name may mean items of several kinds, as `search-r1` an environment and a verifier: each takes the
    keys it has.
    """
    table: Settings = {}
    for name in sorted(settings, key=lambda name: "/" in name):  # a full name overrides its plugin's
        try:
            items = registry.items(name)
        except ConfigError as error:
            raise ConfigError(f"settings: {error}") from error
        known = {key for item in items for key in fields_of(item.spec.config)}
        for key, value in plain(settings[name]).items():
            takers = [item for item in items if takes(item.spec.config, key)]
            if not takers:
                hint = did_you_mean(key, known)
                raise ConfigError(str(Misfit(("settings", name, key), "unknown key", hint)))
            for item in takers:
                check_part(registry, f"settings.{name}", item, {key: value})
                table.setdefault((item.kind, item.name), {})[key] = value
    return table


def check_part(registry: Registry, key: str, item: Item, config: Mapping[str, Any]) -> None:
    """Check a part of an item's configuration, told under `key`. Raises ConfigError."""
    misfits = misfits_of_part(item.spec.config, config)
    if misfits:
        raise ConfigError(f"{key}.{misfits[0]} (of {item.name})")
    for name in naming_fields(item.spec.config) & config.keys():
        try:
            inner = Use.model_validate(config[name])
            found = registry.find("topology", inner.name)
        except ValidationError as error:
            raise ConfigError(f'{key}.{name}: expected a name, or a mapping with "name"') from error
        except ConfigError as error:
            raise ConfigError(f"{key}.{name}: {error}") from error
        check_part(registry, f"{key}.{name}", found, inner.config)
