"""The official client from PyPI, in a virtual environment of its own, against our server: both as a person starts them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
CLIENT = ROOT / ".venv-official" / "bin"

WORDS = """\
from hud import Environment

env = Environment("words")


@env.template(id="say", description="Say a word.")
async def say(word: str = "red", most: int = 300):
    answer = yield f"say {word}"
    yield min(1.0, len(str(answer)) / most)


tasks = [say(word=word) for word in ("red", "green", "blue", "yellow")]
"""
TEXTS = ["say red green blue yellow", "aeiou", "the quick brown fox jumps"] * 3
SIZES = {
    "vocab_size": 300,
    "hidden": 32,
    "layers": 1,
    "heads": 2,
    "kv_heads": 1,
    "max_context": 128,
}


@dataclass
class Server:
    """A running `hud up`, its admin's key, and a key as people get it."""

    url: str
    admin_key: str
    log: Path
    key: str = ""

    @property
    def variables(self) -> dict[str, str]:
        """What a client is pointed here with."""
        return {
            "HUD_API_URL": self.url,
            "HUD_GATEWAY_URL": self.url,
            "HUD_RL_URL": self.url,
            "HUD_TELEMETRY_URL": f"{self.url}/v3/api",
            "HUD_RUNTIME_URL": self.url,
            "HUD_WEB_URL": self.url,
            "HUD_API_KEY": self.key,
        }

    def get(self, path: str, **options: Any) -> Any:
        return self._ask("GET", path, **options)

    def post(self, path: str, body: dict[str, Any], **options: Any) -> Any:
        return self._ask("POST", path, json=body, **options)

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        headers = {"authorization": f"Bearer {self.admin_key}"}
        reply = httpx.request(method, self.url + path, headers=headers, timeout=60, **options)
        assert reply.is_success, f"{method} {path}: {reply.status_code} {reply.text}"
        return reply.json()

    def create_model(self, name: str) -> str:
        """Make a tiny random model and return its id."""
        body = {"name": name, "texts": TEXTS, "sizes": SIZES}
        return self.post("/v2/models/create", body)["id"]

    def model(self, name: str) -> dict[str, Any]:
        """The model as the server lists it."""
        found = [one for one in self.get("/v2/models")["items"] if one["model_name"] == name]
        assert len(found) == 1, f"{name}: {found}"
        return found[0]


@dataclass
class Official:
    """The official command and library, in a folder and a home of their own."""

    server: Server
    folder: Path
    home: Path

    def __post_init__(self) -> None:
        self.home.mkdir(exist_ok=True)
        inherited = {
            name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ
        }
        self.environment = {
            **inherited,
            **self.server.variables,
            "HOME": str(self.home),
            "PATH": f"{CLIENT}:{inherited.get('PATH', '')}",
            "HUD_SKIP_VERSION_CHECK": "1",
            "HUD_CLI_ANALYTICS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }

    def write(self, name: str, content: str) -> Path:
        """Write a file of the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    def hud(self, *arguments: str, exit_code: int = 0) -> str:
        """Run a command of the official client and return what it printed on standard output."""
        return self._run([str(CLIENT / "hud"), *arguments], exit_code)

    def json(self, *arguments: str, exit_code: int = 0) -> Any:
        """Run a command with `--json` and return what it printed, parsed."""
        printed = self.hud(*arguments, "--json", exit_code=exit_code)
        try:
            return json.loads(printed)
        except json.JSONDecodeError:
            pytest.fail(f"hud {' '.join(arguments)} --json printed no JSON:\n{printed}")

    def python(self, script: str) -> Any:
        """Run a script with the official library; it prints one line of JSON last."""
        self.write("script.py", script)
        printed = self._run([str(CLIENT / "python"), "script.py"], 0)
        return json.loads(printed.strip().splitlines()[-1])

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command of the official client and leave it running."""
        return subprocess.Popen(
            [str(CLIENT / "hud"), *arguments],
            # A job in the background of a shell ignores interrupts, and so would the client.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _run(self, command: list[str], exit_code: int) -> str:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=110,
        )
        shown = f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        shown += f"\nserver: {self.server.log.read_text()[-4000:]}"
        assert done.returncode == exit_code, f"exit {done.returncode}: {shown}"
        self.errors = done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`hud up` with keys, on a port of its own, for all tests of this folder."""
    if not (CLIENT / "hud").exists():
        pytest.skip("the official client is not here: scripts/setup-official-client .venv-official")
    home = tmp_path_factory.mktemp("server")
    log = home / "up.log"
    hud = shutil.which("hud", path=str(Path(sys.executable).parent))
    assert hud is not None
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("HUD_")
    } | {"HUD_HOME": str(home / "home"), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    environment["STANDIN_API_KEY"] = "standin-secret"
    with log.open("w") as said:
        process = subprocess.Popen(
            [hud, "up", "--port", "0"],
            env=environment,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
    try:
        announced = _said(log, "Ctrl-C", process, seconds=60)
        url = re.search(r"http://[^\s/]+", announced)
        key = re.search(r"hud_[\w-]+", announced)
        assert url is not None, announced
        assert key is not None, announced
        running = Server(url[0], key[0], log)
        # As `hud keys create NAME` makes one: it is no admin's.
        running.key = running.post("/v2/keys", {"name": "client", "scopes": ["train"]})["key"]
        yield running
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(45)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def official_in(server: Server) -> Callable[[Path, Path], Official]:
    """Makes official clients in folders and homes that a test chooses."""
    return partial(Official, server)


@pytest.fixture
def official(server: Server, tmp_path: Path) -> Official:
    """The official client with a folder of its own, an environment in it, and nothing remembered."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "env.py").write_text(WORDS)
    return Official(server, folder, tmp_path / "home")


def _said(log: Path, mark: str, process: subprocess.Popen[bytes], *, seconds: float) -> str:
    """Return what a process wrote once a mark is in it, or it ended, or took too long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None and mark not in log.read_text():
        time.sleep(0.05)
    return log.read_text()
