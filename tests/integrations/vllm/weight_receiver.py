"""Receivers of weights, each a server of its own on a loopback address, as on a node without the trainer's disk."""

import socket
import threading
import time
from pathlib import Path

import uvicorn

from hud_integrations.vllm.weight_files.receiver import WeightVersions, application


class RunningReceiver:
    """`with RunningReceiver(folder) as receiver: receiver.url`"""

    def __init__(
        self,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        key: str | None = None,
        served: Path | None = None,
    ) -> None:
        self.folder, self.host, self.key, self.served = folder, host, key, served
        with socket.socket() as bound:
            bound.bind((host, port))
            self.port = bound.getsockname()[1]
        self.url = f"http://{host}:{self.port}"

    def start(self) -> None:
        """Begin, as a process that was started anew on the folder."""
        app = application(WeightVersions(self.folder, self.served), self.key)
        config = uvicorn.Config(
            app, host=self.host, port=self.port, log_level="error", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)

    def stop(self) -> None:
        """End; its port is free."""
        self._server.should_exit = True
        self._thread.join(10)

    def __enter__(self) -> "RunningReceiver":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
