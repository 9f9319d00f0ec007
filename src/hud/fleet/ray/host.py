"""`Host`: an actor that keeps one worker of the fleet as a child process on its node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from hud.fleet.ray.placement import FleetSettings, HostState

FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0


class Host:
    """One worker on one node: started again when it ends by itself, until the supervisor wants it to end."""

    def __init__(self, settings: FleetSettings, shown: str, labels: dict[str, str]) -> None:
        """`shown`: name of the worker in the fleet; `labels`: its labels."""
        self.settings, self.shown, self.labels = settings, shown, labels
        self.restarts = 0
        self.said = ""
        self._state: HostState = "running"
        self._asked = threading.Event()
        self._child: subprocess.Popen[str] | None = None
        threading.Thread(target=self._keep, daemon=True).start()

    def report(self) -> dict[str, Any]:
        """Return its state, and the last line of its worker."""
        return {"state": self._state, "restarts": self.restarts, "said": self.said}

    def drain(self) -> None:
        """Let the worker take nothing more, and end when it holds nothing."""
        if self._state == "running":
            self._state = "draining"
            self._ask(signal.SIGUSR1)

    def stop(self, seconds: float) -> None:
        """Let the worker end within `seconds`; what is not over by then is handed back."""
        if self._state in ("running", "draining"):
            self._state = "stopping"
            self._ask(signal.SIGTERM)
            again = threading.Timer(seconds, self._signal, (signal.SIGTERM,))
            again.daemon = True
            again.start()

    def _ask(self, number: signal.Signals) -> None:
        self._asked.set()
        self._signal(number)

    def _signal(self, number: signal.Signals) -> None:
        child = self._child
        if child is not None:
            child.send_signal(number)  # Nothing happens where it has ended.

    def _keep(self) -> None:
        wait = FIRST_WAIT_SECONDS
        while not self._asked.is_set():
            began = time.monotonic()
            code = self._run()
            if code == 0 and not self._asked.is_set():
                self._state = "drained"
                return
            lived = time.monotonic() - began
            wait = FIRST_WAIT_SECONDS if lived > LONGEST_WAIT_SECONDS else wait
            if self._asked.wait(wait):
                break
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)
            self.restarts += 1
        self._state = "ended"

    def _run(self) -> int:
        """Run a worker to its end; returns its exit code."""
        child = self._child = subprocess.Popen(
            self._command(),
            env=self._environment(),
            stdin=subprocess.PIPE,  # It ends when this process does, however that ends.
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        if self._asked.is_set():  # It came between the last look and the start.
            child.terminate()
        # What the worker started may hold its output open for longer than it lives.
        threading.Thread(target=self._listen, args=(child,), daemon=True).start()
        return child.wait()

    def _listen(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            print(line, end="", flush=True)
            self.said = line.strip() or self.said

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

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        return {**kept, "HUD_API_KEY": self.settings.key}
