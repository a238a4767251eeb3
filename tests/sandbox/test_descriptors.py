"""Descriptors lose nothing and hold nobody up."""

from __future__ import annotations

import asyncio
import os

import pytest

from rollhook.sandbox.descriptors import Descriptor, pipe


async def test_a_read_that_is_cancelled_has_taken_nothing() -> None:
    source, target = pipe(host_reads=True)
    os.write(target, b"kept")
    for steps in range(3):
        task = asyncio.create_task(source.read())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        taken = (await asyncio.gather(task, return_exceptions=True))[0]
        if taken == b"kept":
            os.write(target, b"kept")

    assert await source.read() == b"kept"
    os.close(target)
    source.close()


async def test_a_flood_leaves_the_loop_to_others() -> None:
    source, target = pipe(host_reads=True)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    beside = asyncio.create_task(other())
    for _ in range(50):
        os.write(target, b"x" * 1000)
        await source.read()
    beside.cancel()
    os.close(target)
    source.close()

    assert turns >= 40


async def test_what_is_written_to_a_closed_reader_is_a_broken_pipe() -> None:
    target, source = pipe(host_reads=False)
    os.close(source)
    with pytest.raises(BrokenPipeError):
        await target.write(b"x")
    target.close()


async def test_a_closed_descriptor_stays_closed() -> None:
    source, target = pipe(host_reads=True)
    source.close()
    source.close()
    os.close(target)
    with pytest.raises(OSError, match="closed"):
        await source.read()
    assert isinstance(source, Descriptor)
