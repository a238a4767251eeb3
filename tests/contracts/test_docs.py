"""The documentation works as it stands: files are written, commands run, links followed.

Each page is a workspace: blocks with `file=NAME` are written there, `python run` blocks are run there, and
`console` blocks are typed there, in order, on a scripted engine in place of the engine that the page names.
"""

from __future__ import annotations

import ast
import asyncio
import doctest
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from rollhook import ledger
from rollhook.cli import main
from rollhook.config import RunConfig
from rollhook.embedded.params import SamplingParams
from rollhook.testing import ScriptedEngine
from tests.contracts.introspection import shown
from tests.contracts.pages import ROOT, Fence, anchors, fences, first_column, links, sections, table

PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("plugins/*/README.md"))]
FENCES = [fence for page in PAGES for fence in fences(page)]
MAKE_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
RUN = frozenset({"rollhook", "pytest"})
NOT_RUN = frozenset({"pip", "curl"})
"""Programs in `console` blocks that this test runs, and those that it takes on trust."""

every_page = pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a `console` block. output: what the page shows of it, empty when nothing."""

    fence: Fence
    words: list[str]
    output: str

    @property
    def exit_code(self) -> int:
        return int(self.fence.option("exit") or 0)

    def __str__(self) -> str:
        return f"{self.fence}: {shlex.join(self.words)}"


def commands(page: Path) -> Iterator[Command]:
    for fence in fences(page):
        if fence.language == "console":
            for block in re.split(r"^\$ ", fence.text, flags=re.MULTILINE)[1:]:
                line, _, output = block.partition("\n")
                yield Command(fence, shlex.split(line), output)


def write_files(page: Path, workspace: Path) -> None:
    for fence in fences(page):
        if name := fence.option("file"):
            path = workspace / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(fence.text if fence.text.strip() else "", encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the distributions that pages build are installed, as a reader would by pip."""
    projects, target = tmp_path_factory.mktemp("projects"), tmp_path_factory.mktemp("site")
    for page in PAGES:
        write_files(page, projects)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--no-build-isolation", "--disable-pip-version-check", "--target", str(target)]
    command += [str(path.parent) for path in projects.glob("*/pyproject.toml")]
    subprocess.run(command, check=True, timeout=120)
    return target


@pytest.fixture(scope="module")
def engine_url(smollm2_tokenizer: Any) -> Iterator[str]:
    """An engine in a thread of its own, so that it answers while a command blocks the test."""
    ready: Future[tuple[str, Callable[[], object]]] = Future()

    async def serve() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        async with ScriptedEngine(smollm2_tokenizer, lambda request: "The answer is 12.") as engine:
            ready.set_result((engine.url, lambda: loop.call_soon_threadsafe(stop.set)))
            await stop.wait()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, serve())
        url, stop = ready.result(timeout=30)
        yield url
        stop()


@pytest.fixture
def workspace(tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory of one page; modules imported from it are forgotten at the end."""
    known = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(site)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - known:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith((str(tmp_path), str(site))):
            del sys.modules[name]


def typed(command: Command, engine_url: str, site: Path) -> tuple[int, str]:
    """Exit code and output of a command, with `engine_url` in place of the engine it names."""
    program, *arguments = command.words
    words = [engine_url if before == "--engine" else word for before, word in pairwise([program, *arguments])]
    if program == "rollhook":
        result = CliRunner().invoke(main, words)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output
    ran = subprocess.run(
        [sys.executable, "-m", program, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return ran.returncode, ran.stdout + ran.stderr


@every_page
def test_commands_do_what_the_page_says(page: Path, workspace: Path, site: Path, engine_url: str) -> None:
    write_files(page, workspace)
    for command in commands(page):
        if command.words[0] not in RUN or command.words[1] == "serve":
            continue
        code, output = typed(command, engine_url, site)

        assert code == command.exit_code, f"{command}\n{output}"
        if command.output:
            same = doctest.OutputChecker().check_output(command.output, output, doctest.ELLIPSIS)
            assert same, f"{command} printed\n{output}"


@every_page
def test_commands_can_be_typed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are not run: options exist, make has the target, scripts are there."""
    write_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    for command in commands(page):
        program, *arguments = command.words
        if program == "rollhook":
            with click.Context(main) as context:
                _, subcommand, rest = main.resolve_command(context, arguments)
                assert subcommand is not None
                subcommand.make_context(arguments[0], rest, parent=context)
        elif program == "make":
            assert {word for word in arguments if "=" not in word} <= MAKE_TARGETS, str(command)
        elif "/" in program:
            assert os.access(ROOT / program, os.X_OK), f"{command}: no such program"
        else:
            assert program in RUN | NOT_RUN, f"{command}: this test knows no {program}"


RUNNABLE = [fence for fence in FENCES if fence.words[:2] == ("python", "run")]


@pytest.mark.parametrize("fence", RUNNABLE, ids=str)
def test_examples_run(fence: Fence) -> None:
    exec(compile(fence.text, str(fence), "exec"), {"__name__": "__main__"})


def test_python_in_pages_is_python() -> None:
    for fence in FENCES:
        if fence.language == "python":
            compile(fence.text, str(fence), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_run_configurations_in_pages_are_valid(tmp_path: Path) -> None:
    for fence in FENCES:
        if fence.language == "yaml":
            path = tmp_path / "rollhook.yaml"
            path.write_text(fence.text)
            RunConfig.load(path)


@every_page
def test_rows_in_pages_are_read_by_a_command(page: Path) -> None:
    """Rows are checked by the commands of their page, which run."""
    files = {fence.option("file") for fence in fences(page) if fence.words[:2] == ("jsonl", "rows")}
    read = {word for command in commands(page) if command.words[0] == "rollhook" for word in command.words}

    assert files <= read


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.name}: {target} is not there"
        assert not anchor or anchor in anchors(linked), f"{page.name}: {target} has no such heading"


def test_the_sampling_parameters_of_the_embedded_engine_are_as_the_page_says() -> None:
    listed = [row[:2] for row in table(sections(ROOT / "docs" / "engines.md")["Sampling parameters"])]
    fields = SamplingParams.model_fields.items()

    assert [[name, shown(field.get_default(call_default_factory=True))] for name, field in fields] == listed


def test_the_plugin_of_the_readme_has_at_most_25_lines_of_code() -> None:
    [fence] = [fence for fence in FENCES if fence.option("file") == "critic.py"]

    assert len([line for line in fence.text.splitlines() if line.strip()]) <= 25


def test_the_reasons_of_forks_are_those_of_the_ledger() -> None:
    source = inspect.getsource(ledger)
    reasons = first_column(sections(ROOT / "docs" / "rows.md")["Forks"])

    assert [reason for reason in reasons if f'"{reason}"' not in source] == []


def test_pages_name_no_host_of_a_registry_and_no_machine() -> None:
    forbidden = re.compile(r"pypi\.org|pythonhosted|download\.pytorch|registry\.npmjs|/home/|/root/|/work/")

    assert [str(page) for page in PAGES if forbidden.search(page.read_text(encoding="utf-8"))] == []
