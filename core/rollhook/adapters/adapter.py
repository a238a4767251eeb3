"""Adapters: an agent's own client talks to the model through one, and its sessions become training data.

Invariant: message history in, sampled tokens out. Whatever a client does to its history, `finish_session`
gives every token sampled for it, once, as the engine returned it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any, ClassVar, TypeVar, overload

from aiohttp import web

from rollhook.adapters.conversation import SystemStyle
from rollhook.adapters.errors import WireError, as_wire_error, bad_request
from rollhook.adapters.http import answer_turn, body_of, guard, session_key
from rollhook.adapters.models import model_list, model_named
from rollhook.adapters.outcome import session_samples
from rollhook.adapters.protocol import Wire
from rollhook.adapters.sessions import AdapterSession, Session, SessionKey, SessionTable
from rollhook.adapters.turns import LiveTurn, TurnRules, extend
from rollhook.engine import Engine, SGLangClient
from rollhook.errors import ConfigError, EngineError
from rollhook.ledger import Ledger, Segment
from rollhook.parsing import make_parser
from rollhook.recognition import Normalizer
from rollhook.render import Policy, Renderer
from rollhook.served import generation_ends

PROTOCOLS = ("messages", "chat", "responses")
EXPIRY_POLL_S = 30.0

_T = TypeVar("_T")


class Adapter:
    """Serves all three protocols; AnthropicAdapter and OpenAIAdapter serve their own.

    tokenizer: the served model's, a Hugging Face fast tokenizer. sglang_url: the engine; or engine: a client
        that is open and stays its owner's.
    tool_parser, reasoning_parser: the model family's, by SGLang's names.
    chat_template, chat_template_kwargs, history: as in `rollhook.render.Renderer` (there: policy).
    sampling: the run's parameters for every turn; a session's `sampling_defaults` are laid over them.
    max_turns_per_session, max_tokens_per_session, max_context_tokens: 0 means no limit; tokens are sampled
        ones, context is prompt and answer together.
    session_key: "secret" gives each session a signed key; "id" takes the session's id for its key.
    idle_s: a session without a request for so long is expired. max_sessions: how many may be open at once.
    train_side_calls: whether calls without tools beside a conversation with tools train.
    images: whether the engine takes them; None asks it (`has_image_understanding`). A chat template that
        writes no images is sent none.
    model_name: what `/v1/models` lists; any name is served. base_url: where clients reach `app`; filled in by
        `serve`.
    allowed_hosts: further Host names to admit on loopback. max_body_bytes: of a request.
    ping_s: a stream that is silent for so long gets a ping. request_timeout_s: for one answer.
    Raises ConfigError for a tokenizer, template or parser that cannot work.
    """

    protocols: ClassVar[Sequence[str]] = PROTOCOLS
    url_suffix: ClassVar[str] = ""

    def __init__(
        self,
        *,
        tokenizer: Any,
        sglang_url: str | None = None,
        engine: Engine | None = None,
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        history: Policy = "append",
        sampling: Mapping[str, Any] | None = None,
        max_turns_per_session: int = 0,
        max_tokens_per_session: int = 0,
        max_context_tokens: int = 0,
        session_key: SessionKey = "secret",
        idle_s: float = 3600.0,
        max_sessions: int = 4096,
        request_timeout_s: float = 600.0,
        train_side_calls: bool = False,
        images: bool | None = None,
        normalizers: Sequence[Normalizer] = (),
        model_name: str = "rollhook",
        base_url: str = "",
        allowed_hosts: Iterable[str] = (),
        max_body_bytes: int = 64 * 2**20,
        ping_s: float = 10.0,
    ) -> None:
        if (sglang_url is None) == (engine is None):
            raise ConfigError("an adapter needs one engine: give sglang_url or engine")
        make_parser(tool_parser, reasoning_parser)  # a name that nobody knows is found out now
        self.base_url = base_url
        self.model_name = model_name
        self.train_side_calls = train_side_calls
        self._rules = TurnRules(
            tool_parser=tool_parser,
            reasoning_parser=reasoning_parser,
            sampling=dict(sampling or {}),
            max_turns_per_session=max_turns_per_session,
            max_tokens_per_session=max_tokens_per_session,
            max_context_tokens=max_context_tokens,
        )
        self._renderer = Renderer(
            tokenizer,
            end_of_turn_ids=generation_ends(tokenizer),
            chat_template=chat_template,
            policy=history,
            chat_template_kwargs=chat_template_kwargs,
            images=True,
        )
        self._engine_takes_images = images
        may_take_images = images is not False and bool(self._renderer.image_place)
        self._wires = _wires(self.protocols, SystemStyle.of(self._renderer), images=may_take_images)
        self._sessions = SessionTable(session_key=session_key, idle_s=idle_s, max_sessions=max_sessions)
        self._normalizers = tuple(normalizers)
        self._ping_s = ping_s
        self._sglang_url = sglang_url
        self._request_timeout_s = request_timeout_s
        self._given_engine = engine
        self._engine: Engine | None = engine
        self._loop: asyncio.AbstractEventLoop | None = None
        self.app = self._make_app(max_body_bytes, allowed_hosts)

    def open_session(
        self,
        session_id: str | None = None,
        *,
        sampling_defaults: Mapping[str, Any] | None = None,
        max_context_tokens: int = 0,
        train_constrained: bool = False,
        routing_key: str | None = None,
    ) -> AdapterSession:
        """A session for one rollout. session_id: made up when None; free again after finish, drop or expiry.

        sampling_defaults: the run's sampling for this session. max_context_tokens: 0 means the adapter's.
        train_constrained: whether turns train whose form a client forced (a demanded call, a JSON schema).
        routing_key: sends the session's turns to one worker behind a gateway, such as the `session_id` of a
        trainer's Sample, which all attempts at it share; None: the session's own id.
        Raises RolloutError when the id is open. May be called from any thread.
        """
        renderer = self._renderer.frozen_at(datetime.now().astimezone())

        def make(name: str, nonce: bytes) -> Session:
            return Session(
                id=name,
                nonce=nonce,
                sampling=dict(sampling_defaults or {}),
                max_context_tokens=max_context_tokens,
                train_constrained=train_constrained,
                routing_key=name if routing_key is None else routing_key,
                new_ledger=lambda purpose: Ledger(renderer, role=purpose, normalizers=self._normalizers),
            )

        session, key = self._sessions.open(session_id, make)
        return AdapterSession(session.id, key, self.base_url.rstrip("/") + self.url_suffix)

    @overload
    async def finish_session(
        self, session_id: str, *, reward: float = ..., extra_metadata: Mapping[str, Any] | None = ...
    ) -> list[Segment]: ...
    @overload
    async def finish_session(
        self,
        session_id: str,
        *,
        base_sample: Any,
        reward: float = ...,
        extra_metadata: Mapping[str, Any] | None = ...,
    ) -> list[Any]: ...
    async def finish_session(
        self,
        session_id: str,
        *,
        base_sample: Any = None,
        reward: float = 0.0,
        extra_metadata: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Close a session and give what was sampled: Samples made from `base_sample`, or bare segments.

        base_sample: of the trainer's own class; not written to. reward: the rollout's, for each Sample.
        extra_metadata: added to each Sample's metadata. Requests under way are aborted and do not train.
        Raises UnknownSession. May be awaited on any event loop.
        """
        session = await self._at_home(self._sessions.close(session_id))
        session.settle(train_side_calls=self.train_side_calls)
        if base_sample is None:
            return session.segments()
        return session_samples(session, base_sample, reward, extra_metadata or {})

    async def drop_session(self, session_id: str) -> None:
        """Close a session and forget what was sampled. Raises UnknownSession."""
        await self._at_home(self._sessions.close(session_id))

    def session_record(self, session_id: str) -> dict[str, Any]:
        """An open session's facts: turns, sampled_tokens, forks, and what its clients asked for.

        Raises UnknownSession.
        """
        return self._sessions.get(session_id).record()

    @property
    def open_sessions(self) -> int:
        """How many sessions are open."""
        return len(self._sessions)

    async def _at_home(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run on the event loop that serves the app, wherever the caller is."""
        home = self._loop
        if home is None or home is asyncio.get_running_loop():
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, home))

    def _make_app(self, max_body_bytes: int, allowed_hosts: Iterable[str]) -> web.Application:
        app = web.Application(
            client_max_size=max_body_bytes, middlewares=[guard(allowed_hosts, self._wire_of)]
        )
        app.cleanup_ctx.append(self._running)
        app.on_shutdown.append(self._close_sessions)
        app.router.add_route("HEAD", "/", _nothing)
        app.router.add_get("/v1/models", self._models, allow_head=False)
        app.router.add_get("/v1/models/{name:.+}", self._model, allow_head=False)
        for wire in self._wires.values():
            app.router.add_post(wire.path, self._turn)
        if "messages" in self._wires:
            app.router.add_post("/v1/messages/count_tokens", self._count_tokens)
        return app

    async def _running(self, app: web.Application) -> AsyncIterator[None]:
        """What lives as long as the app: the engine's client and the clock that expires sessions."""
        async with AsyncExitStack() as stack:
            self._loop = asyncio.get_running_loop()
            if self._sglang_url is not None:
                self._engine = await stack.enter_async_context(
                    SGLangClient(self._sglang_url, request_timeout_s=self._request_timeout_s)
                )
            clock = asyncio.create_task(self._expire())
            try:
                yield
            finally:
                clock.cancel()
                await asyncio.wait([clock])
                await stack.aclose()
                self._engine, self._loop = self._given_engine, None

    async def _close_sessions(self, app: web.Application) -> None:
        await self._sessions.close_all()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(min(EXPIRY_POLL_S, self._sessions.idle_s / 2))
            await self._sessions.expire()

    async def _turn(self, request: web.Request) -> web.StreamResponse:
        session = self._sessions.admit(session_key(request))
        wire = self._wire_of(request)
        assert wire is not None
        assert self._engine is not None
        with session.in_use():
            body = await body_of(request)
            ask = wire.read(body, session)
            if ask.images:
                await self._check_takes_images()
            turn = LiveTurn(session, ask, self._engine, self._rules, wire.call_prefix)
            return await answer_turn(request, wire, body, turn, ping_s=self._ping_s)

    async def _check_takes_images(self) -> None:
        """Raise WireError (400) if the engine says that it takes none. It is asked once."""
        assert self._engine is not None
        if self._engine_takes_images is None:
            try:
                info = await self._engine.model_info()
            except EngineError as error:
                raise as_wire_error(error) from error
            self._engine_takes_images = info.get("has_image_understanding") is not False
        if not self._engine_takes_images:
            raise bad_request("the engine says that the served model takes text only")

    async def _count_tokens(self, request: web.Request) -> web.Response:
        session = self._sessions.admit(session_key(request))
        from rollhook.adapters.messages import Messages

        wire = self._wires["messages"]
        assert isinstance(wire, Messages)
        with session.in_use():
            _, prompt = extend(session, wire.read_prompt(await body_of(request)))
        return web.json_response({"input_tokens": prompt.length})

    async def _models(self, request: web.Request) -> web.Response:
        self._sessions.admit(session_key(request))
        return web.json_response(model_list(self.model_name, anthropic=_is_anthropic(request)))

    async def _model(self, request: web.Request) -> web.Response:
        self._sessions.admit(session_key(request))
        name = request.match_info["name"]
        if name != self.model_name:
            raise WireError(
                404, f"no model {name!r}; the one served is {self.model_name!r}", "model_not_found"
            )
        return web.json_response(model_named(name, anthropic=_is_anthropic(request)))

    def _wire_of(self, request: web.Request) -> Wire | None:
        """The protocol in whose form a request is answered."""
        for wire in self._wires.values():
            if request.path.startswith(wire.path):
                return wire
        if _is_anthropic(request) and "messages" in self._wires:
            return self._wires["messages"]
        return next(iter(self._wires.values())) if len(self._wires) == 1 else None


class AnthropicAdapter(Adapter):
    """Serves Anthropic's Messages, for Claude Code, the Claude Agent SDK and the anthropic package."""

    protocols: ClassVar[Sequence[str]] = ("messages",)


class OpenAIAdapter(Adapter):
    """Serves OpenAI's Chat Completions and Responses, for Codex, the Agents SDK and the openai package."""

    protocols: ClassVar[Sequence[str]] = ("chat", "responses")
    url_suffix: ClassVar[str] = "/v1"


def _wires(protocols: Sequence[str], style: SystemStyle, *, images: bool) -> dict[str, Wire]:
    """The protocol modules, whose SDKs are imported only here. Raises ConfigError where one is missing."""
    wires: dict[str, Wire] = {}
    try:
        if "messages" in protocols:
            from rollhook.adapters.messages import Messages

            wires["messages"] = Messages(style, images=images)
        if "chat" in protocols:
            from rollhook.adapters.chat import Chat

            wires["chat"] = Chat(style, images=images)
        if "responses" in protocols:
            from rollhook.adapters.responses import Responses

            wires["responses"] = Responses(style, images=images)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed; try: pip install 'rollhook[adapters]'") from error
    return wires


def _is_anthropic(request: web.Request) -> bool:
    return "anthropic-version" in request.headers


async def _nothing(request: web.Request) -> web.Response:
    return web.Response()
