"""Tests of code, run in a real sandbox."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from rollhook.sandbox.bubblewrap import INSTALL
from rollhook.verifiers.code_tests import Case, last_code, read_cases
from tests.unit.verifiers.world import scored, values

needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason=f"bubblewrap is not installed: {INSTALL}"
)

TESTS = ["assert add(2, 2) == 4", "assert add(-1, 1) == 0\nassert add('a', 'b') == 'ab'"]
RIGHT = "def add(a, b):\n    return a + b\n"


def fenced(code: str) -> str:
    return f"Here it is:\n```python\n{code}\n```\nDone."


@needs_bubblewrap
async def test_code_passes_when_every_test_does() -> None:
    results = await scored(
        "code_tests", fenced(RIGHT), fenced(RIGHT.replace("a + b", "int(a) + int(b)")), label=TESTS
    )
    partly = await scored(
        {"name": "code_tests", "partial": True}, fenced("def add(a, b):\n    return 4"), label=TESTS
    )

    assert values(results) == [1.0, 0.0]
    assert values(partly) == [0.5]


@needs_bubblewrap
async def test_code_that_only_looks_right_fails() -> None:
    hacks = [
        "import sys\nsys.exit(0)",
        "import os\nos._exit(0)",
        "print('passed', flush=True)\nimport os\nos.close(1)\nos._exit(0)",
        "raise SystemExit",
        "import atexit, os\natexit.register(lambda: os._exit(0))\nadd = None",
        "AssertionError = BaseException\ndef add(a, b):\n    return 4",
        TESTS[0],
        "while True: pass",
        "x = 'a' * (1 << 34)",
        "def add(a, b:",
    ]
    results = await scored(
        {"name": "code_tests", "timeout_s": 2}, *map(fenced, hacks), RIGHT, "", label=TESTS, concurrency=4
    )

    assert values(results) == [0.0] * (len(hacks) + 2)


@needs_bubblewrap
async def test_programs_are_told_by_what_they_print() -> None:
    label = [{"stdin": "2 2\n", "stdout": "4\n"}, {"stdin": "1 5\n", "stdout": "6"}]
    program = "a, b = map(int, input().split())\nprint(a + b, ' ')"
    results = await scored("code_tests", fenced(program), fenced("print(4)"), label=label)

    assert values(results) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("response", "code"),
    [
        ("```python\na\n```\n```py\nb\n```", "b\n"),
        ("```\na\n```", "a\n"),
        ("```python\na\n```\n```text\nb\n```", "a\n"),
        ("```python\na", None),
        ("a = 1", None),
    ],
)
def test_the_last_closed_python_block_is_the_code(response: str, code: str | None) -> None:
    assert last_code(response) == code
    assert last_code("a = 1", fenced=False) == "a = 1"


def test_a_megabyte_of_fences_that_never_close_is_read_in_one_pass() -> None:
    fences = "```x\n" * 200_000

    assert last_code(fences) is None
    assert last_code(f"{fences}```\n```python\na = 1\n```") == "a = 1\n"


def test_tests_are_python_or_input_and_output() -> None:
    assert read_cases("assert f()") == [Case(code="assert f()")]
    assert read_cases([{"stdin": "1", "stdout": "2"}]) == [Case(stdin="1", stdout="2")]


@pytest.mark.parametrize("label", [None, "", [], 4, {"stdin": "1"}, ["a"] * 201])
def test_a_label_without_tests_is_an_error_of_the_row(label: Any) -> None:
    with pytest.raises(ValueError, match="the label h"):
        read_cases(label)
