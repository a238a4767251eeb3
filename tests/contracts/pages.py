"""The documentation's pages as data: headings, tables and fenced blocks. No Markdown beyond what they use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Fence:
    """One fenced block. words: the info string; the first one is the language. line: of its first line."""

    page: Path
    line: int
    words: tuple[str, ...]
    text: str

    @property
    def language(self) -> str:
        return self.words[0] if self.words else ""

    def option(self, name: str) -> str | None:
        """The value of a word `name=value` in the info string."""
        return next(
            (word.removeprefix(f"{name}=") for word in self.words if word.startswith(f"{name}=")), None
        )

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def fences(page: Path) -> list[Fence]:
    """Every fenced block of a page, in order."""
    found, opened = [], None
    lines: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.startswith("```"):
            lines.append(line)
        elif opened is None:
            opened, lines = (number + 1, tuple(line[3:].split())), []
        else:
            found.append(Fence(page, opened[0], opened[1], "\n".join(lines) + "\n"))
            opened = None
    assert opened is None, f"{page}: the block at line {opened} is never closed"
    return found


def sections(page: Path) -> dict[str, str]:
    """The text under each heading, up to the next heading of any level, by the heading's own text."""
    found: dict[str, str] = {}
    title = ""
    for line in _lines_outside_fences(page):
        if heading := re.fullmatch(r"#+ (.*)", line):
            title = heading[1]
            assert title not in found, f"{page}: two headings say {title!r}"
            found[title] = ""
        elif title:
            found[title] += line + "\n"
    return found


def anchors(page: Path) -> set[str]:
    """What links to a page may name behind `#`, by GitHub's rule."""
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in sections(page)}


def links(page: Path) -> list[str]:
    """The targets of a page's links."""
    return [target for line in _lines_outside_fences(page) for target in re.findall(r"\]\(([^)\s]+)\)", line)]


def table(text: str) -> list[list[str]]:
    """The rows of the first table in `text`, without its head; a cell that is one code span is bare."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[_bare(cell) for cell in _cells(line)] for line in lines[2:]]


def first_column(text: str) -> list[str]:
    """What the rows of the first table in `text` are about."""
    return [row[0] for row in table(text)]


def _cells(line: str) -> list[str]:
    cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
    return [cell.replace("\\|", "|").strip() for cell in cells]


def _bare(cell: str) -> str:
    return cell[1:-1] if re.fullmatch(r"`[^`]+`", cell) else cell


def _lines_outside_fences(page: Path) -> Iterator[str]:
    inside = False
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            inside = not inside
        elif not inside:
            yield line
