"""What a run, and within bounds a row, may set."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, DirectoryPath, Field, model_validator

from rollhook import RunOnly


class TerminalConfig(BaseModel):
    """The environment.

    tasks: a folder of tasks. task: the name of one of them, which is its folder's.
    command_timeout_s: seconds of one command, unless the model asks for fewer.
    rows, columns: the size of the screen. max_output_chars: characters that are shown of a command's output.
    packages: distributions that Python inside can import, for the agent and for the tests; of tasks without
    an image. image: of tasks that need one and name none; {task} in it stands for the task's name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tasks: DirectoryPath
    task: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)
    command_timeout_s: float = Field(60.0, gt=0, le=3600, allow_inf_nan=False)
    rows: int = Field(40, ge=10, le=200)
    columns: int = Field(120, ge=20, le=500)
    max_output_chars: int = Field(6000, ge=200, le=100_000)
    packages: Annotated[tuple[str, ...], RunOnly()] = ("pytest",)
    image: Annotated[str | None, RunOnly()] = None

    @model_validator(mode="after")
    def _is_there(self) -> Self:
        if not (self.tasks / self.task / "task.toml").is_file():
            raise ValueError(f"there is no task {self.task!r} (no {self.task}/task.toml in tasks)")
        return self


class TerminusConfig(TerminalConfig):
    """The environment `terminus`. confirm: a model that says the task is complete is asked once more."""

    confirm: bool = True
