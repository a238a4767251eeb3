"""A verifier, and nothing else."""

from __future__ import annotations

from rollhook import Rollout, VerifierSpec, View, hookimpl


class Strict:
    def __init__(self, config: object, rollout: Rollout) -> None:
        pass

    async def score(self, view: View) -> float:
        return float(view.response == view.label)


@hookimpl
def rollhook_verifiers() -> list[VerifierSpec]:
    return [VerifierSpec(name="strict", create=Strict)]
