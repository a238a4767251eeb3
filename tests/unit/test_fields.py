"""Data beside a model's fields: unknown keys at any depth, and pydantic's errors in sentences."""

from __future__ import annotations

from typing import Any, Generic, NewType, TypeVar

import numpy as np
import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field

from rollhook.fields import MisfitError, fitted, fitted_exactly, misfits_of_part, plain, show_loc

T = TypeVar("T")
Sides = NewType("Sides", int)


class Inner(BaseModel):
    sides: Sides = Sides(6)
    label: str = ""


class Wrapped(BaseModel, Generic[T]):
    value: T | None = None


class Config(BaseModel):
    """Ignores unknown keys, as pydantic's models do unless told otherwise."""

    level: int = 1
    inner: Inner | None = None
    many: list[Inner] = []
    named: dict[str, Inner] = {}
    free: dict[str, Any] = {}
    either: int | list[int] = 0
    wrapped: Wrapped[Inner] | None = None
    aliased: int = Field(0, validation_alias=AliasChoices("old", AliasPath("deep", 0)))


def told(data: dict[str, Any]) -> list[str]:
    with pytest.raises(MisfitError) as caught:
        fitted_exactly(Config, data)
    return [str(misfit) for misfit in caught.value.misfits]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"levle": 1}, 'levle: unknown key; did you mean "level"?'),
        ({"inner": {"side": 1}}, 'inner.side: unknown key; did you mean "sides"?'),
        ({"many": [{}, {"sides": 1, "x": 1}]}, "many[1].x: unknown key"),
        ({"named": {"a": {"side": 1}}}, 'named.a.side: unknown key; did you mean "sides"?'),
        ({"wrapped": {"value": {"lable": ""}}}, 'wrapped.value.lable: unknown key; did you mean "label"?'),
        ({"aliased": 1}, "aliased: unknown key"),
        ({"level": "x"}, "level: expected a valid integer, got 'x' (str)"),
        ({"level": 1.5}, "level: expected a valid integer, got 1.5 (float)"),
        ({"many": [{"sides": []}]}, "many[0].sides: expected a valid integer, got [] (list)"),
        ({"either": "x"}, "either: expected a valid integer, got 'x' (str)"),
        ({"named": {"a": 3}}, "named.a: expected a valid dictionary or instance of Inner, got 3 (int)"),
        ({"level": "x" * 200}, f"level: expected a valid integer, got '{'x' * 56}... (str)"),
    ],
)
def test_what_does_not_fit_is_told_with_its_place(data: dict[str, Any], sentence: str) -> None:
    assert told(data) == [sentence]


def test_everything_that_does_not_fit_is_told() -> None:
    assert told({"levle": 1, "inner": {"sides": "x"}}) == [
        'levle: unknown key; did you mean "level"?',
        "inner.sides: expected a valid integer, got 'x' (str)",
    ]


def test_what_fits_is_made() -> None:
    data = {
        "named": {"sides": {"sides": 3}},
        "free": {"anything": {"at": ["all"]}},
        "either": [1],
        "old": 2,
        "wrapped": {"value": {"label": "a"}},
    }

    assert fitted_exactly(Config, data) == Config.model_validate(data)


def test_a_model_that_forbids_unknown_keys_tells_the_nearest_once() -> None:
    class Strict(BaseModel):
        model_config = ConfigDict(extra="forbid")

        level: int

    with pytest.raises(MisfitError) as caught:
        fitted(Strict, {"levle": 1})

    assert str(caught.value) == 'levle: unknown key; did you mean "level"?; level: is required and not given'


def test_a_part_is_not_blamed_for_what_is_missing() -> None:
    class Strict(BaseModel):
        needed: int
        level: int

    assert misfits_of_part(Strict, {"level": 1}) == []
    assert [str(misfit) for misfit in misfits_of_part(Strict, {"level": "x"})] == [
        "level: expected a valid integer, got 'x' (str)"
    ]


def test_plain_drops_nulls_from_mappings_and_unwraps_arrays() -> None:
    value = {
        "a": None,
        "b": {"c": None, "d": [None, {"e": None}]},
        "f": np.array([1, 2]),
        "g": np.array([{"h": None, "i": np.float32(0.5)}], dtype=object),
        "j": (1, 2),
        "k": np.bool_(True),
    }

    assert plain(value) == {"b": {"d": [None, {}]}, "f": [1, 2], "g": [{"i": 0.5}], "j": [1, 2], "k": True}


def test_a_place_is_shown_as_one_would_write_it() -> None:
    assert show_loc(("tools", 0, "precision")) == "tools[0].precision"
