"""Agents' command lines, unmodified and headless, each fixing a file through an adapter (`make test-cli`)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rollhook.adapters import AdapterSession
from rollhook.testing import ScriptedRequest
from tests.adapters.worlds import call, trained, world

PROGRAMS = os.environ.get("ROLLHOOK_COMMAND_LINES", "")
TASK = "Fix the typo in notes.txt, then count its words."
TIMEOUT_S = 150

pytestmark = [
    pytest.mark.skipif(not PROGRAMS, reason="needs the command lines from npm: make test-cli"),
    pytest.mark.timeout(TIMEOUT_S + 30),
]


@dataclass(frozen=True, slots=True)
class CommandLine:
    """program: in npm's bin directory. shell: its shell tool and how a command is given to it.

    setup: writes what it reads, given home, work directory, adapter's URL and session; its environment.
    """

    program: str
    arguments: tuple[str, ...]
    shell: Callable[[str], str]
    setup: Callable[[Path, Path, str, AdapterSession], Mapping[str, str]]


def claude(home: Path, work: Path, url: str, session: AdapterSession) -> Mapping[str, str]:
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": session.api_key,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",
    }


def codex(home: Path, work: Path, url: str, session: AdapterSession) -> Mapping[str, str]:
    (home / ".codex").mkdir()
    lines = [
        'model = "m"',
        'model_provider = "rollhook"',
        "[model_providers.rollhook]",
        'name = "rollhook"',
        f'base_url = "{url}/v1"',
        'env_key = "ROLLHOOK_KEY"',
        'wire_api = "responses"',
    ]
    (home / ".codex" / "config.toml").write_text("\n".join(lines) + "\n")
    return {"ROLLHOOK_KEY": session.api_key}


def opencode(home: Path, work: Path, url: str, session: AdapterSession) -> Mapping[str, str]:
    options = {"baseURL": f"{url}/v1", "apiKey": session.api_key}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"m": {"name": "m"}}}
    config = {"provider": {"rollhook": provider}, "model": "rollhook/m"}
    (work / "opencode.json").write_text(json.dumps(config))
    return {}


def qwen(home: Path, work: Path, url: str, session: AdapterSession) -> Mapping[str, str]:
    return {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": session.api_key, "OPENAI_MODEL": "m"}


COMMAND_LINES = {
    "Claude Code": CommandLine(
        "claude",
        ("-p", TASK, "--allowedTools", "Bash", "--output-format", "json"),
        lambda command: call("Bash", command=command, description="do it"),
        claude,
    ),
    "Codex": CommandLine(
        "codex",
        ("exec", "--json", "--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check", TASK),
        lambda command: call("exec_command", cmd=command),
        codex,
    ),
    "opencode": CommandLine(
        "opencode",
        ("run", TASK),
        lambda command: call("bash", command=command, description="do it"),
        opencode,
    ),
    "qwen-code": CommandLine(
        "qwen",
        ("--auth-type", "openai", "-y", "-p", TASK),
        lambda command: call("run_shell_command", command=command, is_background=False),
        qwen,
    ),
}


def model(shell: Callable[[str], str]) -> Callable[[ScriptedRequest], str]:
    """A model that looks, fixes the file, fails at a command, makes two calls at once, and is done."""
    steps = [
        shell("cat notes.txt"),
        shell("sed -i s/teh/the/ notes.txt"),
        shell("cat no-such-file"),
        shell("wc -w notes.txt") + "\n" + shell("ls"),
        "The file is fixed; it has four words.",
    ]
    answers_before = (0, 1, 2, 3, 5)  # tool results in the history, by step

    def reply(request: ScriptedRequest) -> str:
        if "# Tools" not in request.prompt:
            return "A title"
        answers = request.prompt.count("<tool_response>\n")
        step = max(at for at, before in enumerate(answers_before) if before <= answers)
        return f"<think>\nThis is step {step}.\n</think>\n\nOn with it: {step}.\n{steps[step]}"

    return reply


@pytest.mark.parametrize("name", list(COMMAND_LINES))
async def test_a_command_line_finishes_its_task_and_all_it_sampled_trains(
    qwen3_tokenizer: Any, tmp_path: Path, name: str
) -> None:
    line = COMMAND_LINES[name]
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    (work / "notes.txt").write_text("this is teh file\n")
    async with world(qwen3_tokenizer, model(line.shell)) as w:
        session = w.adapter.open_session()
        environment = line.setup(home, work, w.url, session)
        process = await asyncio.create_subprocess_exec(
            Path(PROGRAMS) / line.program,
            *line.arguments,
            cwd=work,
            env={"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "dumb", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        segments = await w.adapter.finish_session(session.session_id)

    main = [segment for segment in segments if segment.role == "main"]
    forks = sum(len(segment.forks) for segment in main)
    print(f"\n| {name} | {sum(segment.turns for segment in main)} | {len(main)} | {forks} |")  # noqa: T201  the table of docs/adapters.md
    assert process.returncode == 0, output.decode()[-3000:]
    assert (work / "notes.txt").read_text() == "this is the file\n"
    assert [(segment.kind, segment.turns, segment.forks) for segment in main] == [("main", 5, [])]
    titles = [
        turn for turn in w.engine.sampled if qwen3_tokenizer.decode(turn.token_ids).startswith("A title")
    ]
    turns = [turn for turn in w.engine.sampled if turn not in titles]
    assert trained(segments)[0] == (
        [token_id for turn in turns for token_id in turn.token_ids],
        [log_prob for turn in turns for log_prob in turn.log_probs],
    )
