"""A rollout whose topology is a function of the test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

from rollhook import (
    Outcome,
    Rollout,
    Run,
    RunConfig,
    Runtime,
    Sample,
    TopologySpec,
    Verifier,
    VerifierSpec,
    hookimpl,
    run_rollout,
)
from rollhook.testing import ScriptedEngine
from tests.unit import worlds

Act = Callable[[Rollout], Awaitable[Outcome | None]]


async def acted(
    tokenizer: Any,
    script: Any,
    act: Act,
    *,
    spec: Mapping[str, Any] | None = None,
    verifiers: Mapping[str, Verifier] | None = None,
    sampling: Mapping[str, Any] | None = None,
    evaluation: bool = False,
    **row: Any,
) -> tuple[list[Sample], ScriptedEngine]:
    """The samples of one rollout in which `act` is the topology, beside the items of `tests.unit.worlds`.

    spec: further fields of its TopologySpec. verifiers: as `t/NAME`. sampling, evaluation: as of run_rollout.
    row: the rest of what the row says.
    """

    class Acting:
        async def run(self, rollout: Rollout) -> Outcome | None:
            return await act(rollout)

    @hookimpl
    def rollhook_topologies() -> list[TopologySpec]:
        return [TopologySpec(name="acting", create=lambda config, rollout: Acting(), **(spec or {}))]

    @hookimpl
    def rollhook_verifiers() -> list[VerifierSpec]:
        return [
            VerifierSpec(name=name, open=_always(made), create=lambda resource, rollout: resource)
            for name, made in (verifiers or {}).items()
        ]

    plugins = worlds.plugins()
    hooks = {"rollhook_topologies": rollhook_topologies, "rollhook_verifiers": rollhook_verifiers}
    plugins.add("t", SimpleNamespace(**hooks))
    async with ScriptedEngine(tokenizer, script) as engine:
        config = RunConfig(engine=engine.url, retries=0, tool_parser="qwen25")
        async with Runtime(config, plugins=plugins, tokenizer=tokenizer) as runtime:
            metadata = {"rollhook": {"topology": "t/acting", **row}}
            sample = Sample(index=1, prompt="go", metadata=metadata)
            return await run_rollout(runtime, sample, sampling or {}, evaluation=evaluation), engine


def _always(resource: Any) -> Callable[[Any, Run], AbstractAsyncContextManager[Any]]:
    return lambda config, run: nullcontext(resource)


def kinds(samples: list[Sample]) -> list[tuple[str, str, str]]:
    """Of each sample: role, kind, status."""
    results = [(sample.metadata["rollhook_result"], sample.status.value) for sample in samples]
    return [(result["role"], result["kind"], status) for result, status in results]
