"""`env.workspace`: how an environment says that its runs have a shell and files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hud.environment.part import Part
from hud.environment.workspace.files.changes import SKIPPED
from hud.environment.workspace.network.policy import Peer
from hud.environment.workspace.sandbox.limits import WorkspaceLimits
from hud.environment.workspace.sandbox.mounts import Mount
from hud.errors import UsageError

if TYPE_CHECKING:
    from hud.environment.workspace.workspace import Workspace


class OffersWorkspaces(ABC):
    """What an `Environment` knows of workspaces."""

    @abstractmethod
    def add_part(self, part: Part) -> None:
        """Have every run bring `part` up."""

    def workspace(
        self,
        root: str | Path | None = None,
        *,
        name: str = "shell",
        guest_path: str = "/workspace",
        mounts: Sequence[Mount] = (),
        network: bool = False,
        allowed_hosts: Sequence[str] | None = None,
        peers: Sequence[Peer] = (),
        env: Mapping[str, str] | None = None,
        limits: WorkspaceLimits | None = None,
        track_files: bool = True,
        untracked: Sequence[str] = SKIPPED,
        keeps_running: bool = False,
    ) -> Workspace:
        """Give every run a shell and a folder of its own in a sandbox; agents come in over SSH.

        The folder, `guest_path` inside, begins as a copy of `root`, or empty; what a run changes there, no other
        run sees, and `root` stays as it is. `mounts` are more of this machine's files, to be read only; `env` are
        variables. With `network` its programs reach the web by a proxy: what is public, or `allowed_hosts` alone
        (`pypi.org`, `*.example.org`, `git.example.org:9418`). `peers` are services that it reaches by name.
        Changed files are recorded for each step, except those of the names (patterns) in `untracked`.
        When the agent is done, its connections end, and all that runs in there; with `keeps_running` processes go
        on, so that graders find the servers that the agent was asked to start.
        """
        try:
            from hud.environment.workspace.workspace import Workspace
        except ModuleNotFoundError as error:
            raise UsageError(
                f"A workspace needs the package {error.name!r}: pip install 'openhud[environments]'."
            ) from error

        workspace = Workspace(
            root,
            name=name,
            guest_path=guest_path,
            mounts=mounts,
            network=network,
            allowed_hosts=allowed_hosts,
            peers=peers,
            env=env,
            limits=limits,
            track_files=track_files,
            untracked=untracked,
            keeps_running=keeps_running,
        )
        self.add_part(workspace)
        return workspace
