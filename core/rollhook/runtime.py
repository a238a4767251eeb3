"""Runtime: what one run owns, opened when first needed and closed at its end.

Invariant: one Runtime per (event loop, configuration); the table at the bottom and the thread of
`rollhook.slime.thread` are the package's only module-level state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from typing_extensions import get_protocol_members

from rollhook import builtin
from rollhook.aborts import Aborts
from rollhook.config import RunConfig
from rollhook.engine import Engine, SGLangClient
from rollhook.errors import ConfigError, ResourceError, boundary
from rollhook.events import EventBus
from rollhook.gateway import check_gateway
from rollhook.hookspecs import EventSink, Normalizer, SandboxSpec
from rollhook.interruptions import ContinuingEngine
from rollhook.isolation import Sandbox
from rollhook.ledger import Ledger
from rollhook.parsing import NewId, Parser, make_parser
from rollhook.plugins import Plugins, builtin_plugin
from rollhook.protocols import Rollout
from rollhook.registry import Registry
from rollhook.replay import Replay
from rollhook.resources import Resources
from rollhook.served import ServedModel, serve_model
from rollhook.spec import Choice, Resolver
from rollhook.version import __version__

CLOSE_GRACE_S = 40.0
"""For a whole runtime to close: longer than what it holds may take."""

_T = TypeVar("_T")
_log = logging.getLogger("rollhook.runtime")


class Runtime:
    """What one run owns. Use as `async with Runtime(config) as runtime`.

    plugins, engine and tokenizer may be handed in (tests, embedding); what is handed in is not closed.
    Raises ConfigError on entering when the run cannot start: an unknown plugin, no engine, no tokenizer.
    """

    policy: ServedModel
    events: EventBus

    def __init__(
        self,
        config: RunConfig,
        *,
        plugins: Plugins | None = None,
        engine: Engine | None = None,
        tokenizer: Any = None,
    ) -> None:
        self.config = config
        self.replay = config.replay
        named = list(config.plugins)
        if plugins is None:
            plugins = Plugins(block=config.block)
            named += [plugins.add_module(module) for module in config.modules]
        plugins.check_block()
        self.plugins = plugins
        self._named = [plugins.load(name) for name in dict.fromkeys(named)]
        self.registry = Registry(self.plugins, builtin_plugin(builtin, __version__))
        self.resolver = Resolver(self.registry, config)
        self._sandboxes = self.resolver.choose("sandbox", config.sandbox)
        self._given_engine = engine
        self._given_tokenizer = tokenizer
        self._models: dict[str, ServedModel] = {}
        self._resources = Resources()
        self._stack = AsyncExitStack()
        self._normalizers: list[Normalizer] = []
        self.aborts = Aborts(self._engines)

    @property
    def engine(self) -> Engine:
        """The policy's engine."""
        return self.policy.engine

    @property
    def tokenizer(self) -> Any:
        """The policy's tokenizer."""
        return self.policy.tokenizer

    @property
    def seed(self) -> int:
        """The run's seed (0 when the configuration names none)."""
        return self.config.seed or 0

    @property
    def concurrency(self) -> int:
        """How many rollouts may run at once."""
        return self.config.concurrency

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._open(stack, policy=True)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @asynccontextmanager
    async def scoring(self) -> AsyncIterator[Self]:
        """Enter without an engine: enough to score answers that are there; only `models` can be asked."""
        async with AsyncExitStack() as stack:
            await self._open(stack, policy=False)
            yield self

    async def abort(self) -> None:
        """End every rollout and every scoring in progress, within about a second, as ABORTED Samples.

        They hold what was sampled. What begins later is ABORTED at once, until `lift_abort`. Plugin code that
        does not end is left to itself and waited for when the run closes.
        """
        await self.aborts.abort()

    def lift_abort(self) -> None:
        """Let rollouts begin again after `abort`."""
        self.aborts.lift()

    @property
    def aborting(self) -> bool:
        """Whether an abort is in force: by `abort`, or by slime's own flag."""
        return self.aborts.in_force

    def continuing(self, engine: Engine, replay: Replay) -> ContinuingEngine:
        """`engine`, of which turns come whole unless the trainer aborts, with what it replays."""
        aborts = self.aborts
        return ContinuingEngine(engine, lambda: aborts.caller_must_end, self.config.interrupted_turns, replay)

    def model(self, name: str | None) -> ServedModel:
        """The model agents call `name`; None: the policy. Raises KeyError for a name nobody configured."""
        return self.policy if name is None else self._models[name]

    @property
    def model_names(self) -> list[str]:
        """The models beside the policy."""
        return list(self._models)

    def count_tokens(self, text: str) -> int:
        """How many of the policy's tokens a text takes, alone."""
        if not hasattr(self, "policy"):
            raise RuntimeError("tokens cannot be counted here: answers are scored without a model")
        return len(self.policy.renderer.raw(text))

    def ledger(self, model: ServedModel, *, role: str, trained: bool, clock: datetime) -> Ledger:
        """A new token ledger for one agent of `model`. clock: the time that chat templates see."""
        renderer = model.renderer.frozen_at(clock)
        return Ledger(
            renderer,
            role=role,
            trained=trained,
            normalizers=self._normalizers,
            train_abandoned=self.config.train_abandoned,
        )

    def parser(
        self, tools: Sequence[Mapping[str, Any]], new_id: NewId | None, starts_in_reasoning: bool
    ) -> Parser:
        """The parser of one turn. Tool calls are looked for only where tools were offered."""
        return make_parser(
            self.config.tool_parser if tools else None,
            self.config.reasoning_parser,
            tools=tools,
            starts_in_reasoning=starts_in_reasoning,
            new_id=new_id,
        )

    async def create(self, choice: Choice, kind: type[_T], rollout: Rollout) -> _T:
        """What `choice` makes for one rollout, its shared resource opened if need be.

        Raises ResourceError, naming the plugin, when `open` or `create` fails or makes something else.
        """
        return await self._make(choice, kind, lambda resource: choice.spec.create(resource, rollout))

    async def sandbox(self, *, packages: Sequence[str] = (), image: str | None = None) -> Sandbox:
        """A new sandbox of the configured backend; whoever asked closes it.

        Raises ConfigError where the backend cannot run, ResourceError when its plugin fails or has no images.
        """
        backend, wanted = self._sandboxes, tuple(packages)
        spec = cast(SandboxSpec, backend.spec)
        if image is None:
            return await self._make(backend, Sandbox, lambda resource: spec.create(resource, wanted))
        from_image = spec.from_image
        if from_image is None:
            raise ResourceError(
                f"the container image {image} is needed, and the sandbox backend {backend.name} has no "
                "images: set `sandbox` in the run configuration to one that has, as docker of rollhook-docker"
            )
        return await self._make(backend, Sandbox, lambda resource: from_image(resource, wanted, image))

    async def share(
        self,
        name: str,
        opener: Callable[[], AbstractAsyncContextManager[_T]],
        *,
        key: Hashable = None,
    ) -> _T:
        """One resource for every item of the run that asks for it (see `rollhook.protocols.Run.share`)."""
        return await self._resources.get((name, key), name, lambda: _attributed(name, opener))

    async def _make(self, choice: Choice, kind: type[_T], create: Callable[[Any], object]) -> _T:
        resource = await self._resource(choice)
        async with boundary(ResourceError, choice.name):
            made = create(resource)
            if not isinstance(made, kind):
                missing = sorted(name for name in get_protocol_members(kind) if not hasattr(made, name))
                raise TypeError(
                    f"create() returned {type(made).__name__}, which is no {kind.__name__}: "
                    f"it lacks {', '.join(missing)}"
                )
        return made

    async def _resource(self, choice: Choice) -> Any:
        opener = choice.spec.open
        if opener is None:
            return choice.config
        key = (type(choice.spec), choice.name, choice.config.model_dump_json())
        return await self._resources.get(
            key, choice.name, lambda: _attributed(choice.name, lambda: opener(choice.config, self))
        )

    async def _open(self, stack: AsyncExitStack, *, policy: bool) -> None:
        """Open what the run owns; `stack` closes it."""
        sinks: list[EventSink] = []
        for plugin in self._named:
            sinks.extend(plugin.event_sinks)
            self._normalizers.extend(plugin.normalizers)
        self.events = EventBus(sinks)
        stack.push_async_callback(asyncio.to_thread, self.events.close)
        make_parser(self.config.tool_parser, self.config.reasoning_parser)  # both names are known
        if policy:
            self.policy = await self._open_policy(stack)
        for name, url in self.config.models.items():
            if policy and url == self.config.engine:
                self._models[name] = self.policy  # slime lists the model it trains among the others
                continue
            engine = await stack.enter_async_context(self._client(url))
            self._models[name] = await serve_model(engine, name=name, **self._rendering)
        stack.push_async_callback(self._resources.close)
        stack.push_async_callback(self.aborts.close)

    def _engines(self) -> list[Engine]:
        """Each engine of the run once."""
        served = [*self._models.values(), *([self.policy] if hasattr(self, "policy") else [])]
        return list({id(model.engine): model.engine for model in served}.values())

    async def _open_policy(self, stack: AsyncExitStack) -> ServedModel:
        engine = self._given_engine
        if engine is None:
            url = self.config.engine
            if url is None:
                raise ConfigError(
                    "the run names no engine: set engine (or --engine) to a URL or to `embedded`"
                )
            if url == "embedded":
                from rollhook.embedded import EmbeddedEngine

                url = (await stack.enter_async_context(EmbeddedEngine(self.config.model))).url
            replay, policy = self.replay, self.config.router_policy
            sampling = replay.sampling(self.config.sampling)
            await check_gateway(url, sampling=sampling, extra=replay.extra(None), policy=policy)
            engine = await stack.enter_async_context(self._client(url))
        template = self.config.chat_template
        return await serve_model(
            engine,
            tokenizer=self._given_tokenizer,
            tokenizer_path=self.config.tokenizer,
            chat_template=None if template is None else Path(template),
            **self._rendering,
        )

    @property
    def _rendering(self) -> dict[str, Any]:
        return {
            "history": self.config.history,
            "chat_template_kwargs": self.config.chat_template_kwargs,
            "check": self.config.check_rendering,
        }

    def _client(self, url: str) -> SGLangClient:
        return SGLangClient(url, retries=self.config.retries, request_timeout_s=self.config.request_timeout_s)


