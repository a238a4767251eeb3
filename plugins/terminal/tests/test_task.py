"""Reading task folders: what a sandbox can do is done, and what needs an image is refused."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from pydantic import ValidationError

from rollhook_terminal.config import TerminalConfig
from rollhook_terminal.dockerfile import NeedsImage, Setup, read_dockerfile
from rollhook_terminal.task import TaskError, load_task

TASKS = Path(__file__).parents[1] / "examples" / "tasks"


def task_of(
    folder: Path, dockerfile: str | None = "FROM debian\nWORKDIR /app\nCOPY . .", toml: str = "", **files: str
) -> Path:
    """A small task; `files` by path, with __ for / and a dot for a leading underscore."""
    for name, text in {
        "task.toml": toml,
        "instruction.md": "Do it.",
        "tests/test.sh": "true",
        **({"environment/Dockerfile": dockerfile} if dockerfile else {}),
        **{f"environment/{name}": text for name, text in files.items()},
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def names(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return sorted(entry.name for entry in tar if entry.isfile())


def test_the_example_tasks_are_read() -> None:
    task = load_task(TASKS / "sum-sales")

    assert (task.name, task.setup.workdir) == ("sum-sales", "/app")
    assert (task.agent_timeout_s, task.verifier_timeout_s) == (300.0, 60.0)
    assert names(task.files) == ["app/sales.csv"]
    assert names(task.tests) == ["./test.sh", "./test_outputs.py"]
    assert task.instruction.startswith("`sales.csv` has the columns")


def test_a_dockerfile_is_followed() -> None:
    text = """
# a comment
FROM python:3.12-slim AS base
ENV A=1 \\
    B="two words"
ENV C three words
WORKDIR /srv
WORKDIR code
COPY data/ .
COPY a b c/
COPY one /etc/two
CMD ["bash"]
"""
    copies = (("data/", "/srv/code/"), ("a", "/srv/code/c/"), ("b", "/srv/code/c/"), ("one", "/etc/two"))

    assert read_dockerfile(text) == Setup(
        "/srv/code", copies, {"A": "1", "B": "two words", "C": "three words"}
    )


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("RUN apt-get install -y gcc", "line 2 of its Dockerfile is RUN"),
        ("COPY --from=build /x /y", "line 2 of its Dockerfile is a COPY with options"),
        ("COPY only", "line 2 of its Dockerfile is a COPY with options"),
        ("FROM nvidia/cuda:12", "line 2 of its Dockerfile starts from nvidia/cuda"),
        ("ADD https://x /y", "line 2 of its Dockerfile is ADD"),
    ],
)
def test_what_needs_an_image_is_named_by_its_line(line: str, why: str) -> None:
    with pytest.raises(NeedsImage, match=why):
        read_dockerfile(f"FROM debian:12\n{line}\n")


def test_a_task_that_needs_an_image_says_so_and_what_to_do(tmp_path: Path) -> None:
    folder = task_of(tmp_path / "big", "FROM debian\nRUN apt-get install gcc")

    with pytest.raises(TaskError) as raised:
        load_task(folder)
    assert str(raised.value) == (
        "task big needs a container image: line 2 of its Dockerfile is RUN; build one, name it as `image` of "
        "terminal in settings, and set `sandbox` to a backend that has images"
    )


def test_the_image_is_the_tasks_own_or_the_runs(tmp_path: Path) -> None:
    named = task_of(tmp_path / "named", toml="[environment]\ndocker_image = 'ghcr.io/x/y'\nworkdir = '/w'")
    needs = task_of(tmp_path / "needs", "FROM debian\nRUN true")
    plain = task_of(tmp_path / "plain")

    loaded = [load_task(folder, "mine/{task}:1") for folder in (named, needs, plain)]
    assert [(task.image, task.setup.workdir) for task in loaded] == [
        ("ghcr.io/x/y", "/w"),
        ("mine/needs:1", None),
        (None, "/app"),
    ]


def test_several_containers_are_refused(tmp_path: Path) -> None:
    folder = task_of(tmp_path / "net", **{"docker-compose.yaml": ""})

    with pytest.raises(
        TaskError, match=r"task net: it has environment/docker-compose.yaml: tasks of several"
    ):
        load_task(folder, "image")


def test_neither_history_nor_the_dockerfile_goes_to_the_agent(tmp_path: Path) -> None:
    folder = task_of(
        tmp_path / "t", **{".git/HEAD": "x", "src/.git/config": "x", "src/a.py": "x", ".env": "x"}
    )

    assert names(load_task(folder).files) == ["app/.env", "app/src/a.py"]


def test_without_a_dockerfile_everything_goes_to_the_working_folder(tmp_path: Path) -> None:
    folder = task_of(tmp_path / "t", None, "[environment]\nworkdir = '/work/here'", a="x")

    assert names(load_task(folder).files) == ["work/here/a"]


def test_canary_lines_are_not_part_of_the_instruction(tmp_path: Path) -> None:
    folder = task_of(tmp_path / "t")
    (folder / "instruction.md").write_text("<!-- task-canary GUID 1 -->\n\nDo it.\nNow.\n")

    assert load_task(folder).instruction == "Do it.\nNow."


@pytest.mark.parametrize(
    ("toml", "dockerfile", "message"),
    [
        ("[agent]\ntimeout_sec = -1", "FROM debian", r"\[agent\] timeout_sec is -1"),
        ("[agent]\ntimeout_sec = 'x'", "FROM debian", "could not convert"),
        ("[[steps]]\n", "FROM debian", "it has several steps"),
        ("x = ", "FROM debian", "Invalid value"),
        ("", "FROM debian\nWORKDIR /tests/x", "its working folder is /tests/x"),
        ("", "FROM debian\nWORKDIR /app\nCOPY ../../.. .", "outside its environment/"),
        ("", "FROM debian\nWORKDIR /app\nCOPY missing .", "copies missing, which is not there"),
    ],
)
def test_a_task_that_is_wrong_is_named(tmp_path: Path, toml: str, dockerfile: str, message: str) -> None:
    with pytest.raises(TaskError, match=f"task t: .*{message}"):
        load_task(task_of(tmp_path / "t", dockerfile, toml))


def test_a_task_without_tests_is_refused(tmp_path: Path) -> None:
    folder = task_of(tmp_path / "t")
    (folder / "tests" / "test.sh").unlink()
    with pytest.raises(TaskError, match=r"it has no tests/test.sh"):
        load_task(folder)


@pytest.mark.parametrize("task", ["../examples", "a/b", ".hidden", "", "nope"])
def test_a_task_that_is_not_in_the_folder_is_refused(task: str) -> None:
    with pytest.raises(ValidationError, match=r"there is no task|pattern"):
        TerminalConfig(tasks=TASKS, task=task)
