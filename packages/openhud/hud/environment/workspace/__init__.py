"""Workspaces: a shell and a folder of files for each run, in its own sandbox, over SSH.

`workspace` is the declaration, `ssh_server` the access; `sandbox/` confines processes, `network/` connections, and
`files/` copies and compares files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hud.environment.workspace.network.policy import Peer
from hud.environment.workspace.sandbox.limits import WorkspaceLimits
from hud.environment.workspace.sandbox.mounts import Mount
from hud.lazy import lazy

if TYPE_CHECKING:
    from hud.environment.workspace.workspace import Workspace

__all__ = ["Mount", "Peer", "Workspace", "WorkspaceLimits"]

__getattr__ = lazy(__name__, {"Workspace": ".workspace"})
