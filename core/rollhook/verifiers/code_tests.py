"""The verifier `code_tests`: whether the code in a response passes the label's tests, in the run's sandbox.

Invariant: an answer runs only in the sandbox. A test passes only when its end was reached: a program that
exits early, prints success or kills its runner fails. What is to be printed never enters the sandbox.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from rollhook.isolation import ExecResult, Sandbox
from rollhook.protocols import Rollout, Score, View

MAX_CASES = 200
_FENCE = re.compile(r"```[ \t]*([\w+-]*)")
_LANGUAGES = ("", "py", "python", "python3")
_RUNNER = """
import json, os, sys
told = json.loads(sys.stdin.buffer.read())
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
def run(said, answer, tests, proof):
    space = {"__name__": "__main__"}
    exec(compile(answer, "answer.py", "exec"), space)
    exec(compile(tests, "tests.py", "exec"), space)
    os.write(said, proof.encode())
run(os.dup(1), **told)
"""


class CodeTestsConfig(BaseModel):
    """How code is tested.

    fenced: only the last closed Python block in ``` fences is code; otherwise, where there is none, all is.
    timeout_s: one test. partial: the reward is the share of tests that pass; otherwise all or nothing.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    fenced: bool = True
    timeout_s: float = Field(10.0, gt=0, le=120, allow_inf_nan=False)
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """One test: Python to run after the answer, or what a program reads and has to print."""

    code: str | None = None
    stdin: str = ""
    stdout: str = ""


class CodeTests:
    """The share of tests that pass, or 1.0 for all and else 0.0. Parts: `passed`, a share, and `answered`.

    Tests stop at the first that fails unless `partial` is set.
    """

    def __init__(self, config: CodeTestsConfig, rollout: Rollout) -> None:
        self._config = config
        self._rollout = rollout

    async def score(self, view: View) -> Score:
        """Raises ValueError for a label that holds no tests."""
        cases = read_cases(view.label)
        code = last_code(view.response, fenced=self._config.fenced)
        if code is None:
            return Score(0.0, {"passed": 0.0, "answered": 0.0})
        sandbox = await self._rollout.sandbox()
        try:
            passed = 0
            for case in cases:
                right = await self._passes(sandbox, code, case)
                passed += right
                if not right and not self._config.partial:
                    break
        finally:
            await sandbox.close()
        share = passed / len(cases)
        value = share if self._config.partial else float(passed == len(cases))
        return Score(value, {"passed": share, "answered": 1.0})

    async def _passes(self, sandbox: Sandbox, code: str, case: Case) -> bool:
        if case.code is None:
            await sandbox.write_file("answer.py", code.encode("utf-8", "replace"))
            ran = await self._run(sandbox, ["answer.py"], case.stdin.encode())
            return ran.exit_code == 0 and _lines(ran.stdout.decode("utf-8", "replace")) == _lines(case.stdout)
        proof = secrets.token_hex(16)
        told = json.dumps({"answer": code, "tests": case.code, "proof": proof})
        ran = await self._run(sandbox, ["-c", _RUNNER], told.encode())
        return ran.exit_code == 0 and ran.stdout.endswith(proof.encode())

    async def _run(self, sandbox: Sandbox, arguments: Sequence[str], stdin: bytes) -> ExecResult:
        command = [sandbox.python, *arguments]
        return await sandbox.exec(command, stdin=stdin, timeout_s=self._config.timeout_s)


def last_code(response: str, *, fenced: bool = True) -> str | None:
    """The last closed Python block in ``` fences; without any, None or the whole response."""
    found: str | None = None
    language: str | None = None
    block: list[str] = []
    for line in response.split("\n"):
        if language is None:
            if opening := _FENCE.match(line):
                language, block = opening[1].lower(), []
        elif line.rstrip() == "```":
            found = "".join(block) if language in _LANGUAGES else found
            language = None
        else:
            block.append(f"{line}\n")
    if found is not None:
        return found
    return None if fenced or not response.strip() else response


def read_cases(label: Any) -> list[Case]:
    """The tests in a label: Python text, {"stdin", "stdout"}, or a list of such. Raises ValueError."""
    entries = label if isinstance(label, list | tuple) else [label]
    cases = [_case(entry) for entry in entries]
    if not 1 <= len(cases) <= MAX_CASES:
        raise ValueError(f"the label has {len(cases)} tests; code_tests runs 1 to {MAX_CASES}")
    return cases


def _case(entry: Any) -> Case:
    if isinstance(entry, str) and entry.strip():
        return Case(code=entry)
    if isinstance(entry, Mapping) and isinstance(entry.get("stdout"), str):
        return Case(stdin=str(entry.get("stdin") or ""), stdout=entry["stdout"])
    raise ValueError(
        'the label holds no tests: give Python text, {"stdin": ..., "stdout": ...}, or a list of them'
    )


def _lines(text: str) -> list[str]:
    """Lines without trailing space, and without empty ones at the end."""
    return [line.rstrip() for line in text.rstrip().splitlines()]
