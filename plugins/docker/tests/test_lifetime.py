"""Containers start, say why when they do not, and are gone with whoever started them."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rollhook import ConfigError, Plugins, ResourceError, RunConfig, Runtime, sandbox_owner
from rollhook.cli import main
from rollhook_docker.config import DockerConfig
from rollhook_docker.engine import Engine, open_engine
from rollhook_docker.sandbox import DockerSandbox, create

pytestmark = pytest.mark.asyncio(loop_scope="module")
MakeSandbox = Callable[..., Awaitable[DockerSandbox]]
ENTRY_POINT = EntryPoint("docker", "rollhook_docker.hooks", "rollhook.plugins")
NO_RUN: Any = None


async def running(engine: Engine, name: str) -> bool:
    code, out, err = await engine.call("ps", "--all", "--quiet", "--filter", f"name={name}")
    assert code == 0, err
    return bool(out.strip())


async def until_gone(engine: Engine, name: str) -> None:
    async with asyncio.timeout(30):
        while await running(engine, name):
            await asyncio.sleep(0.05)


async def test_closed_it_is_gone_with_its_volume(engine: Engine) -> None:
    _, before, _ = await engine.call("volume", "ls", "--quiet")
    sandbox = create(engine, ())
    container = await sandbox.open()
    assert await running(engine, container.name)
    process = await sandbox.start(["sh", "-c", "echo begun; sleep 1000"])
    assert await process.read() == b"begun\n"
    await sandbox.close()
    await sandbox.close()
    await until_gone(engine, container.name)
    _, after, _ = await engine.call("volume", "ls", "--quiet")

    assert set(after.split()) <= set(before.split())
    with pytest.raises(ConnectionError, match="the sandbox is closed"):
        await sandbox.exec(["true"])


async def test_what_nobody_closed_is_gone_with_the_run(engine: Engine, settings: dict[str, Any]) -> None:
    async with open_engine(DockerConfig(**settings), NO_RUN) as other:
        sandbox = create(other, ())
        name = (await sandbox.open()).name
    await sandbox.close()

    await until_gone(engine, name)


async def test_cancelled_while_it_starts_it_is_gone_when_closed(engine: Engine) -> None:
    sandbox = create(engine, ())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await sandbox.open()
    await sandbox.close()
    _, out, _ = await engine.call("ps", "--quiet", "--filter", f"label={owner()}")

    assert out == b""


async def test_a_container_that_others_end_is_an_ended_sandbox(make_sandbox: MakeSandbox) -> None:
    sandbox = await make_sandbox()
    container = await sandbox.open()
    await sandbox.engine.call("rm", "--force", container.name)

    for _ in range(2):
        with pytest.raises(ConnectionError, match="the container ended"):
            await sandbox.exec(["true"])


async def test_cancelling_a_command_of_an_ended_container_is_a_cancellation(
    make_sandbox: MakeSandbox,
) -> None:
    sandbox = await make_sandbox()
    container = await sandbox.open()
    task = asyncio.create_task(sandbox.exec(["sleep", "1000"]))
    await asyncio.sleep(0.3)
    removal = asyncio.create_task(sandbox.engine.call("rm", "--force", container.name))
    task.cancel()
    await asyncio.wait([task, removal])

    assert task.cancelled()


def owner() -> str:
    [label] = [f"{name}={value}" for name, value in sandbox_owner().items()]
    return label


HOLDER = """
import asyncio, json, sys
from rollhook_docker.config import DockerConfig
from rollhook_docker.engine import open_engine
from rollhook_docker.sandbox import create

