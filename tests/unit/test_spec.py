"""Rows resolved: precedence, settings, limits, trust, and what is said of a row that asks wrongly."""

from __future__ import annotations

import copy
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_validator, model_validator

from rollhook import builtin
from rollhook.config import RunConfig
from rollhook.errors import ConfigError, RowError
from rollhook.hookspecs import (
    Defaults,
    EnvironmentSpec,
    RunOnly,
    ToolSpec,
    TopologySpec,
    VerifierSpec,
    hookimpl,
)
from rollhook.plugins import Plugins, builtin_plugin
from rollhook.registry import Registry
from rollhook.spec import Choice, Limits, Resolved, Resolver, RolloutSpec, SpecError
from rollhook.version import __version__


def nothing(config: Any, rollout: Any) -> Any:
    raise AssertionError("no test here runs a rollout")


class Search(BaseModel):
    topk: int = Field(3, ge=1, le=10)
    mode: Literal["dense", "sparse"] = "dense"
    index: str | None = None
    corpus_dir: Path | None = None
    secret_sauce: Annotated[int, RunOnly()] = 0


class Match(BaseModel):
    topk: int = 1
    partial: bool = False


class Picky(BaseModel):
    low: int = 1
    high: int = 5

    @field_validator("low")
    @classmethod
    def _even(cls, value: int) -> int:
        if value == 13:
            raise KeyError("thirteen")
        if value % 2 == 0:
            raise ValueError("must be odd")
        return value

    @model_validator(mode="after")
    def _ordered(self) -> Picky:
        if self.low > self.high:
            raise ValueError("low must not be above high")
        return self


class SearchPlugin:
    @hookimpl
    def rollhook_environments(self) -> list[EnvironmentSpec]:
        defaults = Defaults(
            verifier={"name": "search-r1/em", "partial": True},
            tools=["calculator"],
            limits={"max_turns": 4, "max_new_tokens": 500},
            stop=("</search>", "</answer>"),
        )
        return [
            EnvironmentSpec(name="search-r1", create=nothing, config=Search, defaults=defaults),
            EnvironmentSpec(name="plain", create=nothing),
            EnvironmentSpec(name="bad", create=nothing, defaults=Defaults(verifier="search-r1/enn")),
            EnvironmentSpec(name="worse", create=nothing, defaults=Defaults(limits={"max_turn": 1})),
        ]

    @hookimpl
    def rollhook_verifiers(self) -> list[VerifierSpec]:
        return [VerifierSpec(name="em", create=nothing, config=Match)]


class CalculatorPlugin:
    @hookimpl
    def rollhook_tools(self) -> list[ToolSpec]:
        return [
            ToolSpec(name="calculator", create=nothing),
            ToolSpec(name="picky", create=nothing, config=Picky),
        ]


class DebatePlugin:
    @hookimpl
    def rollhook_topologies(self) -> list[TopologySpec]:
        return [TopologySpec(name="debate", create=nothing)]


def resolver(**config: Any) -> Resolver:
    plugins = Plugins(entry_points=[])
    plugins.add("search-r1", SearchPlugin())
    plugins.add("calculator", CalculatorPlugin())
    plugins.add("debate", DebatePlugin())
    plugins.add("broken", SimpleNamespace())
    return Resolver(
        Registry(plugins, builtin_plugin(builtin, __version__)), RunConfig.of(config, where="test")
    )


def resolve(rollhook: Any, **config: Any) -> Resolved:
    return resolver(**config).resolve({"rollhook": rollhook})


def error_of(rollhook: Any, **config: Any) -> str:
    with pytest.raises(RowError) as caught:
        resolve(rollhook, **config)
    return str(caught.value)


def names(resolved: Resolved) -> dict[str, Any]:
    def name(choice: Choice | None) -> str | None:
        return None if choice is None else choice.name

    return {
        "environment": name(resolved.environment),
        "tools": [tool.name for tool in resolved.tools],
        "verifier": name(resolved.verifiers[0] if resolved.verifiers else None),
        "topology": name(resolved.topology),
    }


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


def test_a_row_that_says_nothing_without_a_default_is_told() -> None:
    for row in ({}, {"rollhook": None}, {"rollhook": {"limits": {"max_turns": None}}}):
        with pytest.raises(RowError) as caught:
            resolver().resolve(row)

        assert str(caught.value) == (
            "rollhook: the row names nothing to run, and the run has no default; "
            'add "rollhook" to its metadata, or set default: in the run configuration'
        )


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


def test_a_string_is_not_taken_for_the_mapping_it_spells() -> None:
    run = resolver()
    run.resolve({"rollhook": {"environment": "search-r1"}})

    with pytest.raises(RowError, match="no plugin named"):
        run.resolve({"rollhook": '{"environment": "search-r1"}'})


def test_any_number_of_different_rows_can_be_resolved() -> None:
    run = resolver()
    for turns in range(1, 5000):
        run.resolve({"rollhook": {"topology": "single", "limits": {"max_turns": turns}}})

    assert run.resolve({"rollhook": {"topology": "single", "limits": {"max_turns": 1}}}).limits.max_turns == 1
    assert len(run._seen) <= 4096  # the bound has no other sign


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


def test_a_spec_in_its_long_form_is_read_as_said() -> None:
    spec = RolloutSpec.of({"tools": "calculator", "environment": {"name": "x", "config": {"a": 1}}})

    assert spec.tools is not None
    assert [use.name for use in spec.tools] == ["calculator"]
    assert spec.environment is not None
    assert spec.environment.config == {"config": {"a": 1}}
    assert (spec.verifier, spec.topology, spec.limits) == (None, None, Limits())
