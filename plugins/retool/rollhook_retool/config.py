"""What a run, and within bounds a row, may set."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from rollhook import RunOnly


class InterpreterConfig(BaseModel):
    """The interpreter, in both forms.

    timeout_s: seconds that one call may run. max_output_chars: characters of its output that the model sees.
    packages: distributions that code can import, with what they require.
    warm: interpreters kept started, with `packages` imported, so that a rollout's first call need not wait.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeout_s: float = Field(10.0, gt=0, le=120, allow_inf_nan=False)
    max_output_chars: int = Field(2000, ge=100, le=50_000)
    packages: Annotated[tuple[str, ...], RunOnly()] = ("numpy", "sympy")
    warm: Annotated[int, RunOnly()] = Field(2, ge=0, le=64)


class EnvironmentConfig(InterpreterConfig):
    """The environment. prompt_has_instruction: the row's prompt explains the protocol itself."""

    prompt_has_instruction: bool = False


class RewardConfig(BaseModel):
    """The verifier. right, wrong: the reward for such an answer; none is wrong. timeout_s: one comparison."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    right: float = Field(1.0, allow_inf_nan=False)
    wrong: float = Field(-1.0, allow_inf_nan=False)
    timeout_s: Annotated[float, RunOnly()] = Field(10.0, gt=0, le=60, allow_inf_nan=False)