async def main():
    async with open_engine(DockerConfig(**json.loads(sys.argv[1])), None) as engine:
        sandbox = create(engine, ())
        container = await sandbox.open()
        await sandbox.start(["sh", "-c", "trap '' TERM HUP INT; sleep 1000"])
        print(container.name, flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""


@contextmanager
def held(settings: dict[str, Any]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that holds a container, and the container's name."""
    command = [sys.executable, "-c", HOLDER, json.dumps(settings)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            yield holder, holder.stdout.readline().strip()
        finally:
            holder.kill()


async def test_kill_9_of_the_owner_leaves_nothing(engine: Engine, settings: dict[str, Any]) -> None:
    with held(settings) as (holder, name):
        assert await running(engine, name)
        holder.kill()

    await until_gone(engine, name)


async def test_gc_ends_what_an_owner_left(engine: Engine, settings: dict[str, Any]) -> None:
    with held(settings) as (holder, name):
        done = CliRunner().invoke(main, ["sandbox", "gc", "--owner", str(holder.pid)])
        assert (done.exit_code, "of owner" in done.output) == (0, True)
        await until_gone(engine, name)


async def test_a_run_chooses_it_and_a_plugin_an_image(settings: dict[str, Any]) -> None:
    allowed = {**settings, "image": "not-there:1", "images": [f"{settings['image'][:8]}*"]}
    config = RunConfig(engine="http://127.0.0.1:9", sandbox="docker", settings={"docker/docker": allowed})
    runtime = Runtime(config, plugins=Plugins(entry_points=[ENTRY_POINT]))
    async with runtime.scoring():
        sandbox = await runtime.sandbox(image=settings["image"])
        try:
            assert (await sandbox.exec(["cat", "given"])).stdout == b"given\n"
        finally:
            await sandbox.close()
        with pytest.raises(ResourceError, match="the run does not allow the image 'other': name it"):
            await runtime.sandbox(image="other")
        with pytest.raises(ResourceError, match="the run does not allow the image '--privileged'"):
            await runtime.sandbox(image="--privileged")
        default = await runtime.sandbox()
        with pytest.raises(ConnectionError, match=r"the image not-there:1 is not there .* pull not-there:1"):
            await default.exec(["true"])
        await default.close()


async def test_packages_have_to_be_in_the_image(engine: Engine) -> None:
    sandbox = create(engine, ["numpy"])
    with pytest.raises(ConnectionError, match=f"the image {engine.config.image} has no python3 with numpy"):
        await sandbox.exec(["true"])
    await sandbox.close()


async def test_what_the_engine_refuses_is_said(settings: dict[str, Any]) -> None:
    config = DockerConfig(**{**settings, "network": "no-such-network"})
    async with open_engine(config, NO_RUN) as engine:
        sandbox = create(engine, ())
        with pytest.raises(ConnectionError, match=r"did not start: .*no-such-network"):
            await sandbox.exec(["true"])
        await sandbox.close()


async def test_as_root_it_is_root_without_capabilities(settings: dict[str, Any]) -> None:
    config = DockerConfig(**{**settings, "user": "0:0", "read_only": False})
    async with open_engine(config, NO_RUN) as engine:
        sandbox = create(engine, ())
        done = await sandbox.exec(["sh", "-c", "id -u; touch /x; grep -c CapEff:.*0001$ /proc/self/status"])
        await sandbox.kill()
        again = await sandbox.exec(["ls", "/x"])
        await sandbox.close()

    assert done.stdout.split()[:1] == [b"0"]
    assert again.stdout == b"/x\n"


async def test_an_engine_that_is_not_installed_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="needs no-such-engine, which is not installed: install it, or set"):
        async with open_engine(DockerConfig(command=("no-such-engine",)), NO_RUN):
            pass


async def test_an_engine_that_does_not_answer_says_what_to_try() -> None:
    with pytest.raises(ConfigError, match=r"false does not reach its engine .* see that `false ps` works"):
        async with open_engine(DockerConfig(command=("false",)), NO_RUN):
            pass


@pytest.mark.parametrize("image", ["--privileged", "-v=/:/host", "", "a b"])
async def test_an_image_cannot_be_an_option(image: str) -> None:
    with pytest.raises(ValueError, match="image"):
        DockerConfig(image=image)


async def test_an_image_cannot_mount_the_hosts_folders_by_its_working_folder(
    engine: Engine, short_folder: Path
) -> None:
    archive = str(short_folder / "mounts.tar")
    shutil.copy(short_folder / "image.tar", archive)
    with tarfile.open(archive, "a") as tar:
        folder = tarfile.TarInfo("etc:/app/host")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(folder)
    image = "rollhook-docker-mounts"
    assert (await engine.call("import", "--change", "WORKDIR /etc:/app/host", archive, image))[0] == 0
    sandbox = DockerSandbox(engine, image, ())
    try:
        with pytest.raises(ConnectionError, match="its working folder '/etc:/app/host' is not a plain path"):
            await sandbox.exec(["cat", "/app/host/hostname"], cwd="/")
    finally:
        await sandbox.close()


async def test_an_images_health_check_is_not_run(engine: Engine, make_sandbox: MakeSandbox) -> None:
    container = await (await make_sandbox()).open()
    _, told, _ = await engine.call("inspect", "--format", "{{json .Config.Healthcheck}}", container.name)

    assert json.loads(told)["Test"] == ["NONE"]
