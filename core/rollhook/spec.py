"""RolloutSpec: what `metadata["rollhook"]` may say, and the Resolver that turns it into items to run.

Invariant: resolving a row reads nothing but the row, the run configuration and the plugins they name; equal
rows resolve alike, and no row is ever changed.

Precedence of each key: the row, the run's `default`, the environment's defaults, the core's. Limits likewise,
capped by the run's `limits`: a row that asks for more gets the cap, and that is no error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from rollhook.config import RunConfig
from rollhook.errors import ConfigError
from rollhook.fields import MisfitError, fitted, plain, show_loc
from rollhook.hookspecs import Defaults, EnvironmentSpec, TopologySpec
from rollhook.items import (
    Choice,
    Fault,
    SpecError,
    TopologyUse,
    Use,
    WeightedUse,
    configured,
    faults_at,
    faults_of,
    naming_fields,
)
from rollhook.limits import Limits
from rollhook.names import did_you_mean
from rollhook.registry import Item, Kind, Registry
from rollhook.roles import RoleConfig
from rollhook.settings import check_part, read_settings

__all__ = ["Choice", "Fault", "Limits", "Resolved", "Resolver", "RolloutSpec", "SpecError", "Use"]

_CACHED_ROWS = 4096
_SINGLE = "rollhook/single"
_MOST_NESTED = 4
_encode = json.JSONEncoder(default=plain).encode


class RolloutSpec(BaseModel):
    """`metadata["rollhook"]` in its long form. None: not said. `tools: []` says that there are none.

    verifier: one or several; the scores of several are summed by weight.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    environment: Use | None = None
    tools: tuple[Use, ...] | None = None
    verifier: tuple[WeightedUse, ...] | None = None
    topology: Use | None = None
    limits: Limits = Limits()

    @field_validator("tools", "verifier", mode="before")
    @classmethod
    def _from_one(cls, value: Any) -> Any:
        return [value] if isinstance(value, str | Mapping) else value

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> RolloutSpec:
        """Read a mapping. A mapping of nulls only is how Parquet writes one that is absent.

        Raises SpecError with everything that is wrong.
        """
        said = {key: inner for key, inner in plain(value).items() if inner != {}}
        try:
            return fitted(cls, said)
        except MisfitError as error:
            faults = [Fault(show_loc(wrong.loc), wrong.message, wrong.hint) for wrong in error.misfits]
            raise SpecError(faults) from error

    def uses(self, kind: Kind) -> tuple[Use, ...] | None:
        """What it says of one kind of item; None when it says nothing."""
        if kind == "tool":
            return self.tools
        if kind == "verifier":
            return self.verifier
        if kind == "sandbox":
            return None  # only the run configuration names one
        use: Use | None = getattr(self, kind)
        return None if use is None else (use,)


@dataclass(frozen=True)
class Resolved:
    """What one row runs. verifiers: summed by weight. stop: the environment's stop strings."""

    environment: Choice | None
    tools: tuple[Choice, ...]
    verifiers: tuple[Choice, ...]
    topology: Choice
    limits: Limits
    stop: tuple[str, ...]


@dataclass(frozen=True)
class _Layers:
    """Who speaks of a row's rollout, first to last. brought_by: the environment whose defaults come last."""

    row: RolloutSpec
    default: RolloutSpec
    brought: RolloutSpec = field(default_factory=RolloutSpec)
    brought_by: str = ""

    def first(self, kind: Kind) -> tuple[tuple[Use, ...], str | None]:
        """What the first to speak of `kind` says, and who that is: None for the row."""
        owners = (None, "the run's default", f"the defaults of {self.brought_by}")
        for spec, owner in zip((self.row, self.default, self.brought), owners, strict=True):
            if (uses := spec.uses(kind)) is not None:
                return uses, owner
        return (), None

    def limits(self) -> Limits:
        return self.row.limits.over(self.default.limits).over(self.brought.limits)


