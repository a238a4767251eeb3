"""`boundary` attributes foreign errors once, and lets rollhook's own and cancellation through."""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rollhook.errors import EngineUnavailable, LimitReached, ToolError, TopologyError, boundary, raised_at
from rollhook.opened import OpenTopology

NOTHING: Any = None


async def test_a_plain_error_is_attributed_to_its_owner() -> None:
    with pytest.raises(ToolError) as caught:
        async with boundary(ToolError, "calculator/calculator"):
            raise ZeroDivisionError("division by zero")

    error = caught.value
    assert (str(error), error.stage, error.plugin, error.cause_type) == (
        "calculator/calculator: ZeroDivisionError: division by zero",
        "tool",
        "calculator/calculator",
        "ZeroDivisionError",
    )
    assert isinstance(error.__cause__, ZeroDivisionError)


async def test_an_error_without_a_message_says_so() -> None:
    with pytest.raises(ToolError, match="x/y: ValueError: no message"):
        async with boundary(ToolError, "x/y"):
            raise ValueError


async def test_rollhooks_own_errors_are_not_attributed_again() -> None:
    original = EngineUnavailable("connection refused")

    with pytest.raises(EngineUnavailable) as caught:
        async with boundary(TopologyError, "debate/debate"):
            raise original

    assert caught.value is original


async def test_signals_pass_through() -> None:
    with pytest.raises(LimitReached, match="max_turns"):
        async with boundary(TopologyError, "debate/debate"):
            raise LimitReached("max_turns")


async def test_cancellation_passes_through() -> None:
    with pytest.raises(asyncio.CancelledError):
        async with boundary(TopologyError, "debate/debate"):
            raise asyncio.CancelledError


async def test_a_plugin_that_exits_fails_alone() -> None:
    with pytest.raises(ToolError, match="shell/run: SystemExit: 3") as caught:
        async with boundary(ToolError, "shell/run"):
            sys.exit(3)

    assert caught.value.cause_type == "SystemExit"


async def test_of_a_task_group_the_first_failure_counts() -> None:
    async def fail() -> None:
        raise EngineUnavailable("connection refused")

    async def run() -> None:
        async with boundary(TopologyError, "debate/debate"), asyncio.TaskGroup() as group:
            group.create_task(fail())

    with pytest.raises(EngineUnavailable, match="connection refused"):
        await run()


async def test_a_plain_error_inside_a_task_group_keeps_its_own_name() -> None:
    async def fail() -> None:
        raise KeyError("answer")

    async def run() -> None:
        async with boundary(TopologyError, "debate/debate"), asyncio.TaskGroup() as group:
            group.create_task(fail())

    with pytest.raises(TopologyError, match="debate/debate: KeyError: 'answer'"):
        await run()


def topology(source: str, name: str, path: str) -> OpenTopology:
    """A topology whose `run` is that of a module with this source, name and path."""
    module = ModuleType(name)
    exec(compile(source, path, "exec"), module.__dict__)
    return OpenTopology("game/game", SimpleNamespace(run=module.run))


PARSING = """
import json
def parse(text):
    return json.loads(text)
async def run(rollout):
    parse("no json")
"""


@pytest.mark.parametrize(
    ("name", "path", "where"),
    [
        ("game", "/home/ann/game.py", "game.py:4 in parse"),
        ("chess.rules.moves", "/site-packages/chess/rules/moves.py", "chess/rules/moves.py:4 in parse"),
        ("chess", "/site-packages/chess/__init__.py", "chess/__init__.py:4 in parse"),
        ("__main__", "/home/ann/play.py", "play.py:4 in parse"),
    ],
)
async def test_an_error_says_where_its_plugin_was_and_not_where_in_a_library(
    name: str, path: str, where: str
) -> None:
    with pytest.raises(TopologyError) as caught:
        await topology(PARSING, name, path).run(NOTHING)

    assert (caught.value.cause_type, caught.value.where) == ("JSONDecodeError", where)


async def test_the_place_is_that_of_the_failure_in_a_task_group_which_counts() -> None:
    source = """
import asyncio
async def fail():
    raise OSError("gone")
async def run(rollout):
    async with asyncio.TaskGroup() as group:
        group.create_task(fail())
"""
    with pytest.raises(TopologyError) as caught:
        await topology(source, "game", "game.py").run(NOTHING)

    assert caught.value.where == "game.py:4 in fail"


async def test_an_error_of_the_core_is_placed_where_the_plugin_caused_it() -> None:
    source = """
from rollhook.opened import as_score
async def run(rollout):
    as_score(float("nan"))
"""
    with pytest.raises(TopologyError) as caught:
        await topology(source, "game", "game.py").run(NOTHING)

    assert caught.value.where == "game.py:4 in run"


async def test_what_no_plugin_raised_has_no_place() -> None:
    with pytest.raises(TopologyError, match="must return Outcome") as caught:
        await topology("async def run(rollout):\n    return 3\n", "game", "game.py").run(NOTHING)

    assert (caught.value.where, raised_at(ToolError("not raised"))) == (None, None)
