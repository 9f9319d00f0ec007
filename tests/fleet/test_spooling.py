"""What was recorded while the server could not be reached arrives when it can be."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fleet.live_server import LiveServer

EXAMPLES = Path(__file__).parents[2] / "examples"


def hud(server, home, *arguments):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HUD_")}
    variables = {"HUD_HOME": str(home), "HUD_API_URL": server.url, "HUD_API_KEY": server.key}
    return subprocess.run(
        [sys.executable, "-m", "hud.cli.main", *arguments],
        env={**kept, **variables},
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.slow
def test_runs_recorded_while_the_server_is_down_arrive_later(tmp_path):
    server = LiveServer(tmp_path / "server", "--workers", "0")
    server.start()
    server.stop()
    with socket.socket() as unused:  # The port stays closed: nobody else takes it meanwhile.
        assert unused.connect_ex(("127.0.0.1", server.port)) != 0
    home = tmp_path / "client"
    source = [str(EXAMPLES / "arithmetic.py"), str(EXAMPLES / "arithmetic_agent.py")]
    offline = hud(server, home, "eval", *source, "--all")
    assert "did not answer" in offline.stderr
    kept = [path for path in (home / "journal").rglob("*.journal") if path.stat().st_size]
    assert kept, "what was recorded is on this disk"
    server.start()
    try:
        online = hud(server, home, "eval", *source)
        assert online.returncode == 0, online.stderr
        with server.client() as api:
            jobs = api.get("/v2/jobs").json()["items"]
        assert sorted(job["runs"] for job in jobs) == [1, 10]
        assert [job["reward"] for job in jobs] == [1.0, 1.0]
    finally:
        server.stop()
