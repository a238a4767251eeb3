"""The README lists every key of every configuration, with its default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rollhook_topologies.hooks import rollhook_topologies

README = Path(__file__).parents[1] / "README.md"
SPECS = {spec.name: spec for spec in rollhook_topologies()}


def documented(name: str) -> dict[str, str]:
    """The keys and defaults in the table under a topology's heading."""
    section = README.read_text(encoding="utf-8").split(f"\n## {name}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| .*? \| (.*?) \|", section, flags=re.MULTILINE)
    return {key: default.strip("`") for key, default in rows}


@pytest.mark.parametrize("name", SPECS)
def test_every_key_is_documented_with_its_default(name: str) -> None:
    table = documented(name)
    fields = SPECS[name].config.model_fields

    assert sorted(table) == sorted(fields)
    for key, default in table.items():
        value = fields[key].get_default(call_default_factory=True)
        shown = "none" if value is None else str(getattr(value, "name", value))
        assert default in (shown, "see the source"), key
