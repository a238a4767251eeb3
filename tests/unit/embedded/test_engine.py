from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import aiohttp
import pytest

from rollhook.embedded import EmbeddedEngine, serve_forever
from rollhook.errors import ConfigError


def test_importing_the_engine_imports_no_torch() -> None:
    code = "import sys, rollhook.embedded; print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout == "set()\n"


def engine_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "rollhook-engine"]


async def test_leaving_ends_requests_in_flight_as_aborted_and_the_thread(tiny_path: Path) -> None:
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        async with EmbeddedEngine(tiny_path, max_batch=1, threads=1) as engine:

            async def ask() -> str:
                body = {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 500, "ignore_eos": True}}
                async with session.post(f"{engine.url}/generate", json=body) as response:
                    kind: str = (await response.json())["meta_info"]["finish_reason"]["type"]
                    return kind

            asks = [asyncio.create_task(ask()) for _ in range(3)]
            while engine.live < 3:
                await asyncio.sleep(0.01)
        assert [await each for each in asks] == ["abort"] * 3

    assert engine_threads() == []


async def test_two_engines_live_side_by_side(tiny_path: Path) -> None:
    async with (
        EmbeddedEngine(tiny_path, threads=1) as first,
        EmbeddedEngine(tiny_path, threads=1) as second,
        aiohttp.ClientSession() as session,
    ):
        for engine in (first, second):
            async with session.get(f"{engine.url}/health") as response:
                assert response.status == 200
    assert first.url != second.url


async def test_a_dtype_it_does_not_know_is_a_config_error_and_leaves_no_thread(tiny_path: Path) -> None:
    with pytest.raises(ConfigError, match="dtype 'int8' is not one of float32, bfloat16"):
        async with EmbeddedEngine(tiny_path, dtype="int8"):
            pass

    assert engine_threads() == []


async def test_a_model_without_a_tokenizer_is_a_config_error(tiny_path: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(tiny_path / name)

    with pytest.raises(ConfigError, match="tokens and the model 49152: its files are missing"):
        async with EmbeddedEngine(tmp_path):
            pass


async def test_a_port_in_use_is_a_config_error_and_leaves_no_thread(tiny_path: Path) -> None:
    async with EmbeddedEngine(tiny_path, threads=1) as engine:
        port = int(engine.url.rsplit(":", 1)[1])
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            async with EmbeddedEngine(tiny_path, port=port, threads=1):
                pass

    assert engine_threads() == []


async def test_serve_forever_serves_until_cancelled(tiny_path: Path) -> None:
    ready: asyncio.Future[EmbeddedEngine] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_forever(tiny_path, port=0, threads=1, ready=ready.set_result))
    engine = await asyncio.wait_for(ready, 60)
    async with aiohttp.ClientSession() as session, session.get(f"{engine.url}/get_model_info") as response:
        info = await response.json()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving

    assert info["tokenizer_path"] == str(tiny_path)
    assert engine_threads() == []
