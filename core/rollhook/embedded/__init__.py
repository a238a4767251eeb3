"""The embedded engine: a small model behind SGLang's native wire form, on the CPU, in this process.

Invariant: importing this package imports neither torch nor transformers; they are loaded on the engine's
own worker thread, so that the event loop never waits for them.

    async with EmbeddedEngine() as engine:
        ...  # POST f"{engine.url}/generate", exactly as to an SGLang server

`rollhook serve` is `serve_forever`; `rollhook run --engine embedded` is `EmbeddedEngine`.
"""

from rollhook.embedded.engine import EmbeddedEngine, serve_forever
from rollhook.embedded.models import resolve_model

__all__ = ["EmbeddedEngine", "resolve_model", "serve_forever"]
