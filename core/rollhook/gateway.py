"""A gateway between rollhook and its workers: recognised, asked at the start, and told apart from a server.

Invariant: a plain server gets one `GET /workers` and nothing more. A gateway gets a few requests of one token
in the form of the run's own, so that what it drops, or sends elsewhere, is known before the first rollout.

Source of the forms: SGLang Model Gateway (smg 1.13, sglang-router 0.3.2): `GET /workers` answers
`{"workers": [{"url", ...}]}`; smg says in a header of each answer which worker gave it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp

from rollhook.errors import ConfigError

ROUTING_HEADER = "X-SMG-Routing-Key"
WORKER_HEADER = "x-smg-routed-worker-id"
AFFINE_POLICIES = frozenset({"consistent_hashing", "manual"})
"""Policies that keep one routing key on one worker."""
START = "start it with --policy consistent_hashing (in slime: --router-policy consistent_hashing)"

PROBES = 8  # of one key: a policy that picks one of two workers at random goes unnoticed once in 128 starts
KEYS = 16  # of one request each: that all hash to one of two workers happens once in some thousand starts
PROBED = ("temperature", "top_p", "top_k", "min_p", "custom_params")  # what one token can be asked for with
LIST_TIMEOUT_S = 5.0
_log = logging.getLogger("rollhook.gateway")


@dataclass(frozen=True, slots=True)
class Worker:
    """A server behind a gateway. kind: "regular", or "prefill" and "decode" where these are apart."""

    url: str
    kind: str


@dataclass(frozen=True, slots=True)
class Probe:
    """What came of one request of one token. worker: who answered it; None when the gateway does not say."""

    worker: str | None
    meta_info: Mapping[str, Any]


async def list_workers(http: aiohttp.ClientSession, url: str) -> list[Worker]:
    """The workers behind a gateway at `url`, by HTTP; [] where a server answers itself.

    Raises aiohttp.ClientError, TimeoutError.
    """
    async with asyncio.timeout(LIST_TIMEOUT_S), http.get(f"{url}/workers") as response:
        if response.status != 200:
            return []
        try:
            listed = await response.json(content_type=None)
        except ValueError:
            return []
    workers = {}
    for entry in (listed.get("workers") or ()) if isinstance(listed, Mapping) else ():
        address = entry.get("url") if isinstance(entry, Mapping) else None
        if isinstance(address, str) and address.startswith("http"):
            base = re.sub(r"@\d+$", "", address).rstrip(
                "/"
            )  # one server may stand for several ranks, URL@RANK
            workers[base] = Worker(base, str(entry.get("worker_type") or "regular"))
    return list(workers.values())


async def check_gateway(
    url: str,
    *,
    sampling: Mapping[str, Any],
    extra: Mapping[str, Any],
    policy: str | None,
    timeout_s: float = 60.0,
) -> None:
    """Find out what a gateway at `url` does to this run's requests; return at once where a server answers.

    sampling, extra: as in the run's requests. policy: what the gateway was started with, where known.
    Logs a warning when turns of one rollout may go to different workers. Raises ConfigError when answers
    lack what the trainer needs.
    """
    url = url.rstrip("/")
    try:
        async with asyncio.timeout(timeout_s), aiohttp.ClientSession() as http:
            workers = await list_workers(http, url)
            if not workers:
                return
            keys = [*(["rollhook-probe"] * PROBES), *(f"rollhook-probe-{place}" for place in range(KEYS))]
            bodies = [_body(place, sampling, extra) for place in range(len(keys))]
            told = await asyncio.gather(*map(partial(_ask, http, url), keys, bodies), return_exceptions=True)
            probes = [_unless_raised(each) for each in told]
    except aiohttp.ClientConnectorError:
        return  # whoever asks it for something next says that nobody is there
    except (aiohttp.ClientError, OSError, ValueError) as error:  # OSError includes TimeoutError
        _log.warning("%s was not asked for a gateway's habits: %s: %s", url, type(error).__name__, error)
        return
    refuse_dropped_fields(url, probes[0], sampling, extra)
    answering = sum(worker.kind != "prefill" for worker in workers)
    if answering > 1:
        warning = affinity_warning(url, probes[:PROBES], policy) or spread_warning(url, probes, answering)
        if warning is not None:
            _log.warning(warning)


def refuse_dropped_fields(
    url: str, probe: Probe, sampling: Mapping[str, Any], extra: Mapping[str, Any]
) -> None:
    """Raise ConfigError when an answer lacks what it was asked to carry."""
    wanted: list[tuple[str, tuple[str, ...], str]] = []
    if extra.get("return_routed_experts"):
        wanted.append(("return_routed_experts", ("routed_experts",), "--enable-return-routed-experts"))
    if (sampling.get("custom_params") or {}).get("return_top_p_token_ids"):
        kept = ("top_p_token_ids", "top_p_kept_token_ids")
        wanted.append(("custom_params.return_top_p_token_ids", kept, "slime's patch for top-p replay"))
    for field, answers, server in wanted:
        if not any(name in probe.meta_info for name in answers):
            raise ConfigError(
                f"{url}: answers carry no {answers[0]}, though every request asks for it ({field}): either "
                f"the gateway drops the field (sglang-router 0.3.2 does, smg 1.13 does not), or the servers "
                f"run without {server}"
            )


def affinity_warning(url: str, probes: Sequence[Probe], policy: str | None) -> str | None:
    """What to say when one routing key does not stay on one worker, by what was seen or else by policy."""
    seen = {probe.worker for probe in probes if probe.worker is not None}
    if len(seen) == 1 or (not seen and policy in AFFINE_POLICIES):
        return None
    if seen:
        return (
            f"the gateway at {url} sends the turns of one rollout to different workers, so that each may "
            f"compute the whole conversation again; {START}"
        )
    if policy is None:
        return (
            f"the gateway at {url} does not say which worker answers, so that whether the turns of one "
            f"rollout stay on one worker is unknown; {START}, and set router_policy to what it runs"
        )
    return (
        f"the gateway at {url} runs the policy {policy}, which may send the turns of one rollout to "
        f"different workers; {START}"
    )


def spread_warning(url: str, probes: Sequence[Probe], workers: int) -> str | None:
    """What to say when a gateway that tells who answers gave the requests of all keys to one worker."""
    seen = {probe.worker for probe in probes}
    if len(seen) > 1 or None in seen:
        return None
    return (
        f"the gateway at {url} sends every rollout to the same one of its {workers} workers, as its "
        f"policy does not look at {ROUTING_HEADER}; {START}"
    )


def _body(place: int, sampling: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """A request of one token, with a prompt of its own: some policies keep equal prompts together."""
    return {
        **extra,
        "rid": uuid.uuid4().hex,
        "input_ids": [place + 1] * 8,
        "sampling_params": {
            **{name: sampling[name] for name in PROBED if name in sampling},
            "max_new_tokens": 1,
        },
        "return_logprob": True,
        "stream": False,
    }


async def _ask(http: aiohttp.ClientSession, url: str, key: str, body: Mapping[str, Any]) -> Probe:
    headers = {ROUTING_HEADER: key}
    async with http.post(f"{url}/generate", json=body, headers=headers, raise_for_status=True) as response:
        answer = await response.json(content_type=None)
        meta = answer.get("meta_info") if isinstance(answer, Mapping) else None
        return Probe(response.headers.get(WORKER_HEADER), meta if isinstance(meta, Mapping) else {})


def _unless_raised(told: Probe | BaseException) -> Probe:
    if isinstance(told, BaseException):
        raise told
    return told
