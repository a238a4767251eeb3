"""The part of a Dockerfile that a sandbox can do without images: WORKDIR, COPY and ENV on a plain base.

Invariant: a file is either followed to its last line, or refused with the line that needs an image.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from dataclasses import dataclass, field

PLAIN_BASES = ("debian", "ubuntu", "python")


class NeedsImage(Exception):
    """The task cannot run here: it needs a container image."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What to do before the agent starts. copies: (source in environment/, absolute target).

    workdir: absolute; None for the one that an image has.
    """

    workdir: str | None = "/app"
    copies: tuple[tuple[str, str], ...] = ()
    env: dict[str, str] = field(default_factory=dict)


def read_dockerfile(text: str) -> Setup:
    """Follow `text`. Raises NeedsImage."""
    workdir, copies, env = "/", [], {}
    for number, line in _lines(text):
        word, _, rest = line.partition(" ")
        match word.upper():
            case "FROM":
                _check_base(rest, number)
            case "WORKDIR":
                workdir = posixpath.join(workdir, rest.strip())
            case "ENV":
                env.update(_environment(rest, number))
            case "COPY":
                copies += _copies(rest, workdir, number)
            case "CMD" | "LABEL" | "EXPOSE" | "SHELL" | "USER" | "ENTRYPOINT":
                continue
            case _:
                raise NeedsImage(f"line {number} of its Dockerfile is {word}")
    return Setup("/app" if workdir == "/" else posixpath.normpath(workdir), tuple(copies), env)


def _lines(text: str) -> list[tuple[int, str]]:
    """Instructions with the numbers of their first lines; comments and blank lines left out."""
    found: list[tuple[int, str]] = []
    open_line = ""
    start = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("#") or (not line.strip() and not open_line):
            continue
        start = start if open_line else number
        open_line += line.strip().removesuffix("\\")
        if not line.rstrip().endswith("\\"):
            found.append((start, open_line.strip()))
            open_line = ""
    return found


def _check_base(rest: str, number: int) -> None:
    base = re.split(r"[:@\s]", rest.strip())[0].removeprefix("docker.io/").removeprefix("library/")
    if base not in PLAIN_BASES:
        raise NeedsImage(f"line {number} of its Dockerfile starts from {base}")


def _environment(rest: str, number: int) -> dict[str, str]:
    words = shlex.split(rest)
    if words and "=" not in words[0]:
        return {words[0]: rest.partition(words[0])[2].strip()}
    pairs = [word.partition("=") for word in words]
    if not pairs or not all(equals for _, equals, _ in pairs):
        raise NeedsImage(f"line {number} of its Dockerfile cannot be read")
    return {name: value for name, _, value in pairs}


def _copies(rest: str, workdir: str, number: int) -> list[tuple[str, str]]:
    words = shlex.split(rest)
    if len(words) < 2 or any(word.startswith(("--", "[")) for word in words):
        raise NeedsImage(f"line {number} of its Dockerfile is a COPY with options")
    *sources, target = words
    into_folder = target.endswith("/") or len(sources) > 1 or target in {".", "./"}
    place = posixpath.normpath(posixpath.join(workdir, target))
    return [(source, f"{place}/" if into_folder else place) for source in sources]
