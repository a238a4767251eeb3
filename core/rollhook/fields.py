"""A configuration model's fields beside the data meant for them, and what pydantic found wrong, in sentences.

Invariant: `places` visits every key of the data, however deep, with the fields it can land in; so unknown
keys, and keys that rows may not set, are found whatever the model itself forbids or ignores.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import UnionType
from typing import (
    Annotated,
    Any,
    NamedTuple,
    NewType,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from pydantic import AliasChoices, AliasPath, BaseModel, ValidationError
from pydantic.fields import FieldInfo
from typing_extensions import TypeAliasType

from rollhook.names import did_you_mean

_ASIDE = re.compile(r", (unable to|got) .*")
_MISSING = "is required and not given"

M = TypeVar("M", bound=BaseModel)

Loc = tuple[str | int, ...]
"""Keys and list indices that lead to a value."""


@dataclasses.dataclass(frozen=True)
class Field:
    """One field of a model, dataclass or TypedDict. marks: what `Annotated` says beside the type."""

    annotation: Any
    marks: tuple[Any, ...] = ()


@dataclasses.dataclass(frozen=True)
class Place:
    """One key of the data. fields: where it can land; none where any key may stand, or where it is unknown.

    known: the keys that have fields there. free: whether other keys are welcome too.
    inside: the field that holds the mapping, None at the top.
    """

    loc: Loc
    fields: tuple[Field, ...]
    known: tuple[str, ...]
    free: bool
    inside: Field | None


def plain(value: Any) -> Any:
    """`value` in JSON's types: arrays as lists, and keys whose value is null left out (null means absent)."""
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if hasattr(value, "tolist"):  # numpy's arrays and scalars
        return plain(value.tolist())
    return value


def show_loc(loc: Iterable[str | int]) -> str:
    """`("tools", 0, "precision")` as `tools[0].precision`."""
    shown = ""
    for part in loc:
        shown += f"[{part}]" if isinstance(part, int) else f".{part}"
    return shown.removeprefix(".")


def places(annotation: Any, value: Any, loc: Loc = (), inside: Field | None = None) -> Iterator[Place]:
    """Every key in `value`, with the fields that `annotation` has for it."""
    if isinstance(value, list | tuple):
        elements = _union(_elements(annotation))
        for index, inner in enumerate(value):
            yield from places(elements, inner, (*loc, index), inside)
    elif isinstance(value, Mapping):
        tables = [fields_of(part) for part in _alternatives(annotation) if _is_structure(part)]
        values = list(_mapping_values(annotation))
        known = tuple(dict.fromkeys(key for table in tables for key in table))
        for key, inner in value.items():
            fields = tuple(table[key] for table in tables if key in table)
            yield Place((*loc, key), fields, known, bool(values) or not tables, inside)
            below = _union([*(field.annotation for field in fields), *([] if fields else values)])
            yield from places(below, inner, (*loc, key), fields[0] if fields else inside)


class Misfit(NamedTuple):
    """One thing that is wrong with data. hint: the nearest right key, where one is near."""

    loc: Loc
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        where = f"{show_loc(self.loc)}: " if self.loc else ""
        return where + self.message + (f"; {self.hint}" if self.hint else "")


class MisfitError(ValueError):
    """Data does not fit its model. misfits: everything that is wrong, at least one."""

    def __init__(self, misfits: Sequence[Misfit]) -> None:
        super().__init__("; ".join(str(misfit) for misfit in misfits))
        self.misfits = tuple(misfits)


def fitted(model: type[M], data: Mapping[str, Any]) -> M:
    """`data` as a `model` that forbids unknown keys itself, as the core's own do. Raises MisfitError."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise MisfitError([*_unknown_keys(model, data), *_explained(error, data)]) from error


def fitted_exactly(model: type[M], data: Mapping[str, Any]) -> M:
    """`data` as a plugin's `model`. Raises MisfitError, also for keys that the model itself would ignore."""
    unknown = _unknown_keys(model, data)
    try:
        made = model.model_validate(data)
    except ValidationError as error:
        raise MisfitError([*unknown, *_explained(error, data)]) from error
    if unknown:
        raise MisfitError(unknown)
    return made


def misfits_of_part(model: type[BaseModel], data: Mapping[str, Any]) -> list[Misfit]:
    """What is wrong with a part of a model's data: nothing is missing, no rule between fields is judged."""
    try:
        fitted_exactly(model, data)
    except MisfitError as error:
        return [wrong for wrong in error.misfits if wrong.loc and wrong.message != _MISSING]
    except Exception:  # noqa: BLE001  a validator that needs the rest is asked again with the whole
        pass
    return []


