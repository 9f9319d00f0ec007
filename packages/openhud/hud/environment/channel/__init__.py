"""The control channel between an agent and an environment in another process: JSON-RPC, one object per line.

client/   the agent's side: remote_connection (a stream), remote_run (requests), tunnels, remote_files
server/   the environment's side: control_server (connections), sessions (runs), announcements (capabilities and the
          targets of their tunnels), tools_server and file_tracking (tools and files, for third-party clients)
framing is used by both.
"""

from hud.environment.channel.client.remote_connection import RemoteConnection
from hud.environment.channel.server.control_server import ControlServer, bind, serve

__all__ = ["ControlServer", "RemoteConnection", "bind", "serve"]