class Resolver:
    """Turns rows into what they run.

    Raises ConfigError when made, if `settings` or `default` name what is not there or do not fit it.
    """

    def __init__(self, registry: Registry, config: RunConfig) -> None:
        self._registry = registry
        self._trust_rows = config.trust_rows
        self._models = list(config.models)
        self._caps = config.limits
        self._settings = read_settings(registry, config.settings)
        self._default = self._run_default(config)
        self._seen: dict[str, Resolved | tuple[Fault, ...]] = {}

    def resolve(self, metadata: Mapping[str, Any] | None) -> Resolved:
        """What the row with this metadata runs. Raises SpecError, a RowError, with all that is wrong."""
        outcome = self._outcome((metadata or {}).get("rollhook"))
        if isinstance(outcome, Resolved):
            return outcome
        raise SpecError(outcome)

    def choose(self, kind: Kind, name: str) -> Choice:
        """An item that the run itself names, with its `settings`. Raises ConfigError."""
        try:
            return self._choice(kind, kind, name, _Layers(RolloutSpec(), RolloutSpec()))
        except SpecError as error:
            raise ConfigError(str(error)) from error

    def _outcome(self, value: Any) -> Resolved | tuple[Fault, ...]:
        """The row's outcome, good or bad, kept for the next row that says the same."""
        try:
            row = _encode(value)
        except (TypeError, ValueError, RecursionError):
            return (Fault("rollhook", "must hold only what JSON can hold"),)
        if row not in self._seen:
            if len(self._seen) >= _CACHED_ROWS:
                del self._seen[next(iter(self._seen))]
            try:
                self._seen[row] = self._resolve(_Layers(self._parse(value, "rollhook"), self._default))
            except SpecError as error:
                self._seen[row] = error.faults
            except RecursionError:
                self._seen[row] = (Fault("rollhook", "is nested too deeply"),)
        return self._seen[row]

    def _parse(self, value: Any, key: str) -> RolloutSpec:
        value = plain(value)
        if isinstance(value, str):
            with faults_at(key):
                item = self._registry.main(value)
            return RolloutSpec.model_validate({item.kind: item.name})
        if value is not None and not isinstance(value, Mapping):
            raise SpecError([Fault(key, f"expected a name or a mapping, got {value!r}")])
        return RolloutSpec.of(value or {})

    def _resolve(self, layers: _Layers) -> Resolved:
        if not layers.row.model_fields_set and not layers.default.model_fields_set:
            message = "the row names nothing to run, and the run has no default"
            hint = 'add "rollhook" to its metadata, or set default: in the run configuration'
            raise SpecError([Fault("rollhook", message, hint)])
        faults: list[Fault] = []
        environment = _only(self._choices("environment", layers, faults))
        defaults = Defaults()
        if environment is not None and isinstance(environment.spec, EnvironmentSpec):
            defaults = environment.spec.defaults
            with faults_of(f"the defaults of {environment.name}"):
                layers = replace(layers, brought=_brought(defaults), brought_by=environment.name)
        tools = self._choices("tool", layers, faults)
        verifiers = self._choices("verifier", layers, faults)
        topology = _only(self._choices("topology", layers, faults))
        if faults:
            raise SpecError(faults)
        return Resolved(
            environment=environment,
            tools=tools,
            verifiers=verifiers,
            topology=topology or self._choice("topology", "topology", _SINGLE, layers),
            limits=layers.limits().capped_by(self._caps),
            stop=_strings(defaults.stop),
        )

    def _choices(self, kind: Kind, layers: _Layers, faults: list[Fault]) -> tuple[Choice, ...]:
        """The items of one kind that the row runs; what is wrong with them goes to `faults`."""
        chosen: dict[str, Choice] = {}
        uses, owner = layers.first(kind)
        for number, use in enumerate(uses):
            key = _key(kind, number, len(uses))
            try:
                with faults_of(owner):
                    choice = self._choice(kind, key, use.name, layers)
            except SpecError as error:
                faults += error.faults
                continue
            if choice.name in chosen:
                faults.append(Fault(key, f"names {choice.name} a second time"))
            if isinstance(use, WeightedUse):
                choice = replace(choice, weight=use.weight)
            chosen[choice.name] = choice
        return tuple(chosen.values())

    def _choice(self, kind: Kind, key: str, name: str, layers: _Layers) -> Choice:
        with faults_at(key):
            item = self._registry.find(kind, name)
        from_row = self._said(layers.row, item)
        config = {
            **self._said(layers.brought, item),
            **self._settings.get((kind, item.name), {}),
            **self._said(layers.default, item),
            **from_row,
        }
        return self._configured(item, config, key, {} if self._trust_rows else from_row)

    def _configured(
        self, item: Item, config: Mapping[str, Any], key: str, from_row: Mapping[str, Any]
    ) -> Choice:
        """`item` with `config`, and with it the topologies and models that the configuration names."""
        choice = configured(item, config, key=key, from_row=from_row)
        row_names_one = not naming_fields(item.spec.config).isdisjoint(from_row)
        named = {}
        for name, value in choice.config:
            if isinstance(value, TopologyUse):
                named[name] = self._named(f"{key}.{name}", value, value.config if row_names_one else {})
            elif isinstance(value, Mapping):
                self._check_models(f"{key}.{name}", value)
        if not named:
            return choice
        inner = next(iter(named.values())).spec
        assert isinstance(choice.spec, TopologySpec)
        assert isinstance(inner, TopologySpec)
        spec = replace(choice.spec, credit=inner.credit, role_weights=inner.role_weights)
        return replace(choice, spec=spec, named=named)

    def _named(self, key: str, use: TopologyUse, from_row: Mapping[str, Any]) -> Choice:
        if key.count(".") > _MOST_NESTED:
            raise SpecError([Fault(key, f"more than {_MOST_NESTED} topologies inside each other")])
        with faults_at(key):
            item = self._registry.find("topology", use.name)
        config = {**self._settings.get(("topology", item.name), {}), **use.config}
        return self._configured(item, config, key, from_row)

    def _check_models(self, key: str, roles: Mapping[Any, Any]) -> None:
        """Raise SpecError for a role of a model that the run does not have."""
        for role, said in roles.items():
            if isinstance(said, RoleConfig) and said.model not in (None, *self._models):
                hint = did_you_mean(str(said.model), self._models) or "set models in the run configuration"
                raise SpecError([Fault(f"{key}.{role}.model", f'the run has no model "{said.model}"', hint)])

    def _said(self, spec: RolloutSpec, item: Item) -> dict[str, Any]:
        """The configuration that `spec` gives `item`, empty when it does not name it."""
        for use in spec.uses(item.kind) or ():
            try:
                if self._registry.find(item.kind, use.name).name == item.name:
                    return use.config
            except ConfigError:
                continue  # a name that is told of where it is chosen
        return {}

    def _run_default(self, config: RunConfig) -> RolloutSpec:
        """The run's `default`, its names looked up and its configuration checked as far as it goes."""
        try:
            default = self._parse(config.default, "default")
            for kind in ("environment", "tool", "verifier", "topology"):
                uses = default.uses(kind) or ()
                for number, use in enumerate(uses):
                    key = _key(kind, number, len(uses))
                    with faults_at(key):
                        item = self._registry.find(kind, use.name)
                    check_part(self._registry, f"default.{key}", item, use.config)
                    _check_shape(item, config.return_shape)
        except SpecError as error:
            told = [fault if fault.key == "default" else f"default.{fault}" for fault in error.faults]
            raise ConfigError("; ".join(map(str, told))) from error
        return default


def _key(kind: Kind, number: int, count: int) -> str:
    if kind == "tool":
        return f"tools[{number}]"
    return kind if count == 1 else f"{kind}[{number}]"


def _only(choices: tuple[Choice, ...]) -> Choice | None:
    return choices[0] if choices else None


def _strings(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _brought(defaults: Defaults) -> RolloutSpec:
    said = {
        "tools": list(defaults.tools) or None,
        "verifier": defaults.verifier,
        "topology": defaults.topology,
        "limits": defaults.limits,
    }
    return RolloutSpec.of(said)


def _check_shape(item: Item, return_shape: str) -> None:
    if return_shape == "sample" and isinstance(item.spec, TopologySpec) and item.spec.fan_out:
        raise ConfigError(
            f"default.topology: {item.name} makes several samples of one rollout, which return_shape: sample "
            "cannot return; set return_shape: list, or choose a topology that makes one"
        )
