import os
import stat
from pathlib import Path

APP = Path("/app")
KEPT = {"1.10.1", "1.10.0", "1.9.3"}


def test_only_the_newest_three_are_left() -> None:
    assert {path.name for path in (APP / "releases").iterdir()} == KEPT


def test_current_is_a_relative_link_to_the_newest() -> None:
    assert os.readlink(APP / "current").rstrip("/") in {"releases/1.10.1", "./releases/1.10.1"}


def test_programs_can_be_run_by_everybody() -> None:
    for version in KEPT:
        assert stat.S_IMODE((APP / "releases" / version / "run").stat().st_mode) & 0o111 == 0o111


def test_nothing_else_changed() -> None:
    for version in KEPT:
        folder = APP / "releases" / version
        assert {path.name for path in folder.iterdir()} == {"run", "NOTES"}
        assert (folder / "run").read_text() == f"#!/bin/sh\necho {version}\n"
        assert (folder / "NOTES").read_text() == f"notes of {version}\n"
    assert {path.name for path in APP.iterdir()} == {"releases", "current"}
