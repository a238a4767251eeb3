"""Rows resolved: precedence, settings, limits."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from rollhook.errors import ConfigError
from rollhook.spec import Choice, Limits, RolloutSpec
from tests.unit.resolving import (
    Match,
    Picky,
    Search,
    error_of,
    names,
    resolve,
    resolver,
)


def test_a_bare_environment_brings_its_defaults() -> None:
    resolved = resolve("search-r1")

    assert names(resolved) == {
        "environment": "search-r1/search-r1",
        "tools": ["calculator/calculator"],
        "verifier": "search-r1/em",
        "topology": "rollhook/single",
    }
    assert [choice.config for choice in resolved.verifiers] == [Match(partial=True)]
    assert resolved.limits == Limits(max_turns=4, max_new_tokens=500)
    assert resolved.stop == ("</search>", "</answer>")


def test_a_bare_topology_needs_no_environment() -> None:
    assert names(resolve("debate")) == {
        "environment": None,
        "tools": [],
        "verifier": None,
        "topology": "debate/debate",
    }


def test_a_row_takes_its_pieces_from_four_distributions() -> None:
    row = {
        "environment": "search-r1",
        "tools": ["calculator"],
        "verifier": "number",
        "topology": "debate",
    }

    assert names(resolve(row)) == {
        "environment": "search-r1/search-r1",
        "tools": ["calculator/calculator"],
        "verifier": "rollhook/number",
        "topology": "debate/debate",
    }


def test_the_row_goes_before_the_run_and_the_run_before_the_environment() -> None:
    run = {"verifier": "number", "topology": "debate", "environment": "search-r1/plain"}
    resolved = resolve({"environment": "search-r1", "topology": "single"}, default=run)

    assert names(resolved) == {
        "environment": "search-r1/search-r1",  # the row
        "tools": ["calculator/calculator"],  # the environment
        "verifier": "rollhook/number",  # the run
        "topology": "rollhook/single",  # the row
    }


def test_a_row_that_says_nothing_runs_the_default() -> None:
    run = resolver(default="search-r1")
    rows: list[dict[str, Any] | None] = [
        {},
        None,
        {"rollhook": None},
        {"rollhook": {}},
        {"rollhook": {"environment": None, "tools": None}},
    ]

    assert {names(run.resolve(row))["environment"] for row in rows} == {"search-r1/search-r1"}


def test_null_means_absent_at_any_depth() -> None:
    filled = {
        "environment": {"name": "search-r1", "topk": None, "index": None, "mode": "sparse"},
        "tools": None,
        "verifier": {"name": None, "partial": None},
        "topology": None,
        "limits": {"max_turns": None, "timeout_s": 5.0},
    }

    bare = {"environment": {"name": "search-r1", "mode": "sparse"}, "limits": {"timeout_s": 5.0}}
    run = resolver()

    assert run.resolve({"rollhook": filled}) == run.resolve({"rollhook": bare})


def test_an_empty_list_of_tools_means_none() -> None:
    assert resolve({"environment": "search-r1", "tools": []}).tools == ()


@pytest.mark.parametrize(
    "tools",
    [
        "calculator",
        {"name": "calculator"},
        ["calculator"],
        [{"name": "calculator/calculator"}],
        np.array(["calculator"], dtype=object),
        np.array([{"name": "calculator"}], dtype=object),
    ],
)
def test_tools_are_a_name_a_mapping_or_a_list_of_them(tools: Any) -> None:
    assert [tool.name for tool in resolve({"tools": tools}).tools] == ["calculator/calculator"]


def test_numpy_scalars_are_numbers() -> None:
    environment = resolve({"environment": {"name": "search-r1", "topk": np.int64(7)}}).environment

    assert environment is not None
    assert environment.config == Search(topk=7)


def test_settings_lie_under_the_default_and_the_default_under_the_row() -> None:
    settings = {"search-r1": {"topk": 2, "index": "/data/wiki", "mode": "sparse"}}
    default = {"environment": {"name": "search-r1/search-r1", "topk": 5}}

    def config(row: Any) -> BaseModel:
        environment = resolve(row, settings=settings, default=default).environment
        assert environment is not None
        return environment.config

    assert config(None) == Search(topk=5, index="/data/wiki", mode="sparse")
    assert config({"environment": {"name": "search-r1", "mode": "dense"}}) == Search(
        topk=5, index="/data/wiki"
    )
    assert config({"environment": "search-r1/plain"}).model_dump() == {}


def test_settings_of_a_plugin_reach_each_of_its_items_that_has_the_key() -> None:
    settings = {"search-r1": {"topk": 2, "index": "i"}, "search-r1/em": {"topk": 9, "partial": False}}
    resolved = resolve("search-r1", settings=settings)

    assert resolved.environment is not None
    assert resolved.environment.config == Search(topk=2, index="i")
    assert resolved.verifiers[0].config == Match(topk=9, partial=False)  # over the environment's own default


def test_the_run_chooses_items_with_their_settings() -> None:
    choice = resolver(settings={"search-r1/em": {"topk": 9}}).choose("verifier", "search-r1")

    assert choice == Choice("search-r1/em", choice.spec, Match(topk=9))
    with pytest.raises(ConfigError, match='sandbox: no plugin named "locul" is installed'):
        resolver().choose("sandbox", "locul")


@pytest.mark.parametrize(
    ("row", "default", "caps", "expected"),
    [
        ({}, {}, {}, Limits(max_turns=4, max_new_tokens=500)),
        ({"max_turns": 9}, {}, {}, Limits(max_turns=9, max_new_tokens=500)),
        ({}, {"max_turns": 7}, {}, Limits(max_turns=7, max_new_tokens=500)),
        ({"max_turns": 9}, {"max_turns": 7}, {}, Limits(max_turns=9, max_new_tokens=500)),
        ({"max_turns": 9}, {}, {"max_turns": 2}, Limits(max_turns=2, max_new_tokens=500)),
        ({"max_turns": 1}, {}, {"max_turns": 2}, Limits(max_turns=1, max_new_tokens=500)),
        ({}, {}, {"max_turns": 100}, Limits(max_turns=4, max_new_tokens=500)),
        (
            {},
            {},
            {"timeout_s": 9, "max_context_tokens": 64},
            Limits(max_turns=4, max_new_tokens=500, timeout_s=9, max_context_tokens=64),
        ),
    ],
)
def test_limits_follow_precedence_and_the_runs_caps(
    row: dict[str, Any], default: dict[str, Any], caps: dict[str, Any], expected: Limits
) -> None:
    resolved = resolve({"environment": "search-r1", "limits": row}, default={"limits": default}, limits=caps)

    assert resolved.limits == expected


def test_a_runs_cap_above_the_cores_default_raises_it() -> None:
    assert resolve("debate", limits={"max_turns": 100}).limits == Limits(max_turns=100)


limit_values = st.fixed_dictionaries(
    {},
    optional={
        "max_turns": st.integers(1, 99),
        "max_context_tokens": st.integers(1, 99),
        "max_new_tokens": st.integers(1, 99),
        "timeout_s": st.floats(0.1, 99),
    },
)


@given(limit_values, limit_values)
def test_no_limit_is_above_its_cap(own: dict[str, Any], cap: dict[str, Any]) -> None:
    capped = Limits(**own).capped_by(Limits(**cap)).model_dump()

    for name, most in cap.items():
        assert capped[name] == min(own.get(name, most), most)
    for name in own.keys() - cap.keys():
        assert capped[name] == own[name]


def test_settings_that_need_the_rows_part_are_judged_with_it() -> None:
    settings = {"calculator/picky": {"low": 7}}  # above high, unless the row raises it

    assert [
        tool.config
        for tool in resolve({"tools": {"name": "calculator/picky", "high": 9}}, settings=settings).tools
    ] == [Picky(low=7, high=9)]
    assert (
        error_of({"tools": "calculator/picky"}, settings=settings) == "tools[0]: low must not be above high"
    )


def test_resolving_changes_no_row() -> None:
    row = {"rollhook": {"environment": {"name": "search-r1", "topk": None}, "tools": []}, "other": [1]}
    before = copy.deepcopy(row)
    resolver().resolve(row)

    assert row == before


def test_equal_rows_resolve_to_the_same_object() -> None:
    run = resolver()

    assert run.resolve({"rollhook": "search-r1", "n": 1}) is run.resolve({"rollhook": "search-r1", "n": 2})


def test_any_number_of_different_rows_can_be_resolved() -> None:
    run = resolver()
    for turns in range(1, 5000):
        run.resolve({"rollhook": {"topology": "single", "limits": {"max_turns": turns}}})

    assert run.resolve({"rollhook": {"topology": "single", "limits": {"max_turns": 1}}}).limits.max_turns == 1
    assert len(run._seen) <= 4096  # the bound has no other sign


def test_a_spec_in_its_long_form_is_read_as_said() -> None:
    spec = RolloutSpec.of({"tools": "calculator", "environment": {"name": "x", "config": {"a": 1}}})

    assert spec.tools is not None
    assert [use.name for use in spec.tools] == ["calculator"]
    assert spec.environment is not None
    assert spec.environment.config == {"config": {"a": 1}}
    assert (spec.verifier, spec.topology, spec.limits) == (None, None, Limits())
