"""`EngineImage`: an image of docker or podman, of which each workspace is a container of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

from hud.environment.workspace.sandbox.bubblewrap import Plan
from hud.environment.workspace.sandbox.mounts import SYSTEM_PATH
from hud.environment.workspace.sandbox.root_image import SandboxImage
from hud.errors import UsageError
from hud.eval.runtimes.containers.container_engine import (
    ContainerEngine,
    container_engine,
    last_line,
)
from hud.eval.runtimes.containers.images import check_reference
from hud_integrations.containers.container_launch import ContainerLaunch
from hud_integrations.containers.image_config import ImageConfig, read_config

_ROOT = ("", "0", "root")


@dataclass(frozen=True)
class EngineImage(SandboxImage):
    """An image of a container engine, by its id; `engine_image` makes one."""

    engine: ContainerEngine
    identifier: str
    workdir: str = "/"
    variables: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    """User of its processes in place of the image's."""
    network: str | None = None
    """Network of another container, as the engine's `run --network` takes it; None: one of its own, without a way out."""

    @property
    def shell(self) -> str:
        """Bash: the supervisor takes `/bin/sh` in an image without it."""
        return "/bin/bash"

    def writable(self) -> tuple[str, ...]:
        return ("/",)

    def launch(self, plan: Plan) -> ContainerLaunch:
        return ContainerLaunch(self.engine, self.identifier, plan, self.user, self.network)


def engine_image(reference: str) -> EngineImage:
    """Return an image for `env.workspace(image=...)` whose workspaces are containers of docker or podman.

    Raises `InfrastructureFault` where neither answers, and `UsageError` for an image that it has not: none is pulled.
    """
    return configured_image(reference)[0]


def configured_image(reference: str) -> tuple[EngineImage, ImageConfig]:
    """Return an image and its configuration. Raises `UsageError` as `engine_image` does."""
    check_reference(reference)
    engine = container_engine()
    done = subprocess.run(
        [engine.program, "image", "inspect", reference],
        env=engine.variables({}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        raise UsageError(f"{engine.program} has no image {reference!r}: {last_line(done.stderr, done.returncode)}")  # fmt: skip
    (described,) = json.loads(done.stdout)
    # Podman describes the health check beside the configuration.
    check = {"Healthcheck": described["Healthcheck"]} if described.get("Healthcheck") else {}
    config = read_config({**(described.get("Config") or {}), **check})
    home = "/root" if (config.User or "") in _ROOT else "/"
    variables = {"PATH": SYSTEM_PATH, "HOME": home, "SHELL": "/bin/sh", **config.variables}
    return EngineImage(engine, described["Id"], config.WorkingDir or "/", variables), config
