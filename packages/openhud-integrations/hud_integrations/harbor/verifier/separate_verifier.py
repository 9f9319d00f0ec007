"""`SeparateVerifier`: a workspace of its own in which a task's tests run, with the agent's artifacts and nothing else of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hud.environment import WorkspaceLimits
from hud.environment.run import EnvironmentRun
from hud.environment.workspace.files.transfer import confine
from hud.environment.workspace.sandbox.sandbox import Sandbox
from hud.environment.workspace.workspace import OpenWorkspace, Workspace
from hud_integrations.containers.image_build import build_engine_image, build_image
from hud_integrations.harbor.settings import literal_variables
from hud_integrations.harbor.verifier.artifacts import Artifact, copy_artifact
from hud_integrations.harbor.verifier.verifier_settings import VerifierSettings

_LOGS, _WORKDIR = "/logs", "/app"
_OWN_ARTIFACTS = Artifact(f"{_LOGS}/artifacts")


class SeparateVerifier:
    """The verifier of one task; its image has the tests."""

    def __init__(self, settings: VerifierSettings, *, engine: bool) -> None:
        build = build_engine_image if engine else build_image
        image = build(settings.context, settings.dockerfile)
        hosts = settings.allowed_hosts
        self.workdir = settings.workdir or (_WORKDIR if image.workdir == "/" else image.workdir)
        self._artifacts = (_OWN_ARTIFACTS, *settings.artifacts)
        self._workspace = Workspace(
            name="verifier",
            guest_path=self.workdir,
            folders=(_LOGS,),
            network=hosts != (),
            allowed_hosts=hosts or None,
            env=literal_variables(settings.environment),
            image=image,
            limits=WorkspaceLimits(
                memory_mb=settings.memory_mb or WorkspaceLimits.memory_mb,
                processors=settings.cpus or WorkspaceLimits.processors,
                seconds=2 * settings.seconds + 600.0,
            ),
            track_files=False,
            spares=0,
        )

    @asynccontextmanager
    async def open(
        self, run: EnvironmentRun, agent: Sandbox | None
    ) -> AsyncIterator[OpenWorkspace]:
        """A new workspace with the artifacts of the agent's; None: without them. Raises `AgentFault` for one that does not fit."""
        async with self._workspace.open(run) as opened:
            await opened.bash(f"mkdir -p {_LOGS}/verifier", cwd="/", timeout=60.0, alone=False, env=None)  # fmt: skip
            for artifact in self._artifacts if agent is not None else ():
                assert agent is not None
                links = await copy_artifact(artifact, agent, opened.sandbox)
                # One may lead to the expected answer, or lead the next artifact to the tests.
                await confine(
                    opened.sandbox, links, [artifact.path for artifact in self._artifacts]
                )
            yield opened
