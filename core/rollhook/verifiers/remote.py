"""The verifier `remote`: a reward service over HTTP, in the shape of slime's `remote_rm`.

Wire form: POST {"prompt", "response", "label"}; the answer is a number, or an object that has one.
Source: slime, slime/rollout/rm_hub/__init__.py (`remote_rm`).
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import aiohttp
from pydantic import Field, SecretStr

from rollhook.errors import ConfigError
from rollhook.fields import plain
from rollhook.hookspecs import RunOnly
from rollhook.protocols import Rollout, Run, Score, View
from rollhook.verifiers.post import ServiceConfig, open_session, post_json


class RemoteConfig(ServiceConfig):
    """The service. headers: sent along. value: the field of an object that is the score."""

    headers: dict[str, SecretStr] = Field(default_factory=dict)
    value: Annotated[str, RunOnly()] = "reward"


@dataclass(frozen=True)
class RemoteService:
    """What the rollouts of a run share."""

    config: RemoteConfig
    url: str
    session: aiohttp.ClientSession


@asynccontextmanager
async def open_remote(config: RemoteConfig, run: Run) -> AsyncIterator[RemoteService]:
    """The connections of a run. Raises ConfigError when no URL is configured."""
    if config.url is None:
        raise ConfigError("the verifier remote has no URL: set settings: {rollhook/remote: {url: ...}}")
    async with open_session(run.concurrency) as session:
        yield RemoteService(config, str(config.url), session)


class Remote:
    """The service's number; of an object, the field `value`, its other numbers being the parts."""

    def __init__(self, service: RemoteService, rollout: Rollout) -> None:
        del rollout
        self._service = service

    async def score(self, view: View) -> Score:
        """Raises ConnectionError, TimeoutError, or ValueError for an answer without a finite number."""
        service = self._service
        answer = await post_json(
            service.session,
            service.url,
            {"prompt": plain(view.prompt), "response": view.response, "label": plain(view.label)},
            headers={name: value.get_secret_value() for name, value in service.config.headers.items()},
            timeout_s=service.config.timeout_s,
            retries=service.config.retries,
        )
        name = service.config.value
        fields = answer if isinstance(answer, Mapping) else {name: answer}
        if not _is_number(fields.get(name)):
            raise ValueError(f"{service.url}: the answer has no finite number {name!r}: {str(answer)[:200]}")
        parts = {key: float(part) for key, part in fields.items() if key != name and _is_number(part)}
        return Score(float(fields[name]), parts)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
