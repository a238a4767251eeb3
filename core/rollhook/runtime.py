"""Runtime: what one run owns, opened when first needed and closed at its end.

Invariant: one Runtime per (event loop, configuration); the table at the bottom is the package's only
module-level state. Each shared resource is entered and left by one task of its own, so that context managers
bound to a task (browsers, cancel scopes) work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from typing_extensions import get_protocol_members

from rollhook import builtin
from rollhook.config import RunConfig
from rollhook.engine import Engine, SGLangClient
from rollhook.errors import ConfigError, ResourceError, RollhookError, boundary
from rollhook.events import EventBus
from rollhook.hookspecs import EventSink, Normalizer
from rollhook.ledger import Ledger
from rollhook.parsing import NewId, Parser, make_parser
from rollhook.plugins import Plugins, builtin_plugin
from rollhook.protocols import Rollout, Sandbox
from rollhook.registry import Registry
from rollhook.served import ServedModel, serve_model
from rollhook.spec import Choice, Resolver
from rollhook.version import __version__

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
        self._resources: dict[tuple[type, str, str], _Resource] = {}
        self._stack = AsyncExitStack()
        self._normalizers: list[Normalizer] = []

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

    def model(self, name: str | None) -> ServedModel:
        """The model agents call `name`; None: the policy. Raises KeyError for a name nobody configured."""
        return self.policy if name is None else self._models[name]

    @property
    def model_names(self) -> list[str]:
        """The models beside the policy."""
        return list(self._models)

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
        return await self._make(choice, kind, rollout)

    async def sandbox(self, *, packages: Sequence[str] = ()) -> Sandbox:
        """A new sandbox of the configured backend; whoever asked closes it.

        Raises ConfigError where the backend cannot run, ResourceError when its plugin fails.
        """
        return await self._make(self._sandboxes, Sandbox, tuple(packages))

    async def _make(self, choice: Choice, kind: type[_T], argument: Any) -> _T:
        resource = await self._resource(choice)
        async with boundary(ResourceError, choice.name):
            made = choice.spec.create(resource, argument)
            if not isinstance(made, kind):
                missing = sorted(name for name in get_protocol_members(kind) if not hasattr(made, name))
                raise TypeError(
                    f"create() returned {type(made).__name__}, which is no {kind.__name__}: "
                    f"it lacks {', '.join(missing)}"
                )
        return made

    async def _resource(self, choice: Choice) -> Any:
        if choice.spec.open is None:
            return choice.config
        key = (type(choice.spec), choice.name, choice.config.model_dump_json())
        if key not in self._resources:
            self._resources[key] = _Resource(choice, self)
        try:
            return await self._resources[key].value()
        except RollhookError:
            self._resources.pop(key, None)
            raise

    async def _close_resources(self) -> None:
        for resource in list(self._resources.values()):
            await resource.close()
        self._resources.clear()

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
            engine = await stack.enter_async_context(self._client(url))
            self._models[name] = await serve_model(engine, name=name, **self._rendering)
        stack.push_async_callback(self._close_resources)

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


class _Resource:
    """One `open` of a spec, entered and left inside one task."""

    def __init__(self, choice: Choice, runtime: Runtime) -> None:
        self._choice = choice
        self._ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._own(runtime), name=f"rollhook open {choice.name}")

    async def _own(self, runtime: Runtime) -> None:
        assert self._choice.spec.open is not None
        try:
            async with (
                boundary(ResourceError, self._choice.name),
                self._choice.spec.open(self._choice.config, runtime) as resource,
            ):
                self._ready.set_result(resource)
                await self._closing.wait()
        except RollhookError as error:
            if self._ready.done():
                _log.warning("closing what rollouts shared failed: %s", error)
            else:
                self._ready.set_exception(error)

    async def value(self) -> Any:
        """The opened resource. Raises ResourceError when opening failed."""
        return await asyncio.shield(self._ready)

    async def close(self) -> None:
        """Leave the context manager and wait for its task; an opening still under way is cancelled."""
        self._closing.set()
        if not self._ready.done():
            self._task.cancel()
        await asyncio.wait([self._task])


_RUNTIMES: dict[asyncio.AbstractEventLoop, dict[str, asyncio.Task[Runtime]]] = {}


async def runtime_for(config: RunConfig) -> Runtime:
    """The Runtime of this event loop and configuration, opened by the first caller.

    Callers at once share one opening; a failed one raises its ConfigError in each and is not kept.
    """
    key = config.fingerprint()
    for loop in [loop for loop in _RUNTIMES if loop.is_closed()]:
        del _RUNTIMES[loop]
    table = _RUNTIMES.setdefault(asyncio.get_running_loop(), {})
    opening = table.get(key)
    if opening is None:
        opening = table[key] = asyncio.create_task(Runtime(config).__aenter__())
    try:
        return await asyncio.shield(opening)
    except ConfigError:
        table.pop(key, None)
        raise


async def close_runtimes() -> None:
    """Close every Runtime that `runtime_for` opened on this event loop."""
    for opening in _RUNTIMES.pop(asyncio.get_running_loop(), {}).values():
        try:
            runtime = await opening
        except ConfigError:
            continue
        await runtime.__aexit__(None, None, None)
