"""Sessions: one rollout's conversations behind one key, from `open_session` to `finish_session`.

Invariant: a request reaches the session whose key it carries, or none. A key is signed and names one opening
of one session id: it is worth nothing once that was finished, dropped or expired, also when the id is reused.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from rollhook.adapters.errors import UnknownSession, WireError
from rollhook.errors import RolloutError
from rollhook.ledger import Ledger, Segment
from rollhook.protocols import Message

SessionKey = Literal["secret", "id"]
Purpose = Literal["main", "side"]

KEY_PREFIX = "rhk-"
NONCE_BYTES = MAC_BYTES = 16
CLOSE_GRACE_S = 10.0

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class AdapterSession:
    """What a client needs: `api_key` as its key and `base_url` as its server."""

    session_id: str
    api_key: str
    base_url: str


@dataclass(slots=True, eq=False, weakref_slot=True)
class Session:
    """One live session.

    routing_key: of the engine's requests.
    ledgers: "main" for conversations with tools, "side" for those without.
    asked: what clients asked for and did not decide, [{"turn", ...}], one entry a change.
    responses: what each stored response added, by its id: (the response before, messages).
    train_constrained: whether turns whose form was forced train. constrained_turns: their numbers.
    images: data URLs by digest. images_of: the digests of a turn's images, by the engine's request id.
    last_finish: how the last turn ended. truncated: the last request was refused for want of turns or room.
    """

    id: str
    nonce: bytes
    sampling: Mapping[str, Any]
    max_context_tokens: int
    routing_key: str
    new_ledger: Callable[[str], Ledger]
    last_used_s: float = field(default_factory=time.monotonic)
    ledgers: dict[Purpose, Ledger] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)
    responses: dict[str, tuple[str | None, list[Message]]] = field(default_factory=dict)
    train_constrained: bool = False
    constrained_turns: list[int] = field(default_factory=list)
    images: dict[str, str] = field(default_factory=dict)
    images_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    requests: int = 0
    turns: int = 0
    sampled_tokens: int = 0
    last_finish: str | None = None
    truncated: bool = False
    closed: bool = False
    serving: int = 0
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def ledger(self, purpose: Purpose) -> Ledger:
        """The ledger for one purpose, made when first needed."""
        if purpose not in self.ledgers:
            self.ledgers[purpose] = self.new_ledger(purpose)
        return self.ledgers[purpose]

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """While a request is served the session is not idle."""
        self.serving += 1
        try:
            yield
        finally:
            self.serving -= 1
            self.last_used_s = time.monotonic()

    def start(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """A task that ends with the session. The caller awaits or cancels it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def note(self, asked: Mapping[str, Any]) -> None:
        """Record what a client asked for, where it differs from what it asked before."""
        if not self.asked or {**self.asked[-1], "turn": None} != {**asked, "turn": None}:
            self.asked.append({**asked, "turn": self.turns})

    async def close(self) -> None:
        """Refuse what comes, and end what runs: its engine requests are aborted."""
        self.closed = True
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_GRACE_S)

    def settle(self, *, train_side_calls: bool) -> None:
        """Decide what trains. Calls without tools are the conversation itself where no call had tools."""
        side = self.ledgers.get("side")
        if side is not None:
            alone = not self.ledgers.get("main")
            side.trained = alone or train_side_calls
            side.role = "main" if alone else "side"

    def segments(self) -> list[Segment]:
        """Every segment, those of the main conversation first."""
        order: tuple[Purpose, ...] = ("main", "side")
        ledgers = [self.ledgers[purpose] for purpose in order if purpose in self.ledgers]
        return [segment for ledger in ledgers for segment in ledger.segments()]

    def record(self) -> dict[str, Any]:
        """The session's own facts, for the record."""
        return {
            "session_id": self.id,
            "turns": self.turns,
            "sampled_tokens": self.sampled_tokens,
            "forks": [reason for ledger in self.ledgers.values() for _, reason in ledger.forks],
            "constrained_turns": list(self.constrained_turns),
            "asked": list(self.asked),
        }


