"""The control channel between an agent and an environment in another process."""

from hud.environment.channel.client import RemoteConnection
from hud.environment.channel.server import ControlServer, bind, serve

__all__ = ["ControlServer", "RemoteConnection", "bind", "serve"]
