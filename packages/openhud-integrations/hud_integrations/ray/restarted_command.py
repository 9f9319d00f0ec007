"""`RestartedCommand`: a command that runs as a child process, and is started again when it fails."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping

from hud.processes.backoff import Backoff

RESTARTS = Backoff(1.0, longest_seconds=30.0)
STEADY_SECONDS = 30.0
"""Lifetime of a process, in seconds, after which its end is the first failure again."""


class RestartedCommand:
    """Starts the command at once, and again after a failure, until it ends with a final exit code or is asked to end."""

    def __init__(
        self,
        command: Callable[[], list[str]],
        environment: Mapping[str, str],
        *,
        final: Collection[int] = (0,),
        folder: str | None = None,
    ) -> None:
        """`command` is asked before each start; `final`: exit codes after which nothing is started."""
        self.restarts = 0
        self.last_line = ""
        """Its last line."""
        self.code: int | None = None
        """Exit code, once it has ended for good."""
        self._command, self._final, self._folder = command, final, folder
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("RAY_")
        }
        self._environment = {**inherited, **environment}
        self._asked = threading.Event()
        self._child: subprocess.Popen[str] | None = None
        # Not the thread of a call: a command that is bound to its parent follows the thread that started it.
        threading.Thread(target=self._keep, daemon=True).start()

    @property
    def stop_requested(self) -> bool:
        """True once it was asked to end."""
        return self._asked.is_set()

    def ask(self, number: signal.Signals) -> None:
        """Signal it, and start nothing after its end."""
        self._asked.set()
        self.signal(number)

    def signal(self, number: signal.Signals) -> None:
        child = self._child
        if child is not None:
            child.send_signal(number)  # Nothing happens where it has ended.

    def _keep(self) -> None:
        failures, code = 0, 0
        while not self.stop_requested:
            began = time.monotonic()
            code = self._run()
            if code in self._final and not self.stop_requested:
                break
            lived = time.monotonic() - began
            failures = 1 if lived > STEADY_SECONDS else failures + 1
            if self._asked.wait(RESTARTS.seconds(failures)):
                break
            self.restarts += 1
        self.code = code

    def _run(self) -> int:
        """Run it to its end; returns its exit code."""
        try:
            child = self._child = subprocess.Popen(
                self._command(),
                env=self._environment,
                cwd=self._folder,
                stdin=subprocess.PIPE,  # The end of this process is the end of its input.
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:  # A folder that this node lacks, for example.
            self.last_line = f"It cannot be started: {error}"
            return 1
        if self.stop_requested:  # It came between the last look and the start.
            child.terminate()
        # What it started may hold its output open for longer than it lives.
        threading.Thread(target=self._listen, args=(child,), daemon=True).start()
        return child.wait()

    def _listen(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            print(line, end="", flush=True)
            self.last_line = line.strip() or self.last_line
