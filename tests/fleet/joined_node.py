"""A machine that joined a fleet, for tests: `hud fleet join` in a process with a home of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType


class JoinedNode:
    """One `hud fleet join`."""

    def __init__(
        self,
        url: str,
        key: str,
        home: Path,
        *arguments: str,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("HUD_")}
        home.mkdir(parents=True, exist_ok=True)
        self.log = home / "said.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hud.cli.main", "fleet", "join", url, *arguments],
                env={
                    **kept,
                    "HUD_HOME": str(home),
                    "HUD_API_KEY": key,
                    "OMP_NUM_THREADS": "1",
                    **variables,
                },
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self) -> str:
        return self.log.read_text()

    def stop(self, seconds: float = 30.0) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def kill(self) -> None:
        """Lose the machine: everything on it ends at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def wait_for(self, text: str, seconds: float = 30.0) -> None:
        until = time.monotonic() + seconds
        while text not in self.said():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < until, self.said()
            time.sleep(0.05)
