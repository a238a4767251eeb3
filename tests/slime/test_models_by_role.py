"""Several models behind slime's routers: a judge or an opponent answers, and only the policy trains."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

import rollhook
from rollhook import Outcome, Rollout, RunConfig, Sample, Status, TopologySpec, hookimpl
from rollhook.slime import shutdown
from rollhook.testing import Fault, Reply, ScriptedEngine
from rollhook.testing.replies import Script, ScriptedRequest
from tests.slime.gateways import all_ready, asked, engines, gateway, homes, needs_gateway
from tests.unit.engines import TEXT, ask, client_of, until


class Duel:
    """The policy answers twice, once under its own name in the run, against an opponent that stays frozen."""

    async def run(self, rollout: Rollout) -> Outcome:
        first = await rollout.agent("first").turn(list(rollout.messages))
        reply = await rollout.agent("opponent", model="opponent", trained=False).turn(first.content)
        last = await rollout.agent("last", model="actor").turn(reply.content)
        return Outcome(response=last.content, reward=1.0)


@hookimpl
def rollhook_topologies() -> list[TopologySpec]:
    return [TopologySpec(name="duel", create=lambda config, rollout: Duel())]


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


@asynccontextmanager
async def job(policy: str, tokenizer: Any, *, config: Any = None, **models: str) -> AsyncIterator[Any]:
    """slime's args for a run with several models, as its `--sglang-config` leaves them; closed at the end."""
    ip, port = address(policy)
    routers = {"actor": (ip, port), **{name: address(url) for name, url in models.items()}}
    yield SimpleNamespace(
        sglang_router_ip=ip,
        sglang_router_port=port,
        sglang_model_routers=routers,
        hf_checkpoint=tokenizer.name_or_path,
        rollout_temperature=1.0,
        rollhook={"modules": [f"duel={__name__}"], **(config or {})},
    )
    await shutdown()


def row(**run: Any) -> Sample:
    return Sample(index=5, group_index=0, prompt="2 + 2?", label="4", metadata={"rollhook": run})


async def generated(args: Any, sample: Sample) -> list[Sample]:
    samples = await rollhook.generate(args, sample, {"temperature": 1.0})
    assert isinstance(samples, list)
    return samples


def trained_text(tokenizer: Any, samples: list[Sample]) -> str:
    kept = []
    for sample in samples:
        response = sample.tokens[len(sample.tokens) - sample.response_length :]
        kept += [token for token, bit in zip(response, sample.loss_mask or [], strict=True) if bit]
    return str(tokenizer.decode(kept))


async def test_a_topology_plays_against_a_frozen_model_and_only_the_policy_trains(
    smollm2_tokenizer: Any, qwen3_tokenizer: Any
) -> None:
    async with (
        ScriptedEngine(smollm2_tokenizer, ["mine", "mine too"]) as policy,
        ScriptedEngine(qwen3_tokenizer, ["the other's"]) as opponent,
        job(policy.url, smollm2_tokenizer, opponent=opponent.url) as args,
    ):
        samples = await generated(args, row(topology="duel"))

    assert [sample.status for sample in samples] == [Status.COMPLETED] * 2
    assert trained_text(smollm2_tokenizer, samples) == "mine<|im_end|>mine too<|im_end|>"
    asks = [{"role": "user", "content": "mine"}]
    assert opponent.requests[0].input_ids == qwen3_tokenizer.apply_chat_template(
        asks, add_generation_prompt=True, return_dict=False
    )


async def test_a_verifier_asks_a_frozen_judge_of_the_run(
    smollm2_tokenizer: Any, qwen3_tokenizer: Any
) -> None:
    def judge(request: ScriptedRequest) -> str:
        [mark] = re.findall(r"^SCORE ([0-9a-f]{8}): N", request.prompt, flags=re.MULTILINE)
        return f"Good.\nSCORE {mark}: 7"

    async with (
        ScriptedEngine(smollm2_tokenizer, ["It is 4."]) as policy,
        ScriptedEngine(qwen3_tokenizer, judge) as judging,
        job(
            policy.url,
            smollm2_tokenizer,
            config={"settings": {"rollhook/judge": {"model": "judge"}}},
            judge=judging.url,
        ) as args,
    ):
        samples = await generated(args, row(verifier="judge"))

    assert [sample.reward for sample in samples] == [0.7]
    assert trained_text(smollm2_tokenizer, samples) == "It is 4.<|im_end|>"
    assert len(judging.requests) == 1


def test_where_a_model_is_the_trainer_knows_best() -> None:
    args = SimpleNamespace(
        router_policy="cache_aware",
        sglang_model_routers={"judge": ("10.0.0.8", 3001)},
        rollhook={"models": {"judge": "http://127.0.0.1:30001", "hosted": "http://127.0.0.1:30002"}},
    )
    config = RunConfig.from_args(args)

    assert config.models == {"judge": "http://10.0.0.8:3001", "hosted": "http://127.0.0.1:30002"}
    assert config.router_policy == "cache_aware"


@needs_gateway
async def test_prefill_and_decode_may_be_different_workers(smollm2_tokenizer: Any) -> None:
    """The gateway gives one request to a worker of each kind; what the decoding one says is what counts."""
    async with (
        engines(smollm2_tokenizer, lambda request: "It is 4.", 2) as decode,
        engines(smollm2_tokenizer, lambda request: "not this", 2) as prefill,
        gateway((w.url for w in decode), prefill=(w.url for w in prefill)) as url,
        job(url, smollm2_tokenizer) as args,
    ):
        played = await asyncio.gather(*(generated(args, row(verifier="number")) for _ in range(4)))

    assert [sample.reward for siblings in played for sample in siblings] == [1.0] * 4
    assert {len(places) for places in [*homes(decode).values(), *homes(prefill).values()]} == {1}


@needs_gateway
@pytest.mark.parametrize("kind", ["prefill", "decode"])
async def test_an_abort_reaches_the_worker_that_holds_the_request(smollm2_tokenizer: Any, kind: str) -> None:
    script: dict[str, Script] = {"prefill": {"": TEXT}, "decode": {"": TEXT}}
    script[kind] = {"": Reply(TEXT, fault=Fault.hang(3))}
    async with (
        ScriptedEngine(smollm2_tokenizer, script["decode"]) as decode,
        ScriptedEngine(smollm2_tokenizer, script["prefill"]) as prefill,
        gateway([decode.url], prefill=[prefill.url]) as url,
        client_of(url) as client,
    ):
        asking = asyncio.create_task(ask(client))
        held = {"prefill": prefill, "decode": decode}[kind]
        await until(lambda: held.in_flight)
        await client.abort()
        await asking
        await until(lambda: not held.in_flight)

    assert prefill.aborted == decode.aborted == [decode.requests[0].rid]


@needs_gateway
async def test_engines_that_join_the_router_later_are_used(smollm2_tokenizer: Any) -> None:
    """As slime registers them, its own and external ones (`--rollout-external-engine-addrs`)."""
    async with (
        engines(smollm2_tokenizer, lambda request: "It is 4.", 2) as [first, second],
        gateway([first.url]) as url,
        job(url, smollm2_tokenizer) as args,
    ):
        await generated(args, row(verifier="number"))
        async with aiohttp.ClientSession() as http:
            (await http.post(f"{url}/workers", json={"url": second.url})).raise_for_status()
        await all_ready(url, 2)
        for _ in range(64):
            await generated(args, row(verifier="number"))
            if asked(second):
                break

    assert asked(second)
