"""How a run chooses its sandbox, and how plugins get one."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollhook import (
    ConfigError,
    Plugins,
    ResourceError,
    Rollout,
    RunConfig,
    Runtime,
    Sample,
    Sandbox,
    SandboxSpec,
    Status,
    ToolResult,
    ToolSpec,
    hookimpl,
    run_rollout,
)
from rollhook.testing import Reply, ScriptedEngine

CALL = '<tool_call>\n{"name": "sh", "arguments": {"line": "LINE"}}\n</tool_call>'
HELD: list[Sandbox] = []


class Shell:
    """A tool with a sandbox of its rollout's."""

    name, description = "sh", "Runs a line of shell."
    parameters: dict[str, Any] = {"type": "object", "properties": {"line": {"type": "string"}}}

    def __init__(self, config: object, rollout: Rollout) -> None:
        self.rollout = rollout

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        sandbox = self.rollout.shared.get("shell/sandbox")
        if sandbox is None:
            sandbox = self.rollout.shared["shell/sandbox"] = await self.rollout.sandbox()
            HELD.append(sandbox)
        return ToolResult((await sandbox.exec(["sh", "-c", arguments["line"]])).stdout.decode())


@hookimpl
def rollhook_tools() -> list[ToolSpec]:
    return [ToolSpec(name="sh", create=Shell)]


def plugins(**hooks: Any) -> Plugins:
    found = Plugins(entry_points=[])
    found.add("shell", SimpleNamespace(rollhook_tools=rollhook_tools, **hooks))
    return found


async def rollout(tokenizer: Any, script: list[Any], *, spec: Any = None, **config: Any) -> Sample:
    HELD.clear()
    row = Sample(index=0, prompt="Hi", label="x", metadata={"rollhook": spec or {"tools": "shell/sh"}})
    async with ScriptedEngine(tokenizer, script) as engine:
        settings = RunConfig(engine=engine.url, tool_parser="qwen25", retries=0, **config)
        async with Runtime(settings, plugins=plugins(), tokenizer=tokenizer) as runtime:
            [sample] = await run_rollout(runtime, row, {})
    return sample


async def is_closed(sandbox: Sandbox) -> bool:
    try:
        await sandbox.exec(["true"])
    except ConnectionError:
        return True
    return False


@pytest.mark.parametrize("backend", ["rollhook/bubblewrap", "rollhook/unsafe-subprocess"])
async def test_a_rollouts_sandbox_keeps_its_files_and_is_closed_with_it(
    qwen3_tokenizer: Any, backend: str
) -> None:
    script = [CALL.replace("LINE", "echo milk > list"), CALL.replace("LINE", "cat list"), "done"]
    sample = await rollout(qwen3_tokenizer, script, sandbox=backend)

    assert sample.status == Status.COMPLETED
    assert "<tool_response>\nmilk\n" in sample.response
    assert [await is_closed(sandbox) for sandbox in HELD] == [True]


async def test_a_cancelled_rollout_closes_its_sandbox(qwen3_tokenizer: Any) -> None:
    script = [CALL.replace("LINE", "echo hi"), Reply("late", delay_s=60)]
    task = asyncio.create_task(rollout(qwen3_tokenizer, script))
    async with asyncio.timeout(60):
        while not HELD:
            await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [await is_closed(sandbox) for sandbox in HELD] == [True]


async def test_limits_come_from_the_run_configuration(qwen3_tokenizer: Any) -> None:
    settings = {"rollhook/bubblewrap": {"file_mb": 1}}
    script = [CALL.replace("LINE", "ulimit -f; bash -c 'ulimit -u'"), "done"]
    sample = await rollout(qwen3_tokenizer, script, settings=settings)

    assert "<tool_response>\n2048\n65\n" in sample.response


