"""The control channel between an agent and an environment in another process: JSON-RPC, one object a line.

the agent's side        client (a stream), remote_run (what is asked), tunnels, remote_files
the environment's side  server (connections), sessions (runs), offers (what is announced, where a tunnel leads),
                        tools_server and tracking (tools and files, for clients of other makers)
both                    framing, splice, grading
"""

from hud.environment.channel.client import RemoteConnection
from hud.environment.channel.server import ControlServer, bind, serve

__all__ = ["ControlServer", "RemoteConnection", "bind", "serve"]
