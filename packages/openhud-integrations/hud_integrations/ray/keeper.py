"""`Keeper`: an actor that keeps a command running on a node of the cluster: a trainer, a server, a sampler."""

from __future__ import annotations

import signal
import socket
import threading
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hud_integrations.ray.bound_command import bound
from hud_integrations.ray.package import ray
from hud_integrations.ray.restarted_command import RestartedCommand

PORT = "{port}"
"""Stands in a command for a free port of its node."""
BAD_INPUT = 2
"""Exit code of commands that would fail the same way again."""
HEALTH_SECONDS = 1.0

KeeperState = Literal["starting", "running", "ready", "done", "refused", "ended"]
"""`starting`: Ray places or restarts it. `ready`: it answers `/health`. `done`: it ended with 0. `refused`: with 2, bad
input. `ended`: at somebody's wish."""


@dataclass(frozen=True)
class KeptCommand:
    """A command that runs on one node at a time until it is done."""

    name: str
    command: tuple[str, ...]
    folder: str | None = None
    """Working folder; None: the actor's."""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment variables in addition to the node's."""
    on: Mapping[str, str] = field(default_factory=dict)
    """Labels that its node must have."""
    cpus: float = 0.0
    gpus: float = 0.0
    """Amounts that Ray reserves for it on its node."""
    notice: float = 60.0
    """Seconds from SIGTERM to SIGKILL when it is stopped."""

    @property
    def serves(self) -> bool:
        """True if it listens on a port that is chosen for it."""
        return any(PORT in word for word in self.command)


class Keeper:
    """One command, started again when it fails: here, and by Ray on another node when this one is lost."""

    def __init__(self, settings: KeptCommand) -> None:
        self.settings = settings
        self._address = ray.util.get_node_ip_address()
        self._node = ray.get_runtime_context().get_node_id()
        self._url: str | None = None
        final = (0, BAD_INPUT)
        self._child = RestartedCommand(
            self._command, settings.variables, final=final, folder=settings.folder
        )

    def report(self) -> dict[str, Any]:
        """Return its state, node and address, and its last line."""
        child = self._child
        return {
            "name": self.settings.name,
            "state": self._state(),
            "node": self._node,
            "address": self._address,
            "url": self._url,
            "restarts": child.restarts,
            "said": child.last_line,
        }

    def stop(self) -> float:
        """Let it end within its notice; returns that, in seconds."""
        self._child.ask(signal.SIGTERM)
        last = threading.Timer(self.settings.notice, self._child.signal, (signal.SIGKILL,))
        last.daemon = True
        last.start()
        return self.settings.notice

    def _state(self) -> KeeperState:
        code = self._child.code
        if code is None:
            return "ready" if self._healthy() else "running"
        if self._child.stop_requested:
            return "ended"
        return "refused" if code == BAD_INPUT else "done"

    def _healthy(self) -> bool:
        if self._url is None:
            return False
        try:
            with urllib.request.urlopen(f"{self._url}/health", timeout=HEALTH_SECONDS) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _command(self) -> list[str]:
        command = list(self.settings.command)
        if self.settings.serves:
            with socket.socket() as listener:
                listener.bind(("", 0))
                port = str(listener.getsockname()[1])
            command = [word.replace(PORT, port) for word in command]
            self._url = f"http://{self._address}:{port}"
        return bound(command)
