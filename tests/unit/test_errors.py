"""`boundary` attributes foreign errors once, and lets rollhook's own and cancellation through."""

from __future__ import annotations

import asyncio
import sys

import pytest

from rollhook.errors import EngineUnavailable, LimitReached, ToolError, TopologyError, boundary


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
