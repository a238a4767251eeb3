"""MiniWoB++ through whole rollouts: a loaded plugin, a real engine wire, a real Chromium.

The scripted model sees only its prompt, and solves each task from the tree and the goal in it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest

from rollhook import Plugins, RunConfig, Runtime, Sample, Status, run_rollout
from rollhook.testing import ScriptedEngine, ScriptedRequest
from rollhook_browser.config import MiniWobConfig
from rollhook_browser.miniwob import MiniWob

pytestmark = pytest.mark.usefixtures("chromium")
ENTRY_POINT = EntryPoint("browser", "rollhook_browser.hooks", "rollhook.plugins")
Script = Sequence[str] | Callable[[ScriptedRequest], str]


@asynccontextmanager
async def run_of(
    tokenizer: Any, script: Script, **settings: Any
) -> AsyncIterator[tuple[Runtime, ScriptedEngine]]:
    async with ScriptedEngine(tokenizer, script) as engine:
        config = RunConfig(
            engine=engine.url, tool_parser="qwen25", settings={"browser/miniwob": settings}, retries=0
        )
        plugins = Plugins(entry_points=[ENTRY_POINT])
        async with Runtime(config, plugins=plugins, tokenizer=tokenizer) as runtime:
            yield runtime, engine


def row(task: str, index: int = 0, *, environment: str = "miniwob", **config: Any) -> Sample:
    said = {"name": f"browser/{environment}", "task": task, "seed": 1, **config}
    return Sample(index=index, prompt="Do the task.", metadata={"rollhook": {"environment": said}})


class Page:
    """What the model read last. `find` gives the id of the first line that matches."""

    def __init__(self, prompt: str) -> None:
        goal = re.search(r"^Goal: (.*)$", prompt, re.MULTILINE)
        assert goal is not None
        self.goal = goal[1]
        self.lines = prompt.rsplit("Page: ", 1)[1].splitlines()

    @property
    def quoted(self) -> list[str]:
        return re.findall(r'"([^"]*)"', self.goal)

    def find(self, pattern: str, nth: int = 0) -> str:
        found = [line for line in self.lines[2:] if re.search(pattern, line)]
        number = re.search(r"\[(\d+)\]", found[nth])
        assert number is not None
        return number[1]


def click(bid: str) -> str:
    return f'```\nclick("{bid}")\n```'


def fill(bid: str, value: str) -> str:
    return f"I fill it.\n\nAction: fill({bid!r}, {value!r})"


Policy = Callable[[Page], Iterator[str]]
"""The turns of one episode; the page is brought up to date before each."""


def submit(page: Page) -> str:
    return click(page.find(r'button "(Submit|Login)"'))


def click_test_2(page: Page) -> Iterator[str]:
    yield click(page.find('button "ONE"'))


def click_button(page: Page) -> Iterator[str]:
    yield click(page.find(f'button "{page.quoted[0]}"'))


def click_link(page: Page) -> Iterator[str]:
    yield click(page.find(f'button "{re.escape(page.quoted[0])}"'))


def click_tab(page: Page) -> Iterator[str]:
    wanted = re.search(r"Tab #\d", page.goal)
    assert wanted is not None
    yield click(page.find(f'link "{wanted[0]}"'))


def click_checkboxes(page: Page) -> Iterator[str]:
    wanted = page.goal.removeprefix("Select ").removesuffix(" and click Submit.").split(", ")
    for name in wanted:
        if name != "nothing":
            yield click(page.find(f'checkbox "{re.escape(name)}"'))
    yield submit(page)


def enter_text(page: Page) -> Iterator[str]:
    yield fill(page.find("textbox"), page.quoted[0])
    yield submit(page)


def login_user(page: Page) -> Iterator[str]:
    for place in (0, 1):
        yield fill(page.find("textbox", place), page.quoted[place])
    yield submit(page)


def choose_list(page: Page) -> Iterator[str]:
    name = page.goal.removeprefix("Select ").removesuffix(" from the list and click Submit.")
    yield f'```python\nselect_option("{page.find("combobox")}", "{name}")\n```'
    yield submit(page)


def click_collapsible(page: Page) -> Iterator[str]:
    yield click(page.find(r'tab "Section'))
    yield submit(page)


def simple_arithmetic(page: Page) -> Iterator[str]:
    left, sign, right = re.findall(r'"(\d+) ([x+-]) (\d+) ="', "\n".join(page.lines))[0]
    value = {"x": int(left) * int(right), "+": int(left) + int(right), "-": int(left) - int(right)}[sign]
    yield fill(page.find("textbox"), str(value))
    yield submit(page)


def use_spinner(page: Page) -> Iterator[str]:
    wanted = int(page.goal.split()[1])
    for _ in range(abs(wanted)):
        key = "ArrowUp" if wanted > 0 else "ArrowDown"
        yield f'```\npress("{page.find("spinbutton")}", "{key}")\n```'
    yield submit(page)


def button_delay(page: Page) -> Iterator[str]:
    yield click(page.find('button "ONE"'))
    seconds = int(page.goal.split()[4])
    yield f"```\nnoop({seconds * 1000 - 250})\n```"
    yield click(page.find('button "TWO"'))


POLICIES: Mapping[str, Policy] = {
    policy.__name__.replace("_", "-"): policy
    for policy in (
        click_test_2,
        click_button,
        click_link,
        click_tab,
        click_checkboxes,
        enter_text,
        login_user,
        choose_list,
        click_collapsible,
        simple_arithmetic,
        use_spinner,
        button_delay,
    )
}


def play(policies: Mapping[str, Policy]) -> Callable[[ScriptedRequest], str]:
    """A model that takes the turns of the policy for the task in its prompt."""
    games: dict[str, tuple[Page, Iterator[str]]] = {}

    def reply(request: ScriptedRequest) -> str:
        seen = Page(request.prompt)
        if request.session not in games:
            task = re.search(r"/miniwob/([a-z0-9-]+)\.html", request.prompt)
            assert task is not None
            games[request.session] = seen, policies[task[1]](seen)
        page, turns = games[request.session]
        page.lines = seen.lines
        return next(turns)

    return reply


async def test_a_scripted_policy_solves_each_of_twelve_kinds(smollm2_tokenizer: Any) -> None:
    rewards = {}
    async with run_of(smollm2_tokenizer, play(POLICIES), max_contexts=3) as (runtime, _):

        async def solve(index: int, task: str) -> None:
            [sample] = await run_rollout(runtime, row(task, index), {})
            rewards[task] = sample.status, sample.reward, sample.metadata["rollhook_result"]["error"]

        async with asyncio.TaskGroup() as group:
            for index, task in enumerate(POLICIES):
                group.create_task(solve(index, task))

    assert dict.fromkeys(POLICIES, (Status.COMPLETED, 1.0, None)) == rewards


async def test_an_instance_and_its_timed_reward_depend_on_seed_and_actions_alone(
    smollm2_tokenizer: Any,
) -> None:
    """The first of two actions takes 250 ms of an episode of 10 s, however slow the model was."""
    async with run_of(smollm2_tokenizer, play(POLICIES), timed_reward=True) as (runtime, engine):
        samples = [
            sample
            for index in (0, 1)
            for sample in await run_rollout(runtime, row("enter-text", index, seed=5), {})
        ]

    first, again = (Page(request.prompt).goal for request in engine.requests if request.turn == 0)
    rewards = [sample.reward for sample in samples]
    assert rewards == [0.975, 0.975]
    assert first == again


def test_samples_of_one_group_share_an_instance_unless_the_row_has_a_seed() -> None:
    def seed_of(index: int, group: int | None, **config: Any) -> str:
        world: Any = SimpleNamespace(seed=7)
        rollout: Any = SimpleNamespace(sample=Sample(index=index, prompt="", group_index=group))
        return MiniWob.of(MiniWobConfig(task="click-test", **config), world, rollout).seed

    assert [
        seed_of(0, 0),
        seed_of(1, 0),
        seed_of(2, 1),
        seed_of(3, None),
    ] == ["7/0", "7/0", "7/1", "7/3"]
    assert seed_of(0, 0, seed=12) == "12"


async def test_the_episode_ends_by_its_own_clock_which_only_actions_move(smollm2_tokenizer: Any) -> None:
    wait = "```\nnoop(5000)\n```"
    async with run_of(smollm2_tokenizer, [wait, wait]) as (runtime, engine):
        [sample] = await run_rollout(runtime, row("click-test"), {})

    environment = sample.metadata["rollhook_result"]["environment"]
    assert (sample.status, sample.reward) == (Status.COMPLETED, -1.0)
    assert environment["info"]["reason"] == "timed out"
    assert len(engine.requests) == 2


async def test_a_turn_limit_gives_the_reward_of_an_unfinished_episode(smollm2_tokenizer: Any) -> None:
    sample = row("click-test")
    sample.metadata["rollhook"]["limits"] = {"max_turns": 2}
    async with run_of(smollm2_tokenizer, ["Hm.", "```\nnoop()\n```"]) as (runtime, engine):
        [sample] = await run_rollout(runtime, sample, {})

    assert (sample.status, sample.reward) == (Status.TRUNCATED, 0.0)
    assert "Error: no action was found; give exactly one" in engine.requests[1].prompt


async def test_a_task_can_be_reported_and_navigation_is_not_offered(smollm2_tokenizer: Any) -> None:
    script = ['Action: goto("http://127.0.0.1/")', 'Action: report_infeasible("no button")']
    async with run_of(smollm2_tokenizer, script) as (runtime, engine):
        [sample] = await run_rollout(runtime, row("click-test"), {})

    assert "there is no action 'goto' here" in engine.requests[1].prompt
    assert (sample.status, sample.reward) == (Status.COMPLETED, 0.0)
    assert sample.metadata["rollhook_result"]["environment"]["info"]["infeasible"] == "no button"


def tool_call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


async def test_tools_act_in_the_same_episode(qwen3_tokenizer: Any) -> None:
    def model(request: ScriptedRequest) -> str:
        page = Page(request.prompt)
        match request.turn:
            case 0:
                return tool_call("click", '{"bid": 99}')
            case 1:
                value = page.quoted[0].replace("\\", "")
                return tool_call("fill", f'{{"bid": "{page.find("textbox")}", "value": "{value}"}}')
            case 2:
                return tool_call("click", f'{{"bid": "{page.find("Submit")}"}}')
        raise AssertionError("the episode was over")

    async with run_of(qwen3_tokenizer, model) as (runtime, engine):
        [sample] = await run_rollout(runtime, row("enter-text", environment="miniwob-tools"), {})

    environment = sample.metadata["rollhook_result"]["environment"]

    assert '"name": "select_option"' in engine.requests[0].prompt
    assert '"name": "goto"' not in engine.requests[0].prompt
    assert "Error: there is no element [99]" in engine.requests[1].prompt
    assert len(engine.requests) == 3
    assert (sample.status, sample.reward) == (Status.COMPLETED, 1.0)
    assert (environment["done"], environment["reward"], environment["info"]["raw_reward"]) == (True, 1.0, 1.0)


async def test_a_tool_that_ends_the_episode_on_the_last_turn_is_rewarded(qwen3_tokenizer: Any) -> None:
    sample = row("click-test", environment="miniwob-tools")
    sample.metadata["rollhook"]["limits"] = {"max_turns": 1}

    def model(request: ScriptedRequest) -> str:
        return tool_call("click", f'{{"bid": {Page(request.prompt).find("Click Me!")}}}')

    async with run_of(qwen3_tokenizer, model) as (runtime, _):
        [sample] = await run_rollout(runtime, sample, {})

    assert (sample.status, sample.reward) == (Status.COMPLETED, 1.0)


async def test_an_unknown_task_is_refused_before_any_token(smollm2_tokenizer: Any) -> None:
    async with run_of(smollm2_tokenizer, []) as (runtime, _):
        [sample] = await run_rollout(runtime, row("click-buton"), {})

    error = sample.metadata["rollhook_result"]["error"]
    assert sample.status is Status.FAILED
    assert "MiniWoB++ has no task 'click-buton'; did you mean 'click-button'?" in error["message"]
