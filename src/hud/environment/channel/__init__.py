"""The control channel between an agent and an environment in another process."""

from hud.environment.channel.client import RemoteConnection
from hud.environment.channel.server import ControlServer, serve

__all__ = ["ControlServer", "RemoteConnection", "serve"]
