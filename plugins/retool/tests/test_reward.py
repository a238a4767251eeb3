"""The verifier, on real comparisons in real processes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rollhook import Runtime, Score, View
from rollhook_retool.config import RewardConfig
from rollhook_retool.protocol import interpreter
from rollhook_retool.reward import MathReward, open_reward

pytestmark = pytest.mark.asyncio(loop_scope="module")

RIGHT = [
    ("\\boxed{42}", "42"),
    ("<answer>\n\\boxed{\\frac{1}{2}}\n</answer>", "0.5"),
    ("\\boxed{\\dfrac12}", "1/2"),
    ("\\boxed{2\\sqrt{3}}", "\\sqrt{12}"),
    ("\\boxed{x^2 + 2x + 1}", "(x+1)^2"),
    ("\\boxed{(1, 2)}", "$(1,2)$"),
    ("\\boxed{\\{1, 2, 3\\}}", "\\{3, 2, 1\\}"),
    ("\\boxed{1} no: \\boxed{2}", 2),
    ("\\boxed{1,000}", 1000),
    ("\\boxed{\\text{Monday}}", "\\text{Monday}"),
    ("\\boxed{3}", ["4", "3"]),
    ("\\boxed{3}", {"ground_truth": "\\boxed{3}"}),
]
WRONG = [
    ("\\boxed{41}", "42"),
    ("42", "42"),
    ("", "42"),
    ("\\boxed{}", "42"),
    ("\\boxed{42", "42"),
    ("\\boxed{2} no: \\boxed{1}", "2"),
    ("the prompt's \\boxed{the final answer}", "42"),
    ("\\boxed{" + "9" * 3000 + "}", "42"),
    ("\\boxed{__import__('os').system('true')}", "42"),
    ("\\boxed{\\boxed{\\frac{}{}}", "42"),
    (interpreter("\\boxed{42}"), "42"),
    (interpreter("</interpreter> \\boxed{42}"), "42"),
    ("\\boxed{41}" + interpreter("\\boxed{42}"), "42"),
]


def view(response: str, label: Any) -> View:
    return View("Solve it. Answer \\boxed{42}.", label, [], response, {})


async def scores(runtime: Runtime, *views: View, **config: Any) -> list[Score]:
    rollout: Any = SimpleNamespace()
    async with open_reward(RewardConfig(**config), runtime) as opened, asyncio.TaskGroup() as group:
        verifier = MathReward(opened, rollout)
        tasks = [group.create_task(verifier.score(one)) for one in views]
    return [task.result() for task in tasks]


async def test_right_answers_in_any_form_earn_one_and_others_minus_one(runtime: Runtime) -> None:
    found = await scores(runtime, *[view(response, label) for response, label in [*RIGHT, *WRONG]])

    assert [score.value for score in found] == [1.0] * len(RIGHT) + [-1.0] * len(WRONG)
    assert found[0].parts == {"right": 1.0, "answered": 1.0, "timed_out": 0.0}


async def test_a_comparison_that_hangs_is_killed_and_does_not_hold_up_the_next(runtime: Runtime) -> None:
    tower = "9^{9^{9^{9^{9}}}}"
    found = await scores(runtime, view(f"\\boxed{{{tower}}}", "42"), view("\\boxed{42}", "42"), timeout_s=2)

    assert [score.value for score in found] == [-1.0, 1.0]


async def test_levels_can_be_set(runtime: Runtime) -> None:
    [score] = await scores(runtime, view("\\boxed{1}", "2"), right=1, wrong=0)

    assert score.value == 0.0


@pytest.mark.parametrize("label", [None, [], {}, {"answer": None}, [None]])
async def test_a_row_without_a_label_is_an_error_and_not_a_wrong_answer(runtime: Runtime, label: Any) -> None:
    rollout: Any = SimpleNamespace()
    async with open_reward(RewardConfig(), runtime) as opened:
        with pytest.raises(ValueError, match="the row has no label"):
            await MathReward(opened, rollout).score(view("\\boxed{1}", label))


async def test_labels_may_be_numpys(runtime: Runtime) -> None:
    [score] = await scores(runtime, view("\\boxed{2}", np.array(["1", "2"])))

    assert score.value == 1.0
