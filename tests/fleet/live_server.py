"""A real `hud up` for tests: started, killed, and started again on the same home and port."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
from tests.conftest import DATABASE, schema_url

START_SECONDS = 180


class LiveServer:
    """One server process at a time over one HUD_HOME."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.home = home
        self.arguments = arguments
        self.variables: dict[str, str] = {}
        """Environment variables, besides those of this process."""
        self.port = 0
        self.key = ""
        self.url = ""
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("HUD_")}
        self.log = self.home.with_suffix(".log")
        with self.log.open("ab") as log:
            begin = log.tell()
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "hud.cli.main",
                    "up",
                    "--port",
                    str(self.port),
                    *self._database(),
                    *self.arguments,
                ],
                env={
                    **kept,
                    "HUD_HOME": str(self.home),
                    "OMP_NUM_THREADS": "1",
                    **self.variables,
                },
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            said = self.log.read_bytes()[begin:].decode()
            if "A client needs" in said and "Stop: Ctrl-C" in said:
                break
            assert self.process.poll() is None, said
            time.sleep(0.05)
        self.url = re.search(r"HUD_API_URL=(\S+)", said)[1]
        self.port = int(self.url.rpartition(":")[2])
        key = re.search(r"HUD_API_KEY=(hud_\S+)", said)
        self.key = key[1] if key else self.key

    def _database(self) -> list[str]:
        return [] if DATABASE is None else ["--database", schema_url(self.home)]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def client(self, key: str | None = None) -> httpx.Client:
        return httpx.Client(
            base_url=self.url,
            headers={"authorization": f"Bearer {key or self.key}"},
            timeout=60,
            transport=httpx.HTTPTransport(retries=5),
        )
