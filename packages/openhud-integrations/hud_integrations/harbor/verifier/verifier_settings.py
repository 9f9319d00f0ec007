"""`VerifierSettings`: a verifier in a container of its own, as `task.toml` and `tests/` declare it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hud.environment.workspace.sandbox.mounts import taken
from hud.errors import UsageError
from hud_integrations.containers.image_build import bases_are_named
from hud_integrations.harbor.settings import allowed_hosts, memory_mb
from hud_integrations.harbor.verifier.artifacts import Artifact, read_artifacts

_SECONDS = 600.0


@dataclass(frozen=True)
class VerifierSettings:
    """A verifier in a container of its own."""

    context: Path
    dockerfile: str
    """Dockerfile of its image, which has the tests."""
    environment: Mapping[str, Any]
    """`[verifier.environment]`, else `[environment]`."""
    seconds: float
    """Time-out of the tests."""
    artifacts: tuple[Artifact, ...]
    """Files that are copied to it, at the agent's end."""
    hooks: tuple[tuple[str, float], ...]
    """Commands that run in the agent's workspace before, with their time-outs."""

    @property
    def allowed_hosts(self) -> tuple[str, ...] | None:
        return allowed_hosts(self.environment)

    @property
    def memory_mb(self) -> float | None:
        return memory_mb(self.environment)

    @property
    def cpus(self) -> float | None:
        count = self.environment.get("cpus")
        return None if count is None else float(count)

    @property
    def workdir(self) -> str:
        """Its working directory; empty: the image's."""
        workdir = str(self.environment.get("workdir") or "")
        return "" if workdir and taken(workdir) else workdir


def is_separate(verifier: Mapping[str, Any]) -> bool:
    """Return whether a `[verifier]` has a container of its own."""
    return verifier.get("environment_mode") == "separate" or bool(verifier.get("environment"))


def read_verifier(tests: Path, config: Mapping[str, Any], *, named_only: bool) -> VerifierSettings:
    """Read the settings of a separate verifier. Raises `UsageError` with what is refused, as the end of a sentence.

    `named_only`: `add_image` must have named the bases of its image.
    """
    verifier = config["verifier"]
    environment = verifier.get("environment") or config.get("environment") or {}
    seconds = float(verifier.get("timeout_sec", _SECONDS))
    text = _dockerfile(tests, environment.get("docker_image"))
    if text is None:
        raise UsageError(" without tests/Dockerfile")
    if named_only and not bases_are_named(text):
        raise UsageError(", whose base add_image has not named")
    if (tests / "docker-compose.yaml").exists():
        raise UsageError(" with services (tests/docker-compose.yaml)")
    if environment.get("gpus"):
        raise UsageError(" with GPUs")
    hooks = []
    for declared in verifier.get("collect") or ():
        hook = declared if isinstance(declared, Mapping) else {"command": declared}
        if hook.get("service", "main") != "main":
            raise UsageError(" that collects from another service")
        hooks.append((str(hook.get("command", "")), float(hook.get("timeout_sec", seconds))))
    artifacts = tuple(read_artifacts(config.get("artifacts")))
    return VerifierSettings(tests, text, environment, seconds, artifacts, tuple(hooks))


def _dockerfile(tests: Path, ready_made: Any) -> str | None:
    if ready_made:
        return f"FROM {ready_made}\n"
    path = tests / "Dockerfile"
    return path.read_text(errors="replace") if path.is_file() else None
