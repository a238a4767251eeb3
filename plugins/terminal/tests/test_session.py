"""Tasks from beginning to grade: the oracle, doing nothing, and ways to cheat."""

from __future__ import annotations

import asyncio
import io
import shutil
import tarfile
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rollhook import NoConfig, View
from rollhook_terminal.environment import Grader
from rollhook_terminal.session import NO_WORK, Grade, Session
from rollhook_terminal.shell import Ran

pytestmark = pytest.mark.asyncio(loop_scope="module")
TASKS = Path(__file__).parents[1] / "examples" / "tasks"
NAMES = sorted(path.name for path in TASKS.iterdir())
MakeSession = Callable[..., Awaitable[Session]]


async def follow_the_oracle(session: Session) -> None:
    assert session.task.solution is not None
    with tarfile.open(fileobj=io.BytesIO(session.task.solution)) as tar:
        script = tar.extractfile("./solve.sh")
        assert script is not None
        ran = await session.run(f"cat > /tmp/solve.sh <<'ORACLE'\n{script.read().decode()}\nORACLE", 30)
        assert ran.exit_code == 0
    assert (await session.run("bash /tmp/solve.sh", 30)).exit_code == 0


async def test_there_are_five_example_tasks() -> None:
    assert len(NAMES) == 5


@pytest.mark.parametrize("name", NAMES)
async def test_the_oracle_earns_one_and_doing_nothing_earns_nothing(
    make_session: MakeSession, name: str
) -> None:
    idle = await make_session(name)
    assert (await idle.grade()).reward == 0.0
    session = await make_session(name)
    await follow_the_oracle(session)
    assert (await session.grade()).reward == 1.0


PASSES_ALL = (
    "import pytest\n@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_makereport(item, call):\n"
    "    report = yield\n    report.outcome = 'passed'\n    return report\n"
)
EXITS = "#!/bin/sh\nexit 0\n"
WRITES = "mkdir -p /logs/verifier /tests; echo 1 > /logs/verifier/reward.txt; echo exit 0 > /tests/test.sh"

CHEATS = {
    "reward file written before": (
        "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; "
        "echo '{\"reward\": 1}' > /logs/verifier/reward.json"
    ),
    "conftest that passes every test": (
        f"mkdir -p /tests; tee conftest.py /tests/conftest.py <<'END'\n{PASSES_ALL}\nEND"
    ),
    "pytest of one's own": "echo 'raise SystemExit(0)' | tee pytest.py json.py os.py sitecustomize.py",
    "configuration of pytest": (
        "printf '[pytest]\\naddopts = --co -q\\n' | tee pytest.ini tox.ini; export PYTEST_ADDOPTS=--co"
    ),
    "programs of one's own": (
        "mkdir -p bin ~/.local/bin; for p in python3 awk bash; do\n"
        f"tee bin/$p ~/.local/bin/$p $p <<'END'\n{EXITS}\nEND\n"
        "chmod +x bin/$p ~/.local/bin/$p $p; done; export PATH=/app/bin:$PATH"
    ),
    "startup files": "echo 'exit 0' | tee .bashrc .profile .bash_env; export BASH_ENV=/app/.bash_env",
    "link from the folder to the reward": (
        "ln -s /logs/verifier verifier; ln -s /logs/verifier/reward.txt r; echo 1 > r"
    ),
    "folder that is a link": ("cd /; rm -rf /app; mkdir /fake; echo 1 > /fake/reward.txt; ln -s /fake /app"),
    "daemon that writes the reward": (
        f"setsid bash -c 'trap \"\" TERM HUP INT; while :; do {WRITES}; sleep 0.01; done' > /dev/null 2>&1 &"
    ),
    "preloaded library": "echo /app/evil.so > /etc/ld.so.preload; touch evil.so",
    "folder that is gone": "cd /; rm -rf /app",
    "folder that cannot be read": "mkdir deep; chmod 0 deep; chmod 0 .",
    "folder that is too large": "for i in 1 2 3; do head -c 50M /dev/zero > f$i; done",
}


@pytest.mark.parametrize("cheat", CHEATS)
async def test_cheating_earns_nothing(make_session: MakeSession, cheat: str) -> None:
    session = await make_session("sum-sales")
    await session.run(CHEATS[cheat], 30)
    grade = await session.grade()

    assert grade.reward == 0.0
    assert not grade.timed_out


async def test_honest_work_among_clutter_still_earns_one(make_session: MakeSession) -> None:
    session = await make_session("sum-sales")
    await session.run(
        "echo 'raise SystemExit(1)' | tee conftest.py pytest.py; ln -s /nowhere dead; mkfifo pipe", 30
    )
    await session.run("mkdir ro; touch ro/f; chmod 500 ro; chmod 400 ro/f", 30)
    await follow_the_oracle(session)
    grade = await session.grade()

    assert (grade.reward, "1 passed" in grade.output) == (1.0, True)


async def test_the_agent_sees_neither_tests_nor_solution_nor_history(make_session: MakeSession) -> None:
    session = await make_session("mend-median")
    found = await session.run(
        "find / -xdev \\( -name judge.py -o -name solve.sh -o -name .git \\) 2> /dev/null; ls /tests", 30
    )

    assert "judge.py" not in found.output
    assert "solve.sh" not in found.output
    assert found.exit_code == 2


async def test_a_fix_cannot_be_installed(make_session: MakeSession) -> None:
    session = await make_session("sum-sales")
    script = (
        "import socket\nfor host in ('pypi.org', '1.1.1.1'):\n"
        "    try: socket.create_connection((host, 443), 3); print('REACHED')\n"
        "    except OSError as error: print(type(error).__name__)"
    )
    ran = await session.run(f'python3 -c "{script}"; python3 -m pip install six', 30)

    assert "REACHED" not in ran.output
    assert ran.exit_code == 1


