"""Configurations that name topologies and models: checked before the first token, like every other name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from rollhook import (
    ConfigError,
    Plugins,
    RolesConfig,
    RowError,
    RunConfig,
    TopologySpec,
    TopologyUse,
    builtin,
    hookimpl,
)
from rollhook.plugins import builtin_plugin
from rollhook.registry import Registry
from rollhook.spec import Resolver
from rollhook.topologies import Single


class Wrapping(BaseModel):
    inner: TopologyUse = TopologyUse(name="single")
    other: TopologyUse | None = None


class Aliased(BaseModel):
    inner: TopologyUse = Field(TopologyUse(name="single"), alias="around")


class Played(RolesConfig[Literal["agent", "judge"]]):
    size: int = Field(2, ge=1, le=9)
    base_url: str = "http://localhost"


def create(config: Any, rollout: Any) -> Single:
    return Single()


@hookimpl
def rollhook_topologies() -> list[TopologySpec]:
    weights = {"agent": 0.5}
    return [
        TopologySpec(name="wrapping", config=Wrapping, create=create),
        TopologySpec(name="aliased", config=Aliased, create=create),
        TopologySpec(name="played", config=Played, create=create, credit="roles", role_weights=weights),
    ]


def resolver(**config: Any) -> Resolver:
    plugins = Plugins(entry_points=[])
    plugins.add("t", SimpleNamespace(rollhook_topologies=rollhook_topologies))
    return Resolver(Registry(plugins, builtin_plugin(builtin, "0")), RunConfig(**config))


def row(topology: Any) -> dict[str, Any]:
    return {"rollhook": {"topology": topology}}


def test_what_a_configuration_names_is_resolved_with_its_own_configuration() -> None:
    choice = (
        resolver().resolve(row({"name": "t/wrapping", "inner": {"name": "t/played", "size": 3}})).topology
    )

    assert {field: inner.name for field, inner in choice.named.items()} == {"inner": "t/played"}
    assert choice.named["inner"].config == Played(size=3)


def test_a_default_and_a_bare_name_are_resolved_too() -> None:
    assert resolver().resolve(row("t/wrapping")).topology.named["inner"].name == "rollhook/single"
    bare = {"name": "t/wrapping", "inner": "t/played"}
    assert resolver().resolve(row(bare)).topology.named["inner"].config == Played()


def test_the_runs_settings_of_the_inner_topology_hold_and_the_row_goes_before_them() -> None:
    made = resolver(settings={"t/played": {"size": 5, "base_url": "http://there"}})
    plain = made.resolve(row({"name": "t/wrapping", "inner": "t/played"})).topology
    sized = made.resolve(row({"name": "t/wrapping", "inner": {"name": "t/played", "size": 1}})).topology

    assert plain.named["inner"].config == Played(size=5, base_url="http://there")
    assert sized.named["inner"].config == Played(size=1, base_url="http://there")


def test_the_outer_topology_has_the_inner_ones_credit() -> None:
    spec = resolver().resolve(row({"name": "t/wrapping", "inner": "t/played"})).topology.spec

    assert isinstance(spec, TopologySpec)
    assert (spec.credit, spec.role_weights) == ("roles", {"agent": 0.5})


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        ("singel", 'topology.inner: no plugin named "singel" is installed; did you mean "single"?'),
        ("t/playd", 'topology.inner: plugin "t" has no topology named "playd"; did you mean "t/played"?'),
        ({"name": "t/played", "size": 0}, "topology.inner.size: expected greater than or equal to 1"),
        ({"name": "t/played", "sise": 3}, 'topology.inner.sise: unknown key; did you mean "size"?'),
        ({"name": "t/wrapping", "inner": "nobody"}, 'topology.inner.inner: no plugin named "nobody"'),
        ({"size": 3}, "topology.inner.name: is required"),
        (3, "topology.inner: expected a name"),
        (
            {"name": "t/played", "base_url": "x"},
            'topology.inner.base_url: a row may not set "base_url"',
        ),
    ],
)
def test_what_is_wrong_inside_is_told_with_its_key(inner: Any, message: str) -> None:
    with pytest.raises(RowError) as raised:
        resolver().resolve(row({"name": "t/wrapping", "inner": inner}))

    assert message in str(raised.value)


def test_a_row_that_names_by_an_alias_is_held_to_the_same_rule() -> None:
    inner = {"name": "t/played", "base_url": "http://there"}
    with pytest.raises(RowError, match='a row may not set "base_url" of t/played'):
        resolver().resolve(row({"name": "t/aliased", "around": inner}))


def test_trusted_rows_may_set_anything_inside() -> None:
    inner = {"name": "t/played", "base_url": "http://there"}
    made = resolver(trust_rows=True).resolve(row({"name": "t/wrapping", "inner": inner}))

    assert made.topology.named["inner"].config == Played(base_url="http://there")


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        ("nobody", r'default.topology\.inner: no plugin named "nobody"'),
        ({"name": "t/played", "size": 0}, r"default.topology\.inner\.size"),
        ({"name": "t/wrapping", "inner": "nobody"}, r"default.topology\.inner\.inner"),
        ({"size": 3}, r'default.topology\.inner: expected a name, or a mapping with "name"'),
    ],
)
def test_what_is_wrong_inside_the_runs_own_configuration_stops_the_run(inner: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolver(default={"topology": {"name": "t/wrapping", "inner": inner}})
    with pytest.raises(ConfigError, match=message.replace("default.topology", "settings.t/wrapping")):
        resolver(settings={"t/wrapping": {"inner": inner}})


def test_a_topology_that_names_itself_for_ever_is_refused() -> None:
    with pytest.raises(RowError, match="more than 4 topologies inside each other"):
        resolver(settings={"t/wrapping": {"inner": "t/wrapping"}}).resolve(row("t/wrapping"))


def test_a_role_of_a_model_the_run_lacks_is_refused() -> None:
    roles = {"judge": {"model": "juge"}}
    with pytest.raises(RowError) as raised:
        resolver(models={"judge": "http://there"}).resolve(row({"name": "t/played", "roles": roles}))

    assert str(raised.value) == (
        'topology.roles.judge.model: the run has no model "juge"; did you mean "judge"?'
    )
