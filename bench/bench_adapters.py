"""What an adapter costs: its own work per turn, and 200 sessions at once against the same engine without it.

The engine answers after a fixed time with fixed ids, in a process of its own; the client is another process.
Turns per second say how much a busy machine can do, where client, adapter and engine share its cores;
processor time per turn says what the adapter takes whatever else runs.
"""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
from aiohttp import web

from rollhook.adapters import Adapter, serve
from rollhook.adapters.body import Fields
from rollhook.adapters.chat import Chat
from rollhook.adapters.conversation import SystemStyle
from rollhook.adapters.sessions import Session
from rollhook.adapters.turns import LiveTurn, TurnRules
from rollhook.engine import Completion
from rollhook.ledger import Ledger
from rollhook.render import Renderer
from rollhook.testing import load_tokenizer

SESSIONS = 200
AT_ONCE = (200, 8)
TURNS = 10
LATENCY_S = 0.02
OVERHEAD_TURNS = 100
ANSWER = "The weather there is fine, and it will stay so for the rest of the week."
UNITS = {"turns_per_s": "turns/s", "p50_ms": "ms", "p99_ms": "ms", "cpu_us": "us of processor time a turn"}
Measurement = dict[str, float | str]


def run() -> dict[str, Measurement]:
    """A turn's own work; turns per second, latencies and processor time, through the adapter and without."""
    tokenizer = load_tokenizer("qwen3")
    ids = tokenizer.encode(ANSWER + "<|im_end|>")
    ours, baseline = asyncio.run(_overhead(tokenizer, ids))
    return {
        "adapter_own_work_per_turn": _measured(
            ours, baseline, "us of processor time, apart from the wire; baseline renders the whole history"
        ),
        **_load(tokenizer, ids),
    }


async def _overhead(tokenizer: Any, ids: list[int]) -> tuple[float, float]:
    """Per turn of one conversation at zero latency, without its wire, and rendering it all anew."""
    renderer = Renderer(tokenizer)
    rules = TurnRules("qwen25", "qwen3", {}, 0, 0, 0)
    session = Session("s", b"", {}, 0, "s", lambda purpose: Ledger(renderer, role=purpose))
    chat, engine = Chat(SystemStyle.of(renderer)), _Instant(ids)
    messages: list[dict[str, Any]] = []
    ours = theirs = 0.0
    for turn in range(OVERHEAD_TURNS):
        messages.append({"role": "user", "content": f"And what about city {turn}?"})
        body = Fields({"model": "m", "messages": messages})
        ask = chat.read(body, session)
        begin = time.thread_time()
        live = LiveTurn(session, ask, engine, rules, chat.call_prefix)
        answer = await live.sample()
        live.commit()
        middle = time.thread_time()
        tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        ours, theirs = ours + middle - begin, theirs + time.thread_time() - middle
        messages.append({"role": "assistant", "content": answer.said.content})
    return 1e6 * ours / OVERHEAD_TURNS, 1e6 * theirs / OVERHEAD_TURNS


class _Instant:
    """An engine without latency."""

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids

    async def generate(self, input_ids: Sequence[int], sampling: Mapping[str, Any], **_: Any) -> Completion:
        log_probs = [-0.5] * len(self._ids)
        return Completion(
            self._ids,
            log_probs,
            "stop",
            self._ids[-1],
            ANSWER,
            str(time.time_ns()),
            ["v"],
            len(input_ids),
            0,
            {},
        )

    async def abort(self, session: str | None = None) -> None:
        return None

    async def model_info(self) -> dict[str, Any]:
        return {}


def _load(tokenizer: Any, ids: list[int]) -> dict[str, Measurement]:
    spawn = multiprocessing.get_context("spawn")
    url_of_engine, results = spawn.Queue(), spawn.Queue()
    engine = spawn.Process(target=_serve_engine, args=(ids, url_of_engine), daemon=True)
    engine.start()
    try:
        url = url_of_engine.get(timeout=60)
        gc.freeze()  # as `rollhook serve --adapters` does: this process is the adapter's
        prompt = tokenizer.encode("And what about the weather in city number seven?" * 2)
        measured: dict[str, Measurement] = {}
        for at_once in AT_ONCE:
            bare = _timed(spawn, results, _bare_client, at_once, url, prompt, ids)
            with serve(Adapter(tokenizer=tokenizer, sglang_url=url)) as server:
                keys = [server.adapter.open_session().api_key for _ in range(SESSIONS)]
                begin_s = time.process_time()
                through = _timed(spawn, results, _chat_client, at_once, server.url, keys)
                through = replace(through, cpu_us=1e6 * (time.process_time() - begin_s) / (SESSIONS * TURNS))
            measured.update(_compared(at_once, through, bare))
    finally:
        engine.kill()
        engine.join()
    return measured


