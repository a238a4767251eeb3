"""What a run may set. Nothing of it is a row's."""

from __future__ import annotations

from fnmatch import fnmatchcase

from pydantic import BaseModel, ConfigDict, Field

MIB = 1 << 20
IMAGE = r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$"


class DockerConfig(BaseModel):
    """The settings of the backend `docker`, in the run configuration under `settings: docker:`.

    command: the engine's command line client, with arguments that go before every subcommand.
    image: of sandboxes that nobody asked a certain image for. images: further ones, or shell patterns of
    them, that a plugin may ask for. options: further arguments of `run`, as `--runtime=runsc`.
    user: user and group that commands run as, by number. network: as `run --network` takes it.
    read_only: nothing can be written but the working folder, /tmp and `writable`.
    memory_mb: MiB of all processes together. disk_mb: MiB of each folder of `writable`, in memory.
    file_mb: MiB of one file. processes: alive at once, threads included. cpus: how many at once.
    open_files: of one process. output_mb: MiB that one `exec` may write before it is killed.
    transfer_mb: MiB that one file or folder read out of, or put into, a sandbox may have.
    start_timeout_s: seconds until a container that does not start is an error.
    python: the interpreter inside, as the image has it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: tuple[str, ...] = Field(("docker",), min_length=1)
    image: str = Field("python:3.12-slim", pattern=IMAGE)
    images: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    user: str = Field("1000:1000", pattern=r"^\d+:\d+$")
    network: str = "none"
    read_only: bool = True
    writable: tuple[str, ...] = ("/var/tmp", "/tests", "/logs")
    memory_mb: int = Field(1024, ge=32)
    disk_mb: int = Field(256, ge=1)
    file_mb: int = Field(256, ge=1)
    processes: int = Field(128, ge=8, le=4096)
    cpus: float = Field(1.0, gt=0, allow_inf_nan=False)
    open_files: int = Field(1024, ge=64)
    output_mb: int = Field(8, ge=1)
    transfer_mb: int = Field(64, ge=1)
    start_timeout_s: float = Field(60.0, gt=0, allow_inf_nan=False)
    python: str = "python3"

    def allows(self, image: str) -> bool:
        """Whether a plugin may ask for `image`."""
        return image == self.image or any(fnmatchcase(image, pattern) for pattern in self.images)
