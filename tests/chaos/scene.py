"""What a storm goes over: a server with an environment and models, a machine that joined its fleet, and a provider."""

import itertools
import logging
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil
from tests.chaos.provider import Provider
from tests.chaos.wall_clock import WallClock
from tests.conftest import DATABASE, schema_url
from tests.fleet.deployed_server import deploy
from tests.fleet.joined_node import JoinedNode
from tests.fleet.live_server import LiveServer
from tests.platform.gateway.gateway_server import serving

LEASE_SECONDS = 6
UP_SECONDS = 90.0
ENV = """
import asyncio
from hud import Environment
env = Environment("echo")

@env.tool
async def add(one: int, other: int) -> int:
    return one + other

@env.template()
async def say(tenths: int = 10, seconds: float = 0.3):
    yield "Say a word."
    await asyncio.sleep(seconds)
    yield tenths / 10

@env.template()
async def many(letter: str = "e"):
    answer = yield f"Write many letters {letter}."
    yield min(1.0, str(answer).count(letter) / 8)
"""
TEXTS = ["Write many letters a e o t.", "Say a word, and then another."] * 5
SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "max_context": 64}
MODEL = "steady"
UPSTREAM = "upstream"


class Scene:
    """One server with everything around it, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home, self.client_home = folder / "home", folder / "client"
        self.sources = folder / "sources"
        self.server = LiveServer(self.home, "--workers", "1", "--rollout-lease", str(LEASE_SECONDS))
        self.provider = Provider()
        folder.mkdir(exist_ok=True)
        self.clocks = {whose: WallClock(folder, whose) for whose in ("server", "machine", "user")}
        self.node: JoinedNode | None = None
        self.trainers: list[psutil.Popen] = []
        self.evaluations: list[psutil.Popen] = []
        self._numbers = itertools.count(1)
        self._closing = ExitStack()

    def __enter__(self) -> "Scene":
        self.sources.mkdir(parents=True)
        self.client_home.mkdir()
        (self.sources / "env.py").write_text(ENV)
        url = self._closing.enter_context(serving(self.provider))
        # The provider breaks off on purpose.
        log = logging.getLogger("uvicorn.error")
        log.addFilter(_silence)
        self._closing.callback(log.removeFilter, _silence)
        self.server.variables = {
            **{"HUD_REACH": "127.0.0.0/8", "STORM_API_KEY": "sk-of-the-storm"},
            **self.clocks["server"].variables,
        }
        self.server.start()
        with self.server.client() as api:
            deploy(api, self.sources, "echo")
            upstream = {"url": f"{url}/v1", "key_env": "STORM_API_KEY"}
            body = {"name": UPSTREAM, "provider": upstream}
            api.post("/v2/models/provide", json=body).raise_for_status()
            self.fleet_key = api.post("/v2/fleet-passes", json={"name": "spot"}).json()["key"]
        self.create_model(MODEL)
        self.join()
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self.trainers, *self.evaluations):
            process.kill()
        if self.node is not None and self.node.process.poll() is None:
            self.node.kill()
        self.server.stop()
        self._closing.close()

    def create_model(self, name: str) -> None:
        """Make a model; those of all names have the same first weights."""
        body = {"name": name, "texts": TEXTS, "sizes": SIZES, "seed": 1}
        with self.server.client() as api:
            answer = api.post("/v2/models/create", json=body)
            assert answer.status_code in (200, 201, 409), answer.text

    def join(self) -> None:
        """Have a machine join the fleet, in place of one that was lost."""
        number = next(self._numbers)
        self.node = JoinedNode(
            self.server.url,
            self.fleet_key,
            self.folder / f"node-{number}",
            *("--rollouts", "4", "--name", f"node-{number}", "--cache", str(self.folder / "cache")),
            variables=self.clocks["machine"].variables,
        )

    def hud(self, *arguments: str) -> psutil.Popen:
        """Start a command of a user, in the folder of the sources."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("HUD_")}
        variables = {
            "HUD_API_URL": self.server.url,
            "HUD_API_KEY": self.server.key,
            "HUD_HOME": str(self.client_home),
            "OMP_NUM_THREADS": "1",
            **self.clocks["user"].variables,
        }
        return psutil.Popen(
            [sys.executable, "-m", "hud.cli.main", *arguments],
            env={**kept, **variables},
            cwd=self.sources,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def engines(self) -> list[psutil.Process]:
        """Return the processes in which models sample and train."""
        return self._children("engine_worker")

    def workers(self) -> list[psutil.Process]:
        """Return the server's own workers of the fleet."""
        return self._children("hud.fleet.rollout_worker")

    def restart(self) -> None:
        """Start the server again, on its port."""
        self.server.start()

    def wait_until_up(self) -> None:
        """Wait until the server answers; raises `AssertionError` after `UP_SECONDS`, and where it has ended."""
        until = time.monotonic() + UP_SECONDS
        while time.monotonic() < until:
            assert self.server.process is not None
            if self.server.process.poll() is not None:
                last = self.server.log.read_text()[-1500:]
                self.restart()
                raise AssertionError(f"The server ended by itself: {last}")
            try:
                if httpx.get(f"{self.server.url}/healthz", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        raise AssertionError(f"The server does not answer {UP_SECONDS:g} s after a fault was over.")

    @property
    def database(self) -> str | None:
        """URL of the PostgreSQL schema; None: SQLite."""
        return None if DATABASE is None else schema_url(self.home)

    def _children(self, words: str) -> list[psutil.Process]:
        found = []
        for one in psutil.Process(self.server.process.pid).children(recursive=True):
            try:
                if any(words in part for part in one.cmdline()):
                    found.append(one)
            except psutil.Error:
                continue
        return found


def _silence(record: logging.LogRecord) -> bool:
    return False
