"""Whole rollouts on a site: a real engine wire, a real Chromium, and what they leave behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from rollhook import (
    Defaults,
    EnvironmentSpec,
    Plugins,
    ResourceError,
    Run,
    RunConfig,
    Runtime,
    Sample,
    Status,
    VerifierSpec,
    hookimpl,
    run_rollout,
)
from rollhook.testing import Reply, ScriptedEngine, ScriptedRequest
from rollhook_browser.config import BrowserConfig, PagesConfig
from rollhook_browser.environment import BrowserEnvironment
from rollhook_browser.pool import World, open_world
from rollhook_browser.reward import AnswerReward

pytestmark = pytest.mark.usefixtures("chromium")
SEEN = "```\nnoop(1)\n```"
ANSWER = 'It says so.\n\n```\nsend_msg_to_user("  Forty-TWO ")\n```'


@asynccontextmanager
async def site() -> AsyncIterator[str]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="<title>Answer</title><p>forty-two</p>", content_type="text/html")

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def run_of(tokenizer: Any, script: Any, worlds: list[World]) -> AsyncIterator[Runtime]:
    """A run whose plugin tells the test of the worlds it opens."""

    @asynccontextmanager
    async def tell(config: BrowserConfig, run: Run) -> AsyncIterator[World]:
        async with open_world(config, run) as world:
            worlds.append(world)
            yield world

    @hookimpl
    def rollhook_environments() -> list[EnvironmentSpec]:
        return [
            EnvironmentSpec(
                name="browser",
                config=PagesConfig,
                open=tell,
                create=partial(BrowserEnvironment, form="text"),
                defaults=Defaults(verifier="browser/browser"),
            )
        ]

    @hookimpl
    def rollhook_verifiers() -> list[VerifierSpec]:
        return [VerifierSpec(name="browser", create=AnswerReward)]

    plugins = Plugins(entry_points=[])
    hooks = {"rollhook_environments": rollhook_environments, "rollhook_verifiers": rollhook_verifiers}
    plugins.add("browser", SimpleNamespace(**hooks))
    async with site() as url, ScriptedEngine(tokenizer, script) as engine:
        settings = {"browser/browser": {"start_url": url, "settle_ms": 0}}
        config = RunConfig(engine=engine.url, settings=settings, retries=0, concurrency=8)
        async with Runtime(config, plugins=plugins, tokenizer=tokenizer) as runtime:
            yield runtime


def row(index: int, label: Any = "forty-two") -> Sample:
    return Sample(index=index, prompt="What does it say?", label=label, metadata={"rollhook": "browser"})


def browsers() -> Iterator[int]:
    """The living main processes of browsers that descend from this process."""
    parents: dict[int, tuple[int, str]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = stat.read_text().rpartition(")")
            parents[int(head.split()[0])] = int(rest.split()[1]), rest.split()[0]
        except OSError:
            continue  # it has ended
    for process, (_, state) in parents.items():
        above = process
        while above in parents and above != os.getpid():
            above = parents[above][0]
        if above == os.getpid() and process != above and state != "Z" and _is_browser(process):
            yield process


def _is_browser(process: int) -> bool:
    try:
        command = Path(f"/proc/{process}/cmdline").read_text().split("\0")
    except OSError:
        return False
    return "--remote-debugging-pipe" in command and not any(word.startswith("--type=") for word in command)


async def test_an_answer_is_sent_and_scored(smollm2_tokenizer: Any) -> None:
    worlds: list[World] = []
    async with run_of(smollm2_tokenizer, [SEEN, ANSWER, ANSWER], worlds) as runtime:
        [right] = await run_rollout(runtime, row(0), {})
        [wrong] = await run_rollout(runtime, row(1, ["41", 43]), {})

    info = right.metadata["rollhook_result"]["environment"]["info"]
    assert (right.status, right.reward) == (Status.COMPLETED, 1.0)
    assert (wrong.status, wrong.reward) == (Status.COMPLETED, 0.0)
    assert (info["message"], info["actions"], info["errors"]) == ("  Forty-TWO ", 2, 0)
    assert len(worlds) == 1
    assert list(browsers()) == []


async def test_a_browser_that_dies_fails_its_rollout_and_the_next_gets_a_new_one(
    smollm2_tokenizer: Any,
) -> None:
    killed: list[int] = []

    def model(request: ScriptedRequest) -> str:
        if not killed:
            killed.extend(browsers())
            for process in killed:
                os.kill(process, signal.SIGKILL)
            return SEEN
        return ANSWER

    worlds: list[World] = []
    async with run_of(smollm2_tokenizer, model, worlds) as runtime:
        [failed] = await run_rollout(runtime, row(0), {})
        [after] = await run_rollout(runtime, row(1), {})
        again = list(browsers())

    error = failed.metadata["rollhook_result"]["error"]
    assert failed.status is Status.FAILED
    assert (error["stage"], error["plugin"], error["type"]) == (
        "environment",
        "browser/browser",
        "BrowserEnded",
    )
    assert error["message"].endswith("the browser ended in the middle of the rollout")
    assert (after.status, after.reward) == (Status.COMPLETED, 1.0)
    assert killed
    assert again
    assert not set(killed) & set(again)
    assert len(worlds) == 1


async def test_of_eight_at_once_half_cancelled_nothing_stays(smollm2_tokenizer: Any) -> None:
    """Four are cancelled at different points: while they open, and while their model thinks."""
    thinking = asyncio.Event()

    def model(request: ScriptedRequest) -> Reply:
        thinking.set()
        kept = re.search(r"Question (\d)", request.prompt)
        assert kept is not None
        return Reply(ANSWER, delay_s=0.0 if int(kept[1]) < 4 else 60.0)

    worlds: list[World] = []
    async with run_of(smollm2_tokenizer, model, worlds) as runtime:
        samples = [row(index) for index in range(8)]
        for sample in samples:
            sample.prompt = f"Question {sample.index}: what does it say?"
        tasks = [asyncio.create_task(run_rollout(runtime, sample, {})) for sample in samples]
        await asyncio.sleep(0)
        tasks[4].cancel()
        await thinking.wait()
        for task in tasks[5:]:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        pool = worlds[0].pool
        contexts = (await pool.browser()).contexts
        free = [pool.places.locked(), *(await take_all(pool.places))]

    outcomes = ["cancelled" if isinstance(one, BaseException) else one[0].reward for one in ended]
    assert outcomes == [1.0, 1.0, 1.0, 1.0, *["cancelled"] * 4]
    assert contexts == []
    assert free == [False] + [True] * 8
    assert list(browsers()) == []


async def take_all(places: asyncio.Semaphore) -> list[bool]:
    """Whether each of eight places can be taken at once."""
    taken = []
    for _ in range(8):
        taken.append(not places.locked())
        if taken[-1]:
            await places.acquire()
    return taken


async def test_no_browser_installed_says_how_to_get_one(smollm2_tokenizer: Any, tmp_path: Path) -> None:
    program = tmp_path / "chromium"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    config = PagesConfig.model_validate({"start_url": "http://127.0.0.1:9/", "chromium": str(program)})
    async with Runtime(RunConfig(), plugins=Plugins(entry_points=[])).scoring() as run:
        with pytest.raises(
            ResourceError, match=r"browser/chromium: RuntimeError: .*chromium did not start: "
        ):
            async with open_world(config, run):
                pass
