"""What the plugin `browser` registers: environments by text and by tools, the tools, and verifiers."""

from functools import partial

from rollhook import Defaults, EnvironmentSpec, ToolSpec, VerifierSpec, hookimpl
from rollhook_browser.actions import KINDS, NAVIGATION
from rollhook_browser.config import MiniWobConfig, PagesConfig
from rollhook_browser.environment import BrowserEnvironment
from rollhook_browser.pool import open_world
from rollhook_browser.reward import AnswerReward, TaskReward
from rollhook_browser.tools import maker


@hookimpl
def rollhook_environments() -> list[EnvironmentSpec]:
    """`browser` and `browser-tools` on the run's pages, `miniwob` and `miniwob-tools` on MiniWoB++'s."""
    by_text, by_tools = partial(BrowserEnvironment, form="text"), partial(BrowserEnvironment, form="tools")
    all_tools = [f"browser/{name}" for name in KINDS]
    page_tools = [f"browser/{name}" for name in KINDS if name not in NAVIGATION]
    answer, own = "browser/browser", "browser/miniwob"
    return [
        EnvironmentSpec(
            name="browser",
            config=PagesConfig,
            open=open_world,
            create=by_text,
            defaults=Defaults(verifier=answer),
        ),
        EnvironmentSpec(
            name="browser-tools",
            config=PagesConfig,
            open=open_world,
            create=by_tools,
            defaults=Defaults(verifier=answer, tools=all_tools),
        ),
        EnvironmentSpec(
            name="miniwob",
            config=MiniWobConfig,
            open=open_world,
            create=by_text,
            defaults=Defaults(verifier=own),
        ),
        EnvironmentSpec(
            name="miniwob-tools",
            config=MiniWobConfig,
            open=open_world,
            create=by_tools,
            defaults=Defaults(verifier=own, tools=page_tools),
        ),
    ]


@hookimpl
def rollhook_tools() -> list[ToolSpec]:
    """Each action by its name."""
    return [ToolSpec(name=name, create=maker(name)) for name in KINDS]


@hookimpl
def rollhook_verifiers() -> list[VerifierSpec]:
    """`browser`: the answer sent to the user; `miniwob`: the task's own reward."""
    return [
        VerifierSpec(name="browser", create=AnswerReward),
        VerifierSpec(name="miniwob", create=TaskReward),
    ]
