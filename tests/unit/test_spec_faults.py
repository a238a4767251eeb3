"""Rows and run configurations that ask wrongly, and what is said of them; what only the run may set."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollhook.errors import ConfigError, RowError
from rollhook.spec import Resolved, SpecError
from tests.unit.resolving import (
    Search,
    error_of,
    resolve,
    resolver,
)


def test_a_row_that_says_nothing_without_a_default_is_told() -> None:
    for row in ({}, {"rollhook": None}, {"rollhook": {"limits": {"max_turns": None}}}):
        with pytest.raises(RowError) as caught:
            resolver().resolve(row)

        assert str(caught.value) == (
            "rollhook: the row names nothing to run, and the run has no default; "
            'add "rollhook" to its metadata, or set default: in the run configuration'
        )


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("serch-r1", 'rollhook: no plugin named "serch-r1" is installed; did you mean "search-r1"?'),
        (
            {"environment": "serch-r1"},
            'environment: no plugin named "serch-r1" is installed; did you mean "search-r1"?',
        ),
        (
            {"tools": ["calculator", "calcullator"]},
            'tools[1]: no plugin named "calcullator" is installed; did you mean "calculator"?',
        ),
        ({"tools": ["calculator"] * 2}, "tools[1]: names calculator/calculator a second time"),
        ({"enviroment": "x"}, 'enviroment: unknown key; did you mean "environment"?'),
        ({"name": "search-r1"}, "name: unknown key"),
        (5, "rollhook: expected a name or a mapping, got 5"),
        (["search-r1"], "rollhook: expected a name or a mapping, got ['search-r1']"),
        ({"environment": 7}, 'environment: expected a name, or a mapping with "name", got 7'),
        ({"environment": {"topk": 3}}, "environment.name: is required and not given"),
        ({"tools": [None]}, 'tools[0]: expected a name, or a mapping with "name", got None'),
        ({"limits": {"max_turn": 3}}, 'limits.max_turn: unknown key; did you mean "max_turns"?'),
        ({"limits": {"max_turns": 0}}, "limits.max_turns: expected greater than 0, got 0 (int)"),
        ({"limits": 3}, "limits: expected a valid dictionary or instance of Limits, got 3 (int)"),
        ({"environment": "broken"}, 'environment: plugin "broken" ((not packaged)): it has no hooks'),
        (
            {"environment": {"name": "search-r1", "topq": 3}},
            'environment.topq: unknown key; did you mean "topk"?',
        ),
        (
            {"environment": {"name": "search-r1", "topk": "many"}},
            "environment.topk: expected a valid integer, got 'many' (str)",
        ),
        (
            {"environment": {"name": "search-r1", "topk": 11}},
            "environment.topk: expected less than or equal to 10, got 11 (int)",
        ),
        (
            {"environment": {"name": "search-r1", "mode": "x"}},
            "environment.mode: expected 'dense' or 'sparse', got 'x' (str)",
        ),
        ({"tools": {"name": "calculator/picky", "low": 4}}, "tools[0].low: must be odd"),
        ({"tools": {"name": "calculator/picky", "low": 9}}, "tools[0]: low must not be above high"),
        (
            {"tools": {"name": "calculator/picky", "low": 13}},
            "tools[0]: checking the configuration of calculator/picky raised KeyError: 'thirteen'",
        ),
        ({"tools": {"name": "calculator", "precision": 3}}, "tools[0].precision: unknown key"),
        (
            "search-r1/bad",
            'verifier: plugin "search-r1" has no verifier named "enn" (from the defaults of search-r1/bad); '
            'did you mean "search-r1/em"?',
        ),
        ("search-r1/worse", "limits.max_turn: unknown key (from the defaults of search-r1/worse)"),
        ({"environment": object()}, "rollhook: must hold only what JSON can hold"),
    ],
)
def test_a_wrong_row_is_told_in_one_sentence(row: Any, told: str) -> None:
    assert error_of(row).startswith(told)


def test_all_faults_of_a_row_are_told_at_once() -> None:
    row = {
        "environment": {"name": "search-r1", "topk": 0, "mode": "x"},
        "verifier": "numbr",
        "tools": ["calcullator"],
    }
    with pytest.raises(SpecError) as caught:
        resolve(row)

    assert [fault.key for fault in caught.value.faults] == [
        "environment.topk",
        "environment.mode",
        "tools[0]",
        "verifier",
    ]
    assert [fault.plugin for fault in caught.value.faults] == ["search-r1/search-r1"] * 2 + [None] * 2
    assert (caught.value.stage, caught.value.plugin) == ("resolve", "search-r1/search-r1")


def test_a_bad_row_fails_alike_each_time() -> None:
    run = resolver()
    errors = []
    for _ in range(3):
        with pytest.raises(SpecError) as caught:
            run.resolve({"rollhook": "serch-r1"})
        errors.append(caught.value)

    assert len({str(error) for error in errors}) == 1
    assert len({id(error) for error in errors}) == 3  # a shared exception would collect tracebacks


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("index", 'its name says "index"'),
        ("corpus_dir", "it holds a path"),
        ("secret_sauce", "it is marked run-only"),
    ],
)
def test_a_row_may_not_set_what_only_the_run_may(key: str, reason: str) -> None:
    row = {"environment": {"name": "search-r1", key: 1}}

    assert error_of(row) == (
        f'environment.{key}: a row may not set "{key}" of search-r1/search-r1 ({reason}); '
        "set it in the run configuration under settings: or say trust_rows: true"
    )


def test_a_trusted_row_and_the_runs_own_default_may_set_anything() -> None:
    said = {"environment": {"name": "search-r1", "index": "i"}}
    for resolved in (resolve(said, trust_rows=True), resolve(None, default=said)):
        assert resolved.environment is not None
        assert resolved.environment.config == Search(index="i")


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"settings": {"serch-r1": {}}}, 'settings: no plugin named "serch-r1" is installed; did you mean'),
        (
            {"settings": {"search-r1": {"topq": 3}}},
            'settings.search-r1.topq: unknown key; did you mean "topk"?',
        ),
        (
            {"settings": {"search-r1": {"topk": "many"}}},
            "settings.search-r1.topk: expected a valid integer, got 'many' (str) (of search-r1/search-r1)",
        ),
        ({"settings": {"broken": {}}}, 'settings: plugin "broken" ((not packaged)): it has no hooks'),
        (
            {"default": "serch-r1"},
            'default: no plugin named "serch-r1" is installed; did you mean "search-r1"?',
        ),
        (
            {"default": {"verifier": "numbr"}},
            'default.verifier: no plugin named "numbr" is installed; did you mean',
        ),
        ({"default": {"verifer": "number"}}, 'default.verifer: unknown key; did you mean "verifier"?'),
        (
            {"default": {"tools": [{"name": "calculator/picky", "low": 4}]}},
            "default.tools[0].low: must be odd (of calculator/picky)",
        ),
        (
            {"default": "debate", "return_shape": "sample"},
            "default.topology: debate/debate makes several samples of one rollout, which",
        ),
    ],
)
def test_a_wrong_run_configuration_stops_the_run_before_any_row(config: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolver(**config)

    assert str(caught.value).startswith(told)


def test_a_string_is_not_taken_for_the_mapping_it_spells() -> None:
    run = resolver()
    run.resolve({"rollhook": {"environment": "search-r1"}})

    with pytest.raises(RowError, match="no plugin named"):
        run.resolve({"rollhook": '{"environment": "search-r1"}'})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
row_keys = st.sampled_from(["environment", "tools", "verifier", "topology", "limits", "name"]) | st.text(
    max_size=8
)


@given(json_values | st.dictionaries(row_keys, json_values, max_size=4))
def test_any_json_resolves_or_is_a_row_error(value: Any) -> None:
    with suppress(SpecError):
        assert isinstance(_SHARED.resolve({"rollhook": value}), Resolved)


_SHARED = resolver()


@pytest.mark.parametrize("depth", [100, 400, 2000, 100_000])
def test_a_deeply_nested_row_is_a_row_error(depth: int) -> None:
    nested: Any = 1
    for _ in range(depth):
        nested = {"name": "search-r1", "topk": nested}

    with pytest.raises(SpecError):
        resolve({"environment": nested})