def _unknown_keys(model: type[BaseModel], data: Mapping[str, Any]) -> list[Misfit]:
    return [
        Misfit(place.loc, "unknown key", did_you_mean(str(place.loc[-1]), place.known))
        for place in places(model, data)
        if not place.fields and not place.free
    ]


def _explained(error: ValidationError, data: Any) -> list[Misfit]:
    """Each error of pydantic's in a sentence, the first for each place. Unknown keys were told already."""
    told: dict[Loc, Misfit] = {}
    for detail in error.errors(include_url=False, include_context=False):
        if detail["type"] == "extra_forbidden":
            continue
        loc = _loc_in(data, detail["loc"], missing=detail["type"] == "missing")
        told.setdefault(loc, Misfit(loc, _sentence(detail["type"], detail["msg"], detail["input"])))
    return list(told.values())


def _sentence(kind: str, message: str, given: Any) -> str:
    if kind == "missing":
        return _MISSING
    if kind in ("value_error", "assertion_error"):
        return message.split(", ", 1)[-1]
    expected = _ASIDE.sub("", message.removeprefix("Input should be "))
    return f"expected {expected}, got {_shown(given)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def _loc_in(data: Any, loc: Iterable[str | int], *, missing: bool) -> Loc:
    """The part of pydantic's `loc` that is in the data: it also names the branches of unions."""
    found: list[str | int] = []
    loc = tuple(loc)
    for part in loc[:-1] if missing else loc:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            continue
        found.append(part)
    return (*found, loc[-1]) if missing else tuple(found)


def fields_of(structure: Any) -> dict[str, Field]:
    """The fields of a model, dataclass or TypedDict by every key that sets them."""
    if isinstance(structure, type) and issubclass(structure, BaseModel):
        by_name = structure.model_config.get("populate_by_name") or structure.model_config.get(
            "validate_by_name"
        )
        table = {}
        for name, info in structure.model_fields.items():
            aliases = _aliases(info)
            for key in {*aliases, name} if by_name or not aliases else aliases:
                table[key] = Field(info.annotation, tuple(info.metadata))
        return table
    hints = get_type_hints(structure, include_extras=True)
    return {name: Field(annotation) for name, annotation in hints.items()}


def takes(model: type[BaseModel], key: str) -> bool:
    """Whether `key` sets something in the model."""
    return key in fields_of(model) or model.model_config.get("extra") == "allow"


def _aliases(info: FieldInfo) -> set[str]:
    alias = info.validation_alias or info.alias
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    return {str(one.path[0]) if isinstance(one, AliasPath) else one for one in choices if one is not None}


def _is_structure(annotation: Any) -> bool:
    if not isinstance(annotation, type):
        return False
    return (
        issubclass(annotation, BaseModel) or dataclasses.is_dataclass(annotation) or is_typeddict(annotation)
    )


def _alternatives(annotation: Any) -> Iterator[Any]:
    """What a value of this type can be, unions and aliases taken apart."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _alternatives(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for part in get_args(annotation):
            yield from _alternatives(part)
    elif isinstance(annotation, TypeAliasType):
        yield from _alternatives(annotation.__value__)
    elif isinstance(annotation, NewType):
        yield from _alternatives(annotation.__supertype__)
    else:
        yield Any if isinstance(annotation, TypeVar) else annotation


def types_in(annotation: Any) -> list[Any]:
    """What a value of this type can be: the members of a union, else the type itself."""
    return list(_alternatives(annotation))


def _elements(annotation: Any) -> Iterator[Any]:
    """The types of what a sequence of this type holds."""
    for part in _alternatives(annotation):
        yield from (arg for arg in get_args(part) if arg is not Ellipsis)


def _mapping_values(annotation: Any) -> Iterator[Any]:
    """The types of the values of a mapping of this type with keys of its own choice."""
    for part in _alternatives(annotation):
        origin = get_origin(part) or part
        if isinstance(origin, type) and issubclass(origin, BaseModel):
            if origin.model_config.get("extra") == "allow":
                yield Any
        elif isinstance(origin, type) and issubclass(origin, Mapping) and not is_typeddict(origin):
            yield (*get_args(part), Any, Any)[1]
        elif part is Any or part is object:
            yield Any


def _union(annotations: Iterable[Any]) -> Any:
    found = tuple(annotations)
    return Union[found] if found else Any  # noqa: UP007  the parts are known at run time only