class SessionTable:
    """The open sessions of one adapter.

    session_key: "secret" admits only signed keys; "id" also admits a session's bare id as its key.
    idle_s: a session without a request for so long is expired. max_sessions: more cannot be open at once.
    """

    def __init__(self, *, session_key: SessionKey, idle_s: float, max_sessions: int) -> None:
        if session_key not in ("secret", "id"):
            raise ValueError(f'session_key must be "secret" or "id", not {session_key!r}')
        self.session_key = session_key
        self.idle_s = idle_s
        self.max_sessions = max_sessions
        self._secret = secrets.token_bytes(32)
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, session_id: str | None, make: Callable[[str, bytes], Session]) -> tuple[Session, str]:
        """Open a session: it and its key. Raises RolloutError when the id is open, or too many are."""
        name = session_id if session_id is not None else secrets.token_hex(16)
        if not name or len(name) > 200:
            raise RolloutError("a session id must have 1 to 200 characters")
        if name in self._sessions:
            raise RolloutError(f"session {name!r} is open already; finish or drop it first")
        if len(self._sessions) >= self.max_sessions:
            raise RolloutError(f"{self.max_sessions} sessions are open already (max_sessions)")
        nonce = secrets.token_bytes(NONCE_BYTES)
        session = self._sessions[name] = make(name, nonce)
        return session, name if self.session_key == "id" else self._key(name, nonce)

    def admit(self, key: str | None) -> Session:
        """The open session of a key. Raises WireError: 401 for a wrong key, 404 for a session that ended."""
        if not key:
            raise WireError(
                401, "no key: send the session's api_key as Bearer or x-api-key", "invalid_api_key"
            )
        if self.session_key == "id":
            session = self._sessions.get(key)
            if session is None or session.closed:
                raise WireError(404, f"no session {key!r} is open", "unknown_session")
            return session
        name, nonce = self._read_key(key)
        session = self._sessions.get(name)
        if session is None or session.closed or session.nonce != nonce:
            raise WireError(
                404, f"session {name!r} is not open any more: finished, dropped or idle", "unknown_session"
            )
        return session

    def get(self, session_id: str) -> Session:
        """An open session by its id. Raises UnknownSession."""
        session = self._sessions.get(session_id)
        if session is None:
            raise UnknownSession(
                f"no session {session_id!r} is open: finished, dropped, idle or never opened"
            )
        return session

    async def close(self, session_id: str) -> Session:
        """End a session and forget it; its id is free again. Raises UnknownSession."""
        session = self.get(session_id)
        await session.close()
        if self._sessions.pop(session_id, None) is None:
            raise UnknownSession(f"session {session_id!r} was closed by another caller meanwhile")
        return session

    async def expire(self) -> None:
        """End every session that has been idle for too long."""
        due = time.monotonic() - self.idle_s
        for session in list(self._sessions.values()):
            if not session.serving and session.last_used_s < due:
                self._sessions.pop(session.id, None)
                await session.close()

    async def close_all(self) -> None:
        """End every session."""
        for name in list(self._sessions):
            session = self._sessions.pop(name, None)
            if session is not None:
                await session.close()

    def _key(self, name: str, nonce: bytes) -> str:
        token = nonce + self._mac(name, nonce) + name.encode()
        return KEY_PREFIX + base64.urlsafe_b64encode(token).decode().rstrip("=")

    def _read_key(self, key: str) -> tuple[str, bytes]:
        wrong = WireError(401, "the key is not one of this adapter's session keys", "invalid_api_key")
        try:
            body = key.removeprefix(KEY_PREFIX)
            token = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
            name = token[NONCE_BYTES + MAC_BYTES :].decode()
        except (binascii.Error, ValueError):
            raise wrong from None
        nonce, mac = token[:NONCE_BYTES], token[NONCE_BYTES : NONCE_BYTES + MAC_BYTES]
        if not hmac.compare_digest(mac, self._mac(name, nonce)):
            raise wrong
        return name, nonce

    def _mac(self, name: str, nonce: bytes) -> bytes:
        return hashlib.blake2b(nonce + name.encode(), key=self._secret, digest_size=MAC_BYTES).digest()
