"""What one sandbox may use.

Invariant: a bound is of all of a sandbox's processes together, unless it says that it is of one.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

MIB = 1 << 20


class SandboxLimits(BaseModel):
    """The settings of both local backends, in the run configuration under `settings: rollhook/bubblewrap:`.

    memory_mb: MiB held by all processes together; also what one process may map.
    disk_mb: MiB of files; it counts as the machine's memory. file_mb: MiB of one file.
    processes: alive at once, threads included. open_files: of one process.
    files: number of files. cpu_s: CPU seconds of one process.
    output_mb: MiB that one `exec` may write to stdout and stderr together before it is killed.
    transfer_mb: MiB that one file or folder read out of, or put into, a sandbox may have.
    start_timeout_s: seconds until a sandbox that does not start is an error.
    warm: sandboxes kept started and unused, so that the next one is there at once.
    python: the interpreter inside; None means the one that runs rollhook.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    memory_mb: int = Field(1024, ge=32)
    disk_mb: int = Field(256, ge=1)
    file_mb: int = Field(64, ge=1)
    processes: int = Field(64, ge=1, le=4096)
    open_files: int = Field(256, ge=16)
    files: int = Field(20_000, ge=100)
    cpu_s: int = Field(120, ge=1)
    output_mb: int = Field(8, ge=1)
    transfer_mb: int = Field(64, ge=1)
    start_timeout_s: float = Field(30.0, gt=0, allow_inf_nan=False)
    warm: int = Field(2, ge=0, le=64)
    python: Path | None = None

    def for_supervisor(self) -> dict[str, int]:
        """The bounds that process 1 enforces, in bytes and counts."""
        return {
            "memory_bytes": self.memory_mb * MIB,
            "file_bytes": self.file_mb * MIB,
            "processes": self.processes,
            "open_files": self.open_files,
            "files": self.files,
            "cpu_s": self.cpu_s,
        }
