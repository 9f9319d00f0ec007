"""Workspaces: a shell and a folder of files for each run, in a sandbox of its own, reached over SSH.

`part` is what an environment declares; `sandbox` and what it uses keep the agent inside; `server` is the way in.
"""

from hud.environment.workspace.limits import WorkspaceLimits
from hud.environment.workspace.mounts import Mount
from hud.environment.workspace.network import Peer

__all__ = ["Mount", "Peer", "WorkspaceLimits"]
