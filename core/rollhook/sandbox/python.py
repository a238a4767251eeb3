"""Which Python runs inside a sandbox, and which packages it can import.

Invariant: of the host's packages only those that were asked for by name, and what they require, are to be
seen inside; the rest of its site-packages is covered up.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rollhook.errors import ConfigError

HOME_INSIDE = "/opt/python"
SITE_INSIDE = "/opt/site"
_PACKAGES = ("lib*/python3*/site-packages", "local/lib*/python3*/*-packages")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python as it is seen inside. home: the folder to mount at /opt/python, None when it is part of /usr.

    covered: folders inside, with the packages of the host, to be hidden.
    """

    path: str
    home: Path | None
    covered: tuple[str, ...]


def find_interpreter(path: Path | None = None) -> Interpreter:
    """The interpreter at `path`, or the one that runs this. Raises ConfigError when it is not there."""
    binary = Path(path or getattr(sys, "_base_executable", None) or sys.executable)
    if not binary.is_file():
        raise ConfigError(
            f"the sandbox's python {binary} is not there: set python of the sandbox in settings"
        )
    binary = binary.resolve()
    if binary.is_relative_to("/usr"):
        return Interpreter(str(binary), None, _site_packages(binary.parent.parent, binary.parent.parent))
    home = binary.parent.parent
    inside = f"{HOME_INSIDE}/{binary.relative_to(home)}"
    return Interpreter(inside, home, _site_packages(home, Path(HOME_INSIDE)))


def _site_packages(home: Path, inside: Path) -> tuple[str, ...]:
    found = [path for pattern in _PACKAGES for path in home.glob(pattern)]
    return tuple(str(inside / path.relative_to(home)) for path in found)


def find_packages(names: Iterable[str]) -> dict[str, Path]:
    """Files and folders of these distributions and what they require, by their name in site-packages.

    Raises ConfigError for one that is not installed, or installed so that its files cannot be told.
    """
    found: dict[str, Path] = {}
    seen: set[str] = set()
    queue = list(names)
    while queue:
        name = canonicalize_name(queue.pop())
        if name in seen:
            continue
        seen.add(name)
        distribution = _distribution(name)
        tops = _tops(distribution)
        if not tops:
            raise ConfigError(
                f"the package {name} is installed without a list of its files; install its wheel"
            )
        found.update(tops)
        queue += [required.name for required in _required(distribution.requires or ())]
    return found


def _distribution(name: str) -> metadata.Distribution:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError as error:
        raise ConfigError(f"a sandbox needs the package {name}: try: pip install {name}") from error


def _tops(distribution: metadata.Distribution) -> dict[str, Path]:
    """What a distribution puts into site-packages, without its scripts and bytecode."""
    names = {file.parts[0] for file in distribution.files or () if _is_code(file)}
    return {name: Path(str(distribution.locate_file(name))).resolve() for name in names}


def _is_code(file: PurePosixPath) -> bool:
    first = file.parts[0]
    if first == "__pycache__" or file.suffix == ".pth" or first.startswith("__editable__"):
        return False
    return ".." not in file.parts and not file.is_absolute()


def _required(lines: Sequence[str]) -> list[Requirement]:
    requirements = [Requirement(line) for line in lines]
    return [one for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]
