"""One item as a row or the run names it, and its configuration, checked.

Invariant: a Choice holds a configuration that its item's own model accepted, and, unless rows are trusted,
nothing in it that only the run may set came from a row. Each thing that is wrong is a Fault with its key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollhook.errors import ConfigError, RowError
from rollhook.fields import Loc, MisfitError, fields_of, fitted_exactly, show_loc, types_in
from rollhook.hookspecs import ItemSpec
from rollhook.names import UnknownName
from rollhook.registry import Item
from rollhook.trust import refused


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one key of a row.

    hint: the nearest right name, or what to do. plugin: the item whose rule it is, as `plugin/item`.
    """

    key: str
    message: str
    hint: str | None = None
    plugin: str | None = None

    def __str__(self) -> str:
        return f"{self.key}: {self.message}" + (f"; {self.hint}" if self.hint else "")


class SpecError(RowError):
    """A row cannot be resolved. faults: all that is wrong with it, at least one."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        text = " | ".join(str(fault) for fault in faults)
        super().__init__(text, plugin=faults[0].plugin, cause_type="RowError")
        self.faults = tuple(faults)


class Use(BaseModel):
    """A name, or a mapping with `name` beside the item's configuration."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, Mapping):
            return value
        raise ValueError(f'expected a name, or a mapping with "name", got {value!r}')

    @property
    def config(self) -> dict[str, Any]:
        """What it says beside the name."""
        return self.model_extra or {}


class TopologyUse(Use):
    """A field of this type in a topology's configuration names another topology, to be run inside it.

    The name and the configuration beside it are checked as a row's own, and rows may set what they may there.
    `Rollout.run_topology` runs it. The outer topology's credit is then the inner one's.
    """


class WeightedUse(Use):
    """A verifier, and how much its score counts. weight: unitless; the scores of several are summed."""

    weight: float = Field(1.0, allow_inf_nan=False)


@dataclass(frozen=True)
class Choice:
    """One item to use. name: the full one, `plugin/item`. config: checked; shared, so not to be changed.

    weight: how much a verifier's score counts. named: the topologies that the configuration names, by field.
    """

    name: str
    spec: ItemSpec[Any]
    config: BaseModel
    weight: float = 1.0
    named: Mapping[str, Choice] = field(default_factory=dict)


def configured(item: Item, config: Mapping[str, Any], *, key: str, from_row: Mapping[str, Any]) -> Choice:
    """`item` with `config`. from_row: what an untrusted row set of it. Raises SpecError about `key`."""
    try:
        naming = naming_fields(item.spec.config)
        misset = refused(item.spec.config, {key: said for key, said in from_row.items() if key not in naming})
        made = None if misset else fitted_exactly(item.spec.config, config)
    except MisfitError as error:
        raise SpecError(
            [Fault(_under(key, wrong.loc), wrong.message, wrong.hint, item.name) for wrong in error.misfits]
        ) from error
    except Exception as error:
        message = f"checking the configuration of {item.name} raised {type(error).__name__}: {error}"
        raise SpecError([Fault(key, message, plugin=item.name)]) from error
    if misset:
        loc, reason = misset
        message = f'a row may not set "{show_loc(loc)}" of {item.name} ({reason})'
        hint = "set it in the run configuration under settings: or say trust_rows: true"
        raise SpecError([Fault(_under(key, loc), message, hint, item.name)])
    assert made is not None
    return Choice(item.name, item.spec, made)


def naming_fields(config: type[BaseModel]) -> set[str]:
    """The keys of a configuration that name topologies."""
    return {key for key, field in fields_of(config).items() if TopologyUse in types_in(field.annotation)}


@contextmanager
def faults_at(key: str) -> Iterator[None]:
    """Turn an unknown name, a broken plugin or a conflict into a SpecError about `key`."""
    try:
        yield
    except UnknownName as error:
        raise SpecError([Fault(key, error.message, error.hint)]) from error
    except ConfigError as error:
        raise SpecError([Fault(key, str(error))]) from error


@contextmanager
def faults_of(owner: str | None) -> Iterator[None]:
    """Say of each SpecError that what is wrong is from `owner`, not from the row. None: it is the row's."""
    try:
        yield
    except SpecError as error:
        if owner is None:
            raise
        faults = [
            replace(fault, message=f"{fault.message} (from {owner})", plugin=fault.plugin)
            for fault in error.faults
        ]
        raise SpecError(faults) from error


def _under(key: str, loc: Loc) -> str:
    return show_loc((key, *loc))
