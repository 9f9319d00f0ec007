"""OpenEnv, both ways over its wire: `OpenEnvEnvironment` plays a server of it, `server_app` serves tasks of ours.

`OpenEnvEnvironment` needs no package of OpenEnv; `server_app` needs `pip install openenv`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hud.lazy import lazy

if TYPE_CHECKING:
    from hud_integrations.openenv.environment import OpenEnvEnvironment
    from hud_integrations.openenv.server import server_app

__all__ = ["OpenEnvEnvironment", "server_app"]

__getattr__ = lazy(__name__, {"OpenEnvEnvironment": ".environment", "server_app": ".server"})