@asynccontextmanager
async def _attributed(name: str, opener: Callable[[], AbstractAsyncContextManager[_T]]) -> AsyncIterator[_T]:
    """What `opener` makes; what goes wrong in opening or closing it is a ResourceError of its owner."""
    async with boundary(ResourceError, name), opener() as opened:
        yield opened


_RUNTIMES: dict[asyncio.AbstractEventLoop, Resources] = {}


async def runtime_for(config: RunConfig) -> Runtime:
    """The Runtime of this event loop and configuration, opened by the first caller.

    Callers at once share one opening, which goes on when they are cancelled; a failed one raises its
    ConfigError in each and is not kept. It is open until `close_runtimes`, or until the loop ends.
    """
    for loop in list(_RUNTIMES):
        left = _RUNTIMES.pop(loop, None) if loop.is_closed() else None
        if left:
            _log.warning(
                "an event loop ended while rollhook was open on it, and what that held is lost: await "
                "rollhook.slime.shutdown() first"
            )
    runtimes = _RUNTIMES.setdefault(asyncio.get_running_loop(), Resources(close_grace_s=CLOSE_GRACE_S))
    return await runtimes.get(config.fingerprint(), "the runtime", lambda: Runtime(config))


def loops_with_runtimes() -> list[asyncio.AbstractEventLoop]:
    """The event loops, not closed yet, on which `runtime_for` opened something."""
    return [loop for loop in list(_RUNTIMES) if not loop.is_closed()]


async def close_runtimes() -> None:
    """Close every Runtime that `runtime_for` opened on this event loop."""
    if runtimes := _RUNTIMES.pop(asyncio.get_running_loop(), None):
        await runtimes.close()