async def test_a_row_cannot_choose_a_sandbox(qwen3_tokenizer: Any) -> None:
    spec = {"tools": "shell/sh", "sandbox": "rollhook/unsafe-subprocess"}
    sample = await rollout(qwen3_tokenizer, ["x"], spec=spec)

    assert sample.status == Status.FAILED
    assert "sandbox: unknown key" in sample.metadata["rollhook_result"]["error"]["message"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"sandbox": "rollhook/bubblewarp"}, 'did you mean "rollhook/bubblewrap"'),
        ({"sandbox": "nowhere"}, 'sandbox: no plugin named "nowhere"'),
        ({"settings": {"rollhook/bubblewrap": {"memory_gb": 1}}}, 'did you mean "memory_mb"'),
        ({"settings": {"rollhook/bubblewrap": {"memory_mb": 0}}}, "memory_mb"),
    ],
)
def test_a_wrong_choice_stops_the_run(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Runtime(RunConfig(engine="http://127.0.0.1:1", **config), plugins=plugins())


def on_path(folder: Path, bwrap: str | None) -> str:
    """A PATH with the system's programs, and with `bwrap` as a script of that text, or without one."""
    for program in ("setpriv", "sh"):
        (folder / program).symlink_to(f"/usr/bin/{program}")
    if bwrap is not None:
        (folder / "bwrap").write_text(f"#!/bin/sh\n{bwrap}\n")
        (folder / "bwrap").chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(
    ("bwrap", "message"),
    [
        (
            None,
            "needs bwrap, which is not installed; try: apt-get install --no-install-recommends bubblewrap",
        ),
        (
            "echo 'bwrap: No permissions to create new namespace' >&2; exit 1",
            "--security-opt seccomp=unconfined",
        ),
        ("exit 1", "cannot start a sandbox: the sandbox ended; see that `bwrap` works"),
    ],
)
async def test_where_bubblewrap_cannot_run_a_rollout_fails_and_says_what_to_do(
    qwen3_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bwrap: str | None, message: str
) -> None:
    monkeypatch.setenv("PATH", on_path(tmp_path, bwrap))
    sample = await rollout(qwen3_tokenizer, [CALL.replace("LINE", "true"), "done"])

    assert sample.status == Status.FAILED
    assert message in sample.metadata["rollhook_result"]["error"]["message"]


async def test_a_package_that_is_not_installed_is_named(qwen3_tokenizer: Any) -> None:
    async with ScriptedEngine(qwen3_tokenizer, []) as engine:
        config = RunConfig(engine=engine.url)
        runtime = Runtime(config, plugins=plugins(), tokenizer=qwen3_tokenizer)
        async with runtime:
            sandbox = await runtime.sandbox(packages=["no-such-package"])
            with pytest.raises(ConfigError, match="needs the package no-such-package: try: pip install"):
                await sandbox.exec(["true"])


async def test_a_plugins_backend_can_take_the_place(qwen3_tokenizer: Any) -> None:
    asked: list[object] = []

    def create(config: object, packages: object) -> Any:
        asked.append(packages)
        raise LookupError("no room")

    hooks = {"rollhook_sandboxes": hookimpl(lambda: [SandboxSpec(name="vm", create=create)])}
    row = Sample(index=0, prompt="Hi", label="x", metadata={"rollhook": {"tools": "shell/sh"}})
    async with ScriptedEngine(qwen3_tokenizer, [CALL.replace("LINE", "true")]) as engine:
        config = RunConfig(engine=engine.url, tool_parser="qwen25", sandbox="shell/vm")
        async with Runtime(config, plugins=plugins(**hooks), tokenizer=qwen3_tokenizer) as runtime:
            [sample] = await run_rollout(runtime, row, {})

    assert asked == [()]
    error = sample.metadata["rollhook_result"]["error"]
    assert (error["stage"], error["plugin"]) == ("open", "shell/vm")
    assert error["message"] == "shell/vm: LookupError: no room"


async def test_a_backend_without_images_says_what_to_do(qwen3_tokenizer: Any) -> None:
    config = RunConfig(engine="http://127.0.0.1:9")
    async with Runtime(config, plugins=plugins(), tokenizer=qwen3_tokenizer) as runtime:
        with pytest.raises(ResourceError) as raised:
            await runtime.sandbox(image="debian:12")

    assert str(raised.value) == (
        "the container image debian:12 is needed, and the sandbox backend rollhook/bubblewrap has no images: "
        "set `sandbox` in the run configuration to one that has, as docker of rollhook-docker"
    )


async def test_a_backend_with_images_is_told_which(qwen3_tokenizer: Any) -> None:
    asked: list[object] = []

    def refuse(config: object, packages: object, image: object = None) -> Any:
        asked.append((packages, image))
        raise LookupError("no room")

    spec = SandboxSpec(name="vm", create=refuse, from_image=refuse)
    hooks = {"rollhook_sandboxes": hookimpl(lambda: [spec])}
    config = RunConfig(engine="http://127.0.0.1:9", sandbox="shell/vm")
    async with Runtime(config, plugins=plugins(**hooks), tokenizer=qwen3_tokenizer) as runtime:
        for image in (None, "debian:12"):
            with pytest.raises(ResourceError, match="no room"):
                await runtime.sandbox(packages=["numpy"], image=image)

    assert asked == [(("numpy",), None), (("numpy",), "debian:12")]


def test_no_host_variable_reaches_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    from rollhook.sandbox import SandboxLimits
    from rollhook.sandbox.bubblewrap import Bubblewrap

    monkeypatch.setenv("SECRET_TOKEN", "hunter2")

    assert os.environ["SECRET_TOKEN"] not in repr(Bubblewrap(SandboxLimits()).environment)
