"""What the plugin `docker` registers: a sandbox backend."""

from rollhook import SandboxSpec, hookimpl
from rollhook_docker.config import DockerConfig
from rollhook_docker.engine import open_engine
from rollhook_docker.sandbox import create, from_image


@hookimpl
def rollhook_sandboxes() -> list[SandboxSpec]:
    """`docker`: containers of docker or podman."""
    return [
        SandboxSpec(
            name="docker", config=DockerConfig, open=open_engine, create=create, from_image=from_image
        )
    ]
