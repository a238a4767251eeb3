"""A real Chromium, or a skip that says how to get one."""

from __future__ import annotations

import shutil

import pytest


@pytest.fixture(scope="session")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium is installed: apt-get install --no-install-recommends chromium")
    return found
