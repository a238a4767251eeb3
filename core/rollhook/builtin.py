"""The items that come with the core, under the name `rollhook/`."""

from __future__ import annotations

from rollhook.hookspecs import SandboxSpec, TopologySpec, VerifierSpec, hookimpl
from rollhook.sandbox import SandboxLimits, open_bubblewrap, open_unsafe, take
from rollhook.topologies import Single
from rollhook.verifiers import ExactMatch, Number


@hookimpl
def rollhook_topologies() -> list[TopologySpec]:
    """`single`."""
    return [TopologySpec(name="single", create=lambda config, rollout: Single(), fan_out=False)]


@hookimpl
def rollhook_verifiers() -> list[VerifierSpec]:
    """`exact_match` and `number`."""
    return [
        VerifierSpec(name="exact_match", create=ExactMatch),
        VerifierSpec(name="number", create=Number),
    ]


@hookimpl
def rollhook_sandboxes() -> list[SandboxSpec]:
    """`bubblewrap`, and `unsafe-subprocess`, which isolates nothing."""
    return [
        SandboxSpec(name="bubblewrap", config=SandboxLimits, open=open_bubblewrap, create=take),
        SandboxSpec(name="unsafe-subprocess", config=SandboxLimits, open=open_unsafe, create=take),
    ]
