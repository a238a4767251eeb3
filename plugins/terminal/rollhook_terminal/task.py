"""A task in the format of Harbor and Terminal-Bench 2, read from its folder.

Invariant: what the agent is given comes from instruction.md and environment/ alone; tests/ and solution/ are
read for the host, and no version control history goes along.
"""

from __future__ import annotations

import io
import tarfile
import tomllib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from rollhook_terminal.dockerfile import NeedsImage, Setup, read_dockerfile

NOT_COPIED = frozenset({".git", ".hg", ".svn", "__pycache__", "Dockerfile", ".dockerignore"})
TAKEN = ("/tests", "/logs", "/solution", "/usr", "/etc", "/opt", "/proc", "/dev", "/bin", "/lib", "/tmp")


class TaskError(ValueError):
    """A task that cannot be used; the message says which, and why."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task. agent_timeout_s: of all its commands together; verifier_timeout_s: of test.sh.

    files: the agent's starting state, a tar to be unpacked at /. tests, solution: tars of these folders.
    image: what has to run instead, with its files in place; None where the sandbox's own is enough.
    """

    name: str
    instruction: str
    setup: Setup
    agent_timeout_s: float
    verifier_timeout_s: float
    verifier_env: dict[str, str]
    files: bytes
    tests: bytes
    solution: bytes | None
    image: str | None = None


def load_task(folder: Path, image: str | None = None) -> Task:
    """Read a task's folder; blocks. image: of a task that needs one and names none. Raises TaskError."""
    try:
        return _load(folder, image)
    except NeedsImage as error:
        raise TaskError(
            f"task {folder.name} needs a container image: {error}; build one, name it as `image` of terminal "
            "in settings, and set `sandbox` to a backend that has images"
        ) from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, TypeError, ValueError) as error:
        raise TaskError(f"task {folder.name}: {error}") from error


def _load(folder: Path, image: str | None) -> Task:
    if not (folder / "task.toml").is_file():
        raise TaskError(f"there is no {folder / 'task.toml'}")
    told = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
    if "steps" in told:
        raise TaskError("it has several steps, which are not supported")
    setup, image = _world(folder, told, image)
    if not (folder / "tests" / "test.sh").is_file():
        raise TaskError("it has no tests/test.sh")
    return Task(
        name=folder.name,
        instruction=_instruction((folder / "instruction.md").read_text(encoding="utf-8")),
        setup=setup,
        agent_timeout_s=_seconds(told, "agent"),
        verifier_timeout_s=_seconds(told, "verifier"),
        verifier_env={key: str(value) for key, value in told.get("verifier", {}).get("env", {}).items()},
        files=_starting_files(folder / "environment", setup),
        tests=pack(folder / "tests"),
        solution=pack(folder / "solution") if (folder / "solution").is_dir() else None,
        image=image,
    )


def _world(folder: Path, told: dict[str, Any], image: str | None) -> tuple[Setup, str | None]:
    """What is done before the agent starts, and the image where that takes one: the task's, else `image`."""
    environment = told.get("environment", {})
    for name in ("docker-compose.yaml", "docker-compose.yml", "compose.yaml"):
        if (folder / "environment" / name).exists():
            raise TaskError(f"it has environment/{name}: tasks of several containers are not supported")
    of_image = Setup(environment.get("workdir"), (), {})
    if named := environment.get("docker_image"):
        return of_image, str(named)
    try:
        return _setup(folder / "environment", told), None
    except NeedsImage:
        if image is None:
            raise
        return of_image, image.replace("{task}", folder.name)


def _setup(environment: Path, told: dict[str, Any]) -> Setup:
    dockerfile = environment / "Dockerfile"
    setup = read_dockerfile(dockerfile.read_text(encoding="utf-8")) if dockerfile.exists() else Setup()
    workdir = str(told.get("environment", {}).get("workdir") or setup.workdir)
    for taken in TAKEN:
        if workdir == "/" or PurePosixPath(workdir).is_relative_to(taken):
            raise TaskError(f"its working folder is {workdir}, which the sandbox needs itself")
    copies = setup.copies if dockerfile.exists() else ((".", f"{workdir}/"),)
    return Setup(workdir, copies, setup.env)


def _seconds(told: dict[str, Any], section: str) -> float:
    value = float(told.get(section, {}).get("timeout_sec", 600.0))
    if not 0 < value < float("inf"):
        raise TaskError(f"[{section}] timeout_sec is {value}")
    return value


def _instruction(text: str) -> str:
    """Without the canary lines on top, which are for crawlers."""
    lines = text.splitlines()
    while lines and ("canary" in lines[0].lower() or not lines[0].strip()):
        lines.pop(0)
    return "\n".join(lines).strip()


def pack(folder: Path) -> bytes:
    """A folder as a tar."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(folder, arcname=".", filter=_kept)
    return buffer.getvalue()


def _starting_files(environment: Path, setup: Setup) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for source, target in setup.copies:
            path = environment / source
            if not path.resolve().is_relative_to(environment.resolve()):
                raise TaskError(f"it copies {source}, which is outside its environment/")
            if not environment.exists():
                continue
            if not path.exists():
                raise TaskError(f"it copies {source}, which is not there")
            inside = target.rstrip("/")
            if target.endswith("/") and path.is_file():
                inside = f"{inside}/{path.name}"
            tar.add(path, arcname=inside.lstrip("/") or ".", filter=_kept)
    return buffer.getvalue()


def _kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if PurePosixPath(entry.name).name in NOT_COPIED else entry
