"""The items that come with the core, under the name `rollhook/`."""

from __future__ import annotations

from rollhook.hookspecs import TopologySpec, VerifierSpec, hookimpl
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
