"""math-verify in killable processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from rollhook import Score
from rollhook.verifiers.mathematics import MathConfig, MathVerifier, MathWorkers, last_boxed, open_math
from tests.unit.verifiers.world import NOTHING, scored, view

pytest.importorskip("math_verify", reason="needs the extra `verifiers`")
pytestmark = pytest.mark.asyncio(loop_scope="module")

HANG = "\\boxed{9^{9^{9^{9}}}}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def workers() -> AsyncIterator[MathWorkers]:
    """One process for the module: starting one takes a second."""
    async with open_math(MathConfig(workers=1, timeout_s=20), NOTHING) as opened:
        yield opened


@pytest.mark.parametrize(
    ("response", "label", "right"),
    [
        ("so \\boxed{0.5}", "1/2", 1.0),
        ("\\boxed{\\frac{2}{4}}", "$\\frac12$", 1.0),
        ("\\boxed{1,234}", "1234", 1.0),
        ("\\boxed{(x+1)^2}", "x**2 + 2*x + 1", 1.0),
        ("\\boxed{2 \\cdot 10^{3}}", "2e3", 1.0),
        ("\\boxed{99}", "99 days", 1.0),
        ("\\boxed{\\text{North}}", "north", 1.0),
        ("\\boxed{5} then \\boxed{4}", "4", 1.0),
        ("\\boxed{4}", "\\boxed{4}", 1.0),
        ("\\boxed{3}", ["4", "3"], 1.0),
        ("\\boxed{4} then \\boxed{5}", "4", 0.0),
        ("the answer is 4", "4", 0.0),
        ("\\boxed{3, 4}", "4", 0.0),  # several answers are none
        ("\\boxed{3 \\text{ or } 4}", "4", 0.0),
        ("\\boxed{4 (I am sure)}", "4", 0.0),
        ("\\boxed{x \\cdot \\cdot 4}", "4", 0.0),  # math-verify alone reads the 4 of what it cannot read
        ("\\boxed{1198080}", "98560*y**7 + 997440*y**5 + 1198080*y**3", 0.0),  # and the 1198080 of this
        ("\\boxed{0}", "0xe956", 0.0),  # and takes this for a product
        ("\\boxed{esy}", "yes", 0.0),  # and words too
        ("\\boxed{}", "4", 0.0),
        ("\\boxed{4", "4", 0.0),
        ("\\boxed{__import__('os').abort()}", "4", 0.0),
    ],
)
async def test_the_last_boxed_answer_is_compared_as_mathematics(
    workers: MathWorkers, response: str, label: Any, right: float
) -> None:
    score = await MathVerifier(workers, NOTHING).score(view(response, label))

    assert score.value == right


async def test_without_boxes_the_last_line_answers_if_the_run_says_so() -> None:
    async with open_math(MathConfig(boxed=False, workers=1, timeout_s=20), NOTHING) as workers:
        verifier = MathVerifier(workers, NOTHING)
        said = ["It is 5.\nThe answer is $\\frac{8}{2}$.", "\\boxed{5}\nThe answer is 4", "\\boxed{4", ""]

        assert [(await verifier.score(view(text))).value for text in said] == [1.0, 0.0, 0.0, 0.0]


async def test_what_hangs_ends_in_time_and_the_next_answer_is_judged() -> None:
    async with open_math(MathConfig(workers=1, timeout_s=1), NOTHING) as workers:
        verifier = MathVerifier(workers, NOTHING)

        assert await verifier.score(view(HANG)) == Score(0.0, {"answered": 1.0, "timed_out": 1.0})
        with pytest.raises(ValueError, match="cannot be read as mathematics in time"):
            await verifier.score(view("\\boxed{4}", "(" * 150 + "1" + ")" * 150))
        assert (await verifier.score(view("\\boxed{4}"))).value == 1.0


@pytest.mark.parametrize("key", ["tag", "timeout_s", "workers"])
async def test_a_row_cannot_make_ever_new_processes(key: str) -> None:
    [refused] = await scored({"name": "math", key: 3}, "\\boxed{4}")

    assert f'a row may not set "{key}" of rollhook/math' in str(refused)


async def test_a_cancelled_comparison_leaves_no_process_and_no_worker_is_lost() -> None:
    others = children()
    async with open_math(MathConfig(workers=1, timeout_s=50), NOTHING) as workers:
        verifier = MathVerifier(workers, NOTHING)
        await verifier.score(view("\\boxed{4}"))
        started = children() - others
        hanging = asyncio.create_task(verifier.score(view(HANG)))
        await asyncio.sleep(0.2)
        hanging.cancel()
        await asyncio.wait([hanging])

        assert hanging.cancelled()
        assert len(started) == 1
        assert children() == others
        assert (await verifier.score(view("\\boxed{4}"))).value == 1.0
    assert children() == others


def children() -> set[str]:
    """The ids of processes of this one that compare mathematics."""
    listed = subprocess.run(
        ["ps", "-ww", "-o", "pid=", "-o", "args=", "--ppid", str(os.getpid())],
        capture_output=True,
        text=True,
        check=False,
    )
    return {line.split()[0] for line in listed.stdout.splitlines() if "math_worker" in line}


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("\\boxed{1} \\boxed{ \\frac{1}{2} }", "\\frac{1}{2}"),
        ("\\fbox{3}", "3"),
        ("\\boxed{" + "9" * 3000 + "}", None),
        ("\\boxed{", None),
        ("none", None),
    ],
)
async def test_what_is_boxed_ends_at_its_own_brace(text: str, inside: str | None) -> None:
    assert last_boxed(text) == inside
