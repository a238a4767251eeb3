"""Sandboxes of a real engine, on an image made of this machine's busybox and bash; without one, tests skip.

ROLLHOOK_ENGINE names the engine's command line; otherwise docker and podman are tried.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import pytest_asyncio

from rollhook_docker.config import DockerConfig
from rollhook_docker.engine import Engine, open_engine
from rollhook_docker.sandbox import DockerSandbox, create

IMAGE = "rollhook-docker-tests"
TOOLS = (
    "sh cat chown mkdir dirname tar id ls env touch sleep ps kill dd rm ln mkfifo stty wc head pwd find yes"
)
MakeSandbox = Callable[..., Awaitable[DockerSandbox]]
NPROC = "--ulimit=nproc=4096:4096"
"""Engines in a container may not raise the limits that they have by themselves."""


@pytest.fixture(scope="session")
def short_folder() -> Iterator[Path]:
    """Podman takes no run folder of more than 50 characters, which pytest's own may have."""
    with TemporaryDirectory(prefix="podman-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def engine_command(short_folder: Path) -> tuple[str, ...]:
    """The command line of an engine that runs, with the image."""
    folder = short_folder
    os.environ["ROLLHOOK_PODMAN"] = str(folder)
    named = os.environ.get("ROLLHOOK_ENGINE")
    here = str(Path(__file__).parent / "podman-here")
    tried = [shlex.split(named)] if named else [["docker"], ["podman"], [here]]
    archive = folder / "image.tar"
    said = "busybox and bash are not installed"
    if all(map(shutil.which, ("busybox", "bash"))):
        pack_image(archive)
        for words in tried:
            if (said := trial(words, archive)) == "":
                return tuple(words)
    pytest.skip(
        f"no container engine runs here ({said[-300:]}): try apt-get install podman crun busybox bash"
    )


def pack_image(archive: Path) -> None:
    """A root file system with busybox and bash; its working folder /app holds `given`, which is root's."""
    folder = archive.parent / "image"
    for name in ("bin", "app", "tmp", "etc", "proc", "dev", "sys"):
        (folder / name).mkdir(parents=True)
    for program in ("busybox", "bash"):
        found = shutil.which(program)
        assert found is not None
        shutil.copy(found, folder / "bin" / program)
        listed = subprocess.run(["ldd", found], capture_output=True, text=True, check=False).stdout
        for library in re.findall(r"(/\S+) \(0x", listed):
            target = folder / library.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)
    for tool in TOOLS.split():
        (folder / "bin" / tool).symlink_to("busybox")
    (folder / "app" / "given").write_text("given\n")
    with tarfile.open(archive, "w") as tar:
        tar.add(folder, arcname=".", filter=as_root)


def as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def trial(words: list[str], archive: Path) -> str:
    """Import the image and run it once. Returns "" when that works, else why not."""
    for arguments in (
        ["import", "--change", "WORKDIR /app", str(archive), IMAGE],
        ["run", "--rm", "--network=none", "--ulimit=nofile=256:256", NPROC, IMAGE, "id"],
    ):
        try:
            done = subprocess.run(
                [*words, *arguments], capture_output=True, text=True, timeout=60, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if done.returncode:
            return done.stderr.strip() or f"{words[0]} {arguments[0]} failed"
    return ""


@pytest.fixture(scope="session")
def settings(engine_command: tuple[str, ...]) -> dict[str, Any]:
    return {
        "command": engine_command,
        "image": IMAGE,
        "options": (NPROC,),
        "memory_mb": 128,
        "disk_mb": 16,
        "file_mb": 16,
        "transfer_mb": 8,
        "processes": 40,
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(settings: dict[str, Any]) -> AsyncIterator[Engine]:
    run: Any = None
    async with open_engine(DockerConfig(**settings), run) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def make_sandbox(engine: Engine) -> AsyncIterator[MakeSandbox]:
    """A factory of started sandboxes."""
    async with AsyncExitStack() as stack:

        async def make(packages: tuple[str, ...] = ()) -> DockerSandbox:
            made = create(engine, packages)
            stack.push_async_callback(made.close)
            await made.open()
            return made

        yield make


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(engine: Engine) -> AsyncIterator[DockerSandbox]:
    """One for the tests of a module that leave nothing behind."""
    made = create(engine, ())
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture(autouse=True)
def _secret_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """What must not be found inside."""
    for name in ("HTTP_PROXY", "https_proxy", "API_KEY"):
        monkeypatch.setenv(name, "http://user:hunter2@127.0.0.1:9")