@dataclass(frozen=True, slots=True)
class _Run:
    """cpu_us: processor time per turn, of the adapter or of the client that goes without it."""

    turns_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float


def _compared(at_once: int, ours: _Run, bare: _Run) -> dict[str, Measurement]:
    made: dict[str, Measurement] = {}
    for name in ("turns_per_s", "p50_ms", "p99_ms", "cpu_us"):
        mine, theirs = getattr(ours, name), getattr(bare, name)
        faster = mine / theirs if name == "turns_per_s" else theirs / mine
        unit = f"{UNITS[name]}; baseline calls the engine itself"
        key = f"adapter_{at_once}_at_once_{name}"
        made[key] = {"ours": mine, "baseline": theirs, "ratio": faster, "unit": unit}
    return made


def _timed(spawn: Any, results: Any, client: Callable[..., None], at_once: int, *arguments: Any) -> _Run:
    """A client's run, with the processor time that it took itself."""
    process = spawn.Process(target=client, args=(results, at_once, *arguments))
    process.start()
    total_s, cpu_s, latencies = results.get(timeout=300)
    process.join()
    if len(latencies) != SESSIONS * TURNS:
        raise RuntimeError(f"{SESSIONS * TURNS - len(latencies)} requests were dropped")
    cuts = statistics.quantiles(latencies, n=100)
    turns = len(latencies)
    return _Run(turns / total_s, 1000 * cuts[49], 1000 * cuts[98], 1e6 * cpu_s / turns)


def _serve_engine(ids: list[int], url: Any) -> None:
    entries = [[-0.5, token_id, None] for token_id in ids]

    async def generate(request: web.Request) -> web.Response:
        body = await request.json()
        await asyncio.sleep(LATENCY_S)
        meta = {
            "finish_reason": {"type": "stop", "matched": ids[-1]},
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": len(ids),
            "output_token_logprobs": entries,
        }
        return web.json_response({"text": ANSWER, "output_ids": ids, "meta_info": meta})

    async def main() -> None:
        app = web.Application(client_max_size=2**30)
        app.router.add_post("/generate", generate)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        url.put("http://{}:{}".format(*runner.addresses[0][:2]))
        await asyncio.Event().wait()

    asyncio.run(main())


def _bare_client(results: Any, at_once: int, url: str, prompt: list[int], ids: list[int]) -> None:
    async def session(http: aiohttp.ClientSession, number: int, latencies: list[float]) -> None:
        history: list[int] = []
        for _ in range(TURNS):
            history += prompt
            body = {"input_ids": history, "sampling_params": {"max_new_tokens": 99}, "return_logprob": True}
            await _post(http, f"{url}/generate", body, {}, latencies)
            history += ids

    asyncio.run(_all(results, at_once, session))


def _chat_client(results: Any, at_once: int, url: str, keys: list[str]) -> None:
    async def session(http: aiohttp.ClientSession, number: int, latencies: list[float]) -> None:
        messages: list[dict[str, Any]] = []
        headers = {"Authorization": f"Bearer {keys[number]}"}
        for _ in range(TURNS):
            messages.append(
                {"role": "user", "content": "And what about the weather in city number seven?" * 2}
            )
            body = {"model": "m", "messages": messages}
            answer = await _post(http, f"{url}/v1/chat/completions", body, headers, latencies)
            messages.append(answer["choices"][0]["message"])

    asyncio.run(_all(results, at_once, session))


async def _all(results: Any, at_once: int, session: Callable[..., Awaitable[None]]) -> None:
    latencies: list[float] = []
    slots = asyncio.Semaphore(at_once)

    async def one(http: aiohttp.ClientSession, number: int) -> None:
        async with slots:
            await session(http, number, latencies)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        begin_s, cpu_s = time.perf_counter(), time.process_time()
        async with asyncio.TaskGroup() as group:
            for number in range(SESSIONS):
                group.create_task(one(http, number))
        results.put((time.perf_counter() - begin_s, time.process_time() - cpu_s, latencies))


async def _post(
    http: aiohttp.ClientSession, url: str, body: Any, headers: Mapping[str, str], latencies: list[float]
) -> Any:
    begin = time.perf_counter()
    async with http.post(url, json=body, headers=headers) as response:
        answer = json.loads(await response.read())
    if response.status != 200:
        raise RuntimeError(f"status {response.status}: {answer}")
    latencies.append(time.perf_counter() - begin)
    return answer


def _measured(ours: float, baseline: float, unit: str) -> Measurement:
    return {"ours": ours, "baseline": baseline, "ratio": baseline / ours, "unit": unit}


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))  # noqa: T201  run by hand
