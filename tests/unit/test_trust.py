"""What a row may not set: by mark, by type, by name, and however deep it lies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pytest
from pydantic import (
    AnyUrl,
    BaseModel,
    ConfigDict,
    DirectoryPath,
    Field,
    FilePath,
    HttpUrl,
    ImportString,
    Json,
    PostgresDsn,
    Secret,
    SecretBytes,
    SecretStr,
    create_model,
)
from typing_extensions import TypeAliasType, TypedDict

from rollhook.hookspecs import RowMay, RunOnly
from rollhook.trust import refused

Where = TypeAliasType("Where", Path | str)


class Pair(NamedTuple):
    name: str
    where: Path


def model_of(annotation: Any) -> type[BaseModel]:
    return create_model("Config", value=(annotation, None))


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        (Path, "it holds a path"),
        (FilePath, "it holds a path"),
        (DirectoryPath | None, "it holds a path"),
        (list[Path], "it holds a path"),
        (dict[str, list[Path]], "it holds a path"),
        (Where, "it holds a path"),
        (list[Where] | None, "it holds a path"),
        (Pair, "it holds a path"),
        (AnyUrl, "it holds a URL"),
        (HttpUrl | None, "it holds a URL"),
        (PostgresDsn, "it holds a URL"),
        (SecretStr, "it holds a secret"),
        (SecretBytes, "it holds a secret"),
        (Secret[int], "it holds a secret"),
        (bytes, "it holds bytes"),
        (tuple[bytes, ...], "it holds bytes"),
        (Callable[[int], int], "it holds code"),
        (ImportString, "it names code to import"),
        (Json, "it holds JSON text, which is not looked into"),
        (Annotated[int, RunOnly()], "it is marked run-only"),
        (list[Annotated[int, RunOnly()]], "it is marked run-only"),
        (Annotated[int, RunOnly], "it is marked run-only"),
        (Annotated[Path, RowMay()], "it holds a path"),  # the mark is about names
        (int, None),
        (str | None, None),
        (list[dict[str, float]], None),
        (Any, None),
    ],
)
def test_a_field_is_judged_by_its_type(annotation: Any, reason: str | None) -> None:
    found = refused(model_of(annotation), {"value": "x"})

    assert found == (None if reason is None else (("value",), reason))


@pytest.mark.parametrize(
    "name", ["api_key", "base_url", "corpus", "wiki_index", "Image", "cache_dir", "data_files"]
)
def test_a_field_is_judged_by_the_words_of_its_name(name: str) -> None:
    config = create_model("Config", **{name: (str, "")})  # type: ignore[call-overload]  # names made at run time

    found = refused(config, {name: "x"})

    assert found is not None
    assert found[0] == (name,)
    assert found[1].startswith('its name says "')


@pytest.mark.parametrize("name", ["max_tokens", "keyword", "directions", "imagery", "ports", "level"])
def test_a_word_is_a_whole_word(name: str) -> None:
    config = create_model("Config", **{name: (str, "")})  # type: ignore[call-overload]  # names made at run time

    assert refused(config, {name: "x"}) is None


def test_a_mark_lets_a_row_set_a_field_in_spite_of_its_name() -> None:
    class Config(BaseModel):
        answer_key: Annotated[str, RowMay()] = ""
        options: Annotated[dict[str, Any], RowMay()] = Field(default_factory=dict)

    assert refused(Config, {"answer_key": "B", "options": {"index": 1, "deep": [{"path": 2}]}}) is None


def test_nested_models_are_looked_into() -> None:
    class Server(BaseModel):
        name: str = ""
        url: str = ""

    @dataclasses.dataclass
    class Disk:
        size: int
        path: str

    class Box(TypedDict):
        size: int
        image: str

    class Config(BaseModel):
        server: Server | None = None
        servers: list[Server] = []
        named: dict[str, Server] = {}
        either: int | Server = 0
        disk: Disk | None = None
        box: Box | None = None

    reason = 'its name says "url"'
    assert refused(Config, {"server": {"name": "a"}}) is None
    assert refused(Config, {"server": {"url": "a"}}) == (("server", "url"), reason)
    assert refused(Config, {"servers": [{"name": "a"}, {"url": "a"}]}) == (("servers", 1, "url"), reason)
    assert refused(Config, {"named": {"x": {"url": "a"}}}) == (("named", "x", "url"), reason)
    assert refused(Config, {"either": {"url": "a"}}) == (("either", "url"), reason)
    assert refused(Config, {"disk": {"size": 1, "path": "a"}}) == (("disk", "path"), 'its name says "path"')
    assert refused(Config, {"box": {"size": 1, "image": "a"}}) == (("box", "image"), 'its name says "image"')


def test_keys_of_free_form_fields_are_judged_by_name() -> None:
    class Config(BaseModel):
        options: dict[str, Any] = {}
        anything: Any = None

    assert refused(Config, {"options": {"level": 3}, "anything": [{"x": 1}]}) is None
    assert refused(Config, {"options": {"data": {"path": "/etc"}}}) == (
        ("options", "data", "path"),
        'its name says "path"',
    )
    assert refused(Config, {"anything": [{"host": "a"}]}) == (("anything", 0, "host"), 'its name says "host"')


def test_extra_keys_that_a_model_allows_are_judged_by_name() -> None:
    class Config(BaseModel):
        model_config = ConfigDict(extra="allow")

    assert refused(Config, {"level": 3}) is None
    assert refused(Config, {"image": "x"}) == (("image",), 'its name says "image"')


def test_an_alias_does_not_get_around_a_field() -> None:
    class Config(BaseModel):
        model_config = ConfigDict(populate_by_name=True)

        where: Path = Field(Path(), alias="w")

    assert refused(Config, {"w": "x"}) == (("w",), "it holds a path")
    assert refused(Config, {"where": "x"}) == (("where",), "it holds a path")