def marked(number: str) -> Iterator[int]:
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and number.encode() in (folder / "cmdline").read_bytes():
                yield int(folder.name)
        except OSError:
            continue


async def test_no_process_of_the_agent_lives_when_its_work_is_tested(make_session: MakeSession) -> None:
    number = str(uuid.uuid4().int % 10**9 + 10**9)
    session = await make_session("sum-sales")
    await session.run(f"setsid sleep {number} & nohup sleep {number} &", 30)
    async with asyncio.timeout(20):
        while len(list(marked(number))) < 2:
            await asyncio.sleep(0.02)
    await session.grade()

    assert list(marked(number)) == []


async def test_a_grade_is_given_once_and_ends_the_work(make_session: MakeSession) -> None:
    session = await make_session("sum-sales")
    first, second = await asyncio.gather(session.grade(), session.grade())

    assert first is second
    with pytest.raises(LookupError, match="the task is over"):
        await session.run("true", 1)


def changed(tmp_path: Path, test_sh: str, toml: str = "") -> Path:
    """The task sum-sales with another test.sh and task.toml, in a folder of tasks."""
    shutil.copytree(TASKS / "sum-sales", tmp_path / "t")
    (tmp_path / "t" / "tests" / "test.sh").write_text(test_sh)
    (tmp_path / "t" / "task.toml").write_text(toml)
    return tmp_path


@pytest.mark.parametrize(
    ("test_sh", "reward"),
    [
        ("echo ' 0.25 ' > /logs/verifier/reward.txt", 0.25),
        ('echo \'{"reward": 0.5, "style": 1}\' > /logs/verifier/reward.json', 0.5),
        ("echo '{\"tests\": 0.75}' > /logs/verifier/reward.json; echo 0 > /logs/verifier/reward.txt", 0.75),
        ("echo 1 > /logs/verifier/reward.txt; exit 7", 1.0),
        ("exit 7", 0.0),
        ("echo -1 > /logs/verifier/reward.txt", -1.0),
        ("[ $MODE = strict ] && echo 1 > /logs/verifier/reward.txt", 1.0),
        ("(while :; do sleep 1; done) & echo 1 > /logs/verifier/reward.txt", 1.0),
        ("pwd > /tmp/p; [ $(cat /tmp/p) = /app ] && echo 1 > /logs/verifier/reward.txt", 1.0),
    ],
)
async def test_the_reward_is_what_the_tests_write(
    make_session: MakeSession, tmp_path: Path, test_sh: str, reward: float
) -> None:
    tasks = changed(tmp_path, test_sh, "[verifier]\nenv = { MODE = 'strict' }")

    assert (await (await make_session("t", tasks)).grade()).reward == reward


async def test_tests_that_do_not_end_earn_nothing(make_session: MakeSession, tmp_path: Path) -> None:
    test_sh = "echo 1 > /logs/verifier/reward.txt; echo waiting; sleep 1000"
    session = await make_session("t", changed(tmp_path, test_sh, "[verifier]\ntimeout_sec = 0.5"))

    assert await session.grade() == Grade(0.0, timed_out=True, output="waiting\n")


@pytest.mark.parametrize(
    ("test_sh", "message"),
    [
        ("true", "wrote neither reward.txt nor reward.json"),
        ("echo good > /logs/verifier/reward.txt", "holds 'good', which is no number"),
        ("echo nan > /logs/verifier/reward.txt", "holds nan, which is not finite"),
        ('echo \'{"a": 1, "b": 2}\' > /logs/verifier/reward.json', 'has no "reward" among a, b'),
        ("echo '{' > /logs/verifier/reward.json", "Expecting property name"),
    ],
)
async def test_a_task_whose_tests_are_broken_is_an_error_and_not_a_zero(
    make_session: MakeSession, tmp_path: Path, test_sh: str, message: str
) -> None:
    session = await make_session("t", changed(tmp_path, test_sh))
    with pytest.raises(ValueError, match=message):
        await session.grade()


async def test_time_is_counted_in_commands_and_not_in_thinking(
    make_session: MakeSession, tmp_path: Path
) -> None:
    tasks = changed(tmp_path, "echo 1 > /logs/verifier/reward.txt", "[agent]\ntimeout_sec = 1.0")
    session = await make_session("t", tasks)
    await asyncio.sleep(1.2)
    assert session.left_s == 1.0
    ran = await session.run("sleep 1000", 60)

    assert (ran.stopped, session.left_s) == ("time", 0.0)


async def test_a_folder_that_is_gone_says_so(make_session: MakeSession) -> None:
    session = await make_session("sum-sales")
    await session.run("cd /; rm -rf /app", 30)

    assert (await session.grade()).output == NO_WORK


async def test_a_task_with_an_image_runs_in_it_and_is_tested_in_it(
    make_session: MakeSession, tmp_path: Path
) -> None:
    toml = "[environment]\ndocker_image = 'ghcr.io/x/y'"
    test_sh = "cp given done /logs; ls > /logs/all; [ $(cat done) = 7 ] && echo 1 > /logs/verifier/reward.txt"
    session = await make_session("t", changed(tmp_path, test_sh, toml))

    assert await session.run("pwd; ls; cat given", 30) == Ran("/app\ngiven\nghcr.io/x/y", 0)
    await session.run("echo 7 > done", 30)
    assert (await session.grade()).reward == 1.0


async def test_only_a_live_rollout_can_be_scored(rollout: Any) -> None:
    verifier = Grader(NoConfig(), rollout)
    with pytest.raises(LookupError, match="a live rollout"):
        await verifier.score(View("", None, [], "", {}))
