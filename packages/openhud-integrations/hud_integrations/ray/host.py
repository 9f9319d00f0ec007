"""`Host`: an actor that keeps one worker of the fleet as a child process on its node."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any, Literal

from hud_integrations.ray.placement import FleetSettings, HostState
from hud_integrations.ray.restarted_command import RestartedCommand


class Host:
    """One worker on one node: started again when it ends by itself, until the supervisor wants it to end."""

    def __init__(self, settings: FleetSettings, shown: str, labels: dict[str, str]) -> None:
        """`shown`: name of the worker in the fleet; `labels`: its labels."""
        self.settings, self.shown, self.labels = settings, shown, labels
        self._wish: Literal["running", "draining", "stopping"] = "running"
        self._worker = RestartedCommand(self._command, {"HUD_API_KEY": settings.key})

    @property
    def state(self) -> HostState:
        if self._worker.code is None:
            return self._wish
        return "drained" if self._wish == "running" else "ended"

    def report(self) -> dict[str, Any]:
        """Return its state, and the last line of its worker."""
        worker = self._worker
        return {"state": self.state, "restarts": worker.restarts, "said": worker.last_line}

    def drain(self) -> None:
        """Let the worker take nothing more, and end when it holds nothing."""
        if self.state == "running":
            self._wish = "draining"
            self._worker.ask(signal.SIGUSR1)

    def stop(self, seconds: float) -> None:
        """Let the worker end within `seconds`; what is not over by then is handed back."""
        if self.state in ("running", "draining"):
            self._wish = "stopping"
            self._worker.ask(signal.SIGTERM)
            again = threading.Timer(seconds, self._worker.signal, (signal.SIGTERM,))
            again.daemon = True
            again.start()

    def _command(self) -> list[str]:
        settings = self.settings
        command = [sys.executable, "-m", "hud.fleet.child_worker", settings.url]
        command += ["--rollouts", str(settings.rollouts), "--notice", str(settings.notice)]
        command += ["--name", self.shown]
        for name, value in self.labels.items():
            command += ["--label", f"{name}={value}"]
        if settings.cache is not None:
            command += ["--cache", settings.cache]
        return [*command, "--images"] if settings.images else command
