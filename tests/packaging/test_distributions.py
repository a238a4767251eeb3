"""Plugins as users get them: built and installed by pip, found through entry points by a new process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DISTS = Path(__file__).parent / "dists"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with every distribution of `dists/` installed, without their dependencies."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--no-build-isolation", "--disable-pip-version-check", "--target", str(target)]
    command += [str(path) for path in sorted(DISTS.iterdir())]
    subprocess.run(command, check=True, timeout=170)
    return target


def rollhook(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rollhook", *arguments],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def python(site: Path, source: str) -> Any:
    """What `source` prints, read as JSON."""
    result = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return json.loads(result.stdout)


def described(site: Path) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    result = rollhook(site, "plugins", "--json")
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in json.loads(result.stdout):
        rows.setdefault(row["name"], []).append(row)
    return result.returncode, rows


def test_installed_plugins_are_listed_with_what_they_provide_and_what_broke_them(site: Path) -> None:
    code, rows = described(site)

    assert code == 1
    assert [row["status"] for name in ("garden", "adder", "strict", "pair") for row in rows[name]] == [
        "ok"
    ] * 4
    assert rows["garden"][0] == {
        "name": "garden",
        "distribution": "rollhook-garden",
        "version": "1.0",
        "status": "ok",
        "error": None,
        "tools": [],
        "environments": ["garden"],
        "verifiers": ["ripe"],
        "topologies": [],
        "sandboxes": [],
    }
    assert [row["distribution"] for row in rows["die"]] == ["die-a", "die-b"]
    for row in rows["die"]:
        assert row["status"] == "broken"
        assert "die-a 1.0 (die_a.hooks) and die-b 2.0 (die_b.hooks)" in row["error"]
    assert "it needs rollhook >=9, and rollhook " in rows["future"][0]["error"]
    assert "ModuleNotFoundError: No module named 'a_module_that_nobody_has'" in rows["torn"][0]["error"]
    assert next(iter(rows)) == "rollhook"


def test_one_row_takes_its_pieces_from_four_distributions_and_imports_no_other(site: Path) -> None:
    found = python(
        site,
        """
import json, sys
from rollhook import builtin
from rollhook.config import RunConfig
from rollhook.plugins import Plugins, builtin_plugin
from rollhook.registry import Registry
from rollhook.spec import Resolver

resolver = Resolver(Registry(Plugins(), builtin_plugin(builtin, "0")), RunConfig())
before = sorted(name for name in sys.modules if name.endswith(".hooks"))
row = {"environment": {"name": "garden", "beds": 3}, "tools": "adder"}
row |= {"verifier": "strict", "topology": "pair"}
made = resolver.resolve({"rollhook": row})
names = [made.environment.name, made.tools[0].name, made.verifiers[0].name, made.topology.name]
other = resolver.resolve({"rollhook": "garden"})
print(json.dumps({
    "before": before,
    "names": names,
    "beds": made.environment.config.beds,
    "other": [other.environment.name, other.verifiers[0].name, other.topology.name],
    "after": sorted(name for name in sys.modules if name.endswith(".hooks")),
}))
""",
    )

    assert found == {
        "before": [],
        "names": ["garden/garden", "adder/adder", "strict/strict", "pair/pair"],
        "beds": 3,
        "other": ["garden/garden", "garden/ripe", "rollhook/single"],
        "after": [f"rollhook_{name}.hooks" for name in ("adder", "garden", "pair", "strict")],
    }


def test_check_names_each_row_that_cannot_run_and_why(site: Path, tmp_path: Path) -> None:
    specs = [
        {"environment": "garden", "tools": ["adder"], "verifier": "strict", "topology": "pair"},
        {"environment": "gardn"},
        {"tools": "die"},
        {"tools": "future"},
        {"tools": "torn"},
        {"environment": {"name": "garden", "map_file": "/etc/passwd"}},
    ]
    data = tmp_path / "data.jsonl"
    data.write_text(
        "".join(json.dumps({"prompt": "?", "metadata": {"rollhook": spec}}) + "\n" for spec in specs)
    )
    result = rollhook(site, "check", str(data))
    lines = [line.removeprefix(f"{data}:") for line in result.stdout.splitlines()]

    assert result.returncode == 1
    assert [line.split(":")[0] for line in lines] == ["2", "3", "4", "5", "6"]
    assert lines[0] == '2: environment: no plugin named "gardn" is installed; did you mean "garden"?'
    assert 'plugin "die" has more than one owner: die-a 1.0 (die_a.hooks) and die-b 2.0' in lines[1]
    assert "it needs rollhook >=9" in lines[2]
    assert "importing rollhook_torn.hooks raised ModuleNotFoundError" in lines[3]
    assert 'a row may not set "map_file" of garden/garden (it holds a path)' in lines[4]


def test_blocking_a_plugin_takes_it_away_and_nothing_else(site: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"prompt": "?", "metadata": {"rollhook": {"tools": "adder"}}}))
    blocked = rollhook(site, "check", str(data), "--block", "adder")

    assert rollhook(site, "check", str(data)).returncode == 0
    assert blocked.returncode == 1
    assert 'tools[0]: plugin "adder" is blocked by this run' in blocked.stdout
