"""`rollhook plugins`, `rollhook --version` and `python -m rollhook`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollhook.cli import COMMANDS
from rollhook.version import __version__
from tests.e2e.conftest import Rollhook, rollhook_process

KEYS = [
    *("name", "distribution", "version", "status", "error"),
    *("tools", "environments", "verifiers", "topologies", "sandboxes"),
]
GOOD = """
from rollhook import VerifierSpec, hookimpl

@hookimpl
def rollhook_verifiers():
    return [VerifierSpec(name="length", create=lambda config, rollout: None)]
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two modules with hooks in the working directory: good_for_list and bad_for_list."""
    (tmp_path / "good_for_list.py").write_text(GOOD)
    (tmp_path / "bad_for_list.py").write_text("raise RuntimeError('no GPU')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("good_for_list", None)


@pytest.mark.usefixtures("modules")
def test_the_json_list_has_every_field_and_a_broken_plugin_makes_1(rollhook: Rollhook) -> None:
    result = rollhook("plugins", "--json", "--plugin", "ok=good_for_list", "--plugin", "bad=bad_for_list")

    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert result.exit_code == 1
    assert all(list(row) == KEYS for row in rows.values())
    assert (rows["ok"]["status"], rows["ok"]["error"], rows["ok"]["verifiers"]) == ("ok", None, ["length"])
    assert rows["bad"]["status"] == "broken"
    assert "no GPU" in rows["bad"]["error"]
    assert rows["rollhook"]["topologies"] == ["single"]


@pytest.mark.usefixtures("modules")
def test_a_blocked_plugin_is_named_and_not_listed(rollhook: Rollhook) -> None:
    result = rollhook("plugins", "--json", "--plugin", "bad=bad_for_list", "--block", "bad")

    assert "bad" not in [row["name"] for row in json.loads(result.stdout)]
    assert result.stderr == "blocked: bad\n"


def test_a_typo_in_a_blocked_name_is_refused(rollhook: Rollhook) -> None:
    result = rollhook("plugins", "--block", "debat")

    assert result.exit_code == 2
    assert 'block: no plugin is named "debat"; did you mean "debate"' in result.stderr


@pytest.mark.usefixtures("modules")
def test_the_table_shows_what_each_provides_and_why_one_is_broken(rollhook: Rollhook) -> None:
    result = rollhook("plugins", "--plugin", "ok=good_for_list", "--plugin", "bad=bad_for_list")

    assert "verifiers length" in result.stdout
    assert "broken  plugin" in result.stdout
    assert "no GPU" in result.stdout


def test_the_module_is_the_command() -> None:
    with rollhook_process("--version") as process:
        stdout, stderr = process.communicate(timeout=60)

    assert (process.returncode, stdout, stderr) == (0, f"rollhook {__version__}\n", "")


def test_help_lists_the_commands_in_the_order_of_use(rollhook: Rollhook) -> None:
    lines = rollhook("--help").stdout.partition("Commands:\n")[2].splitlines()

    assert [line.split()[0] for line in lines] == list(COMMANDS)
