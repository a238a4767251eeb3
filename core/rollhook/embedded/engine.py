"""The embedded engine's life: resolve the model, load it, serve it, stop it.

Invariant: inside `async with`, `url` answers; after it, no thread and no socket is left, whatever was in
flight. Requests in flight at the end are answered as aborted.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rollhook.embedded.models import resolve_model
from rollhook.embedded.server import EngineServer, serving
from rollhook.embedded.worker import Worker
from rollhook.errors import ConfigError

if TYPE_CHECKING:
    from rollhook.embedded.batcher import Batcher


_CACHE_BYTES = 2 << 30  # for keys and values, when no max_cached_tokens is given


class EmbeddedEngine:
    """A server in SGLang's wire form over a small model on the CPU, in this process.

        async with EmbeddedEngine() as engine:
            async with session.post(f"{engine.url}/generate", json=body) as response: ...

    model: a local model directory; None for the default small one. port: 0 picks a free one. dtype:
    "float32" (log-probabilities agree with a plain forward pass to 1e-3, and the faster one on CPUs without
    bfloat16 instructions) or "bfloat16" (half the memory). max_batch: requests that run at once.
    max_cached_tokens: token slots of all caches together; None for what fits in 2 GiB. threads: torch's;
    None for half of the machine's. Raises ConfigError on entering if the model cannot be served.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        dtype: str = "float32",
        max_batch: int = 16,
        max_cached_tokens: int | None = None,
        threads: int | None = None,
    ) -> None:
        self._model = model
        self._host = host
        self._port = port
        self._dtype = dtype
        self._max_batch = max_batch
        self._max_cached_tokens = max_cached_tokens
        self._threads = threads
        self._stack = AsyncExitStack()
        self._server: EngineServer | None = None
        self.url = ""
        self.model_path = Path()

    @property
    def live(self) -> int:
        """Requests that run or wait at this moment."""
        return self._server.live if self._server else 0

    async def __aenter__(self) -> Self:
        self.model_path = await asyncio.to_thread(resolve_model, self._model)
        worker = Worker(self._load)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(worker.stop)
            context_len = await worker.start()
            self._server = server = EngineServer(worker, self.model_path, context_len)
            try:
                port = await stack.enter_async_context(serving(server.app(), self._host, self._port))
            except OSError as error:
                raise ConfigError(f"cannot listen on {self._host}:{self._port}: {error}") from error
            stack.push_async_callback(worker.stop)  # first: requests in flight end before the server closes
            self._stack = stack.pop_all()
        self.url = f"http://{self._host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def _load(self) -> Batcher:
        """The batcher over the loaded model. Called on the worker thread, where reading weights may block."""
        import torch
        from transformers import AutoTokenizer

        from rollhook.embedded.batcher import Batcher
        from rollhook.embedded.packed import PackedModel

        dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
        if self._dtype not in dtypes:
            raise ConfigError(f"dtype {self._dtype!r} is not one of {', '.join(dtypes)}")
        # torch's threads spin while they wait for each other: one that must share its core holds up all
        torch.set_num_threads(self._threads or max(1, (os.cpu_count() or 1) // 2))
        model = PackedModel.load(self.model_path, dtypes[self._dtype])
        try:
            tokenizer = AutoTokenizer.from_pretrained(self.model_path, local_files_only=True)
        except (OSError, ValueError) as error:
            raise ConfigError(f"the tokenizer in {self.model_path} cannot be loaded: {error}") from error
        if 2 * len(tokenizer) < model.vocabulary:  # without its files transformers makes an empty one
            raise ConfigError(
                f"the tokenizer in {self.model_path} has {len(tokenizer)} tokens and the model "
                f"{model.vocabulary}: its files are missing or another model's"
            )
        fitting = max(model.context_len, _CACHE_BYTES // model.layout.bytes_per_token)
        return Batcher(
            model, tokenizer, max_batch=self._max_batch, max_tokens=self._max_cached_tokens or fitting
        )


async def serve_forever(
    model: str | Path | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 30000,
    dtype: str = "float32",
    max_batch: int = 16,
    max_cached_tokens: int | None = None,
    threads: int | None = None,
    ready: Callable[[EmbeddedEngine], None] | None = None,
) -> None:
    """Serve until cancelled, as `rollhook serve` does. `ready` is called once `url` answers."""
    async with EmbeddedEngine(
        model,
        host=host,
        port=port,
        dtype=dtype,
        max_batch=max_batch,
        max_cached_tokens=max_cached_tokens,
        threads=threads,
    ) as engine:
        if ready is not None:
            ready(engine)
        await asyncio.get_running_loop().create_future()
