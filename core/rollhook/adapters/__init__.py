"""Adapters: Claude Code, Codex and every SDK become training data.

    from rollhook.adapters import AnthropicAdapter, serve

    adapter = AnthropicAdapter(tokenizer=tokenizer, sglang_url=url, tool_parser="qwen25")
    with serve(adapter):
        session = adapter.open_session()
        ...  # a client with api_key=session.api_key and base_url=session.base_url
        samples = await adapter.finish_session(session.session_id, base_sample=sample, reward=1.0)

Importing this package imports neither openai nor anthropic: an adapter does, when it is made.
"""

from rollhook.adapters.adapter import Adapter, AnthropicAdapter, OpenAIAdapter
from rollhook.adapters.errors import UnknownSession
from rollhook.adapters.server import AdapterServer, serve
from rollhook.adapters.sessions import AdapterSession

__all__ = [
    "Adapter",
    "AdapterServer",
    "AdapterSession",
    "AnthropicAdapter",
    "OpenAIAdapter",
    "UnknownSession",
    "serve",
]
