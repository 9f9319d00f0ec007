"""`hud up` as a process: what it says, what it answers without a key, how it stops, and why it does not start."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading

import httpx
import pytest
from tests.fleet.live_server import LiveServer
from tests.platform.store.test_telemetry import agent_step, span

from hud.trace import new_id

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = LiveServer(tmp_path_factory.mktemp("up") / "home", "--workers", "0")
    made.start()
    yield made
    assert made.stop() == 0


def up(home, *arguments, port=0):
    """Run a `hud up` that does not come to be."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HUD_")}
    return subprocess.run(
        [sys.executable, "-m", "hud.cli.main", "up", "--port", str(port), *arguments],
        env={**kept, "HUD_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.slow
def test_it_says_what_a_client_needs_and_shows_the_key_once(server):
    said = server.log.read_text()
    exports = "\n".join(line for line in said.splitlines() if line.startswith("  export "))
    shell = subprocess.run(
        ["bash", "-c", f"{exports}\nenv -0"], capture_output=True, text=True, check=True
    )
    variables = dict(pair.split("=", 1) for pair in shell.stdout.split("\0") if pair)
    for name, value in {
        "HUD_API_URL": server.url,
        "HUD_GATEWAY_URL": server.url,
        "HUD_RL_URL": server.url,
        "HUD_RUNTIME_URL": server.url,
        "HUD_TELEMETRY_URL": f"{server.url}/v3/api",
        "HUD_WEB_URL": server.url,
        "HUD_API_KEY": server.key,
    }.items():
        assert variables[name] == value
    assert server.stop() == 0
    assert server.log.read_text().endswith("Stopped.\n")
    key = server.key
    server.start()
    assert server.log.read_text().count(f"  {key}\n") == 1
    assert "a new key:  hud keys create NAME" in server.log.read_text()
    with server.client(key) as api:
        assert api.get("/v2/jobs").status_code == 200


@pytest.mark.slow
def test_who_watches_over_it_needs_no_key(server):
    ask = httpx.Client(base_url=server.url)
    assert ask.get("/healthz").json() == {"status": "ok"}
    ready = {"status": "ok", "store": "ok", "engine": "ok", "stopping": False}
    assert ask.get("/readyz").json() == ready
    assert ask.get("/docs", follow_redirects=True).status_code == 200
    document = ask.get("/openapi.json").json()
    assert document["info"]["title"] == "OpenHUD"
    untagged = [
        path
        for path, calls in document["paths"].items()
        for call in calls.values()
        if not call.get("tags")
    ]
    assert untagged == []
    assert ask.get("/v2/jobs").status_code == 401


def test_metrics_count_routes_refusals_spans_and_queues(server):
    with server.client() as api:
        traces = [new_id() for _ in range(3)]
        for trace in traces:
            body = {"telemetry": [span(agent_step(1)), span(agent_step(2))]}
            assert api.post(f"/v3/api/trace/{trace}/telemetry-upload", json=body).is_success
            assert api.get(f"/v2/trace/{trace}").is_success
        assert api.get("/v2/jobs", headers={"authorization": "Bearer wrong"}).status_code == 401
        told = api.get("/metrics").text
    measured = dict(line.rsplit(" ", 1) for line in told.splitlines() if not line.startswith("#"))
    read = 'method="GET",route="/v2/trace/{trace_id}"'
    assert float(measured[f'hud_requests_total{{{read},status="200"}}']) >= 3
    assert float(measured[f"hud_request_seconds_count{{{read}}}"]) >= 3
    assert float(measured["hud_telemetry_spans_total"]) >= 6
    refused = [name for name in measured if name.startswith("hud_requests_total") and "401" in name]
    assert sum(float(measured[name]) for name in refused) >= 1
    assert not any(trace in told for trace in traces)
    for queue in ("streams", "telemetry", "rollouts", "builds"):
        assert float(measured[f'hud_queue{{queue="{queue}"}}']) == 0


@pytest.fixture
def own_server(tmp_path):
    made = LiveServer(tmp_path / "home", "--workers", "0")
    made.start()
    yield made
    if made.process.poll() is None:
        made.kill()


@pytest.fixture
def slow_upload(own_server):
    """An upload whose last byte waits for `finish()`; its answer comes from there."""
    began, go_on = threading.Event(), threading.Event()
    answers = []

    def body():
        yield b'{"telemetry": ['
        began.set()
        assert go_on.wait(60)
        yield b"]}"

    def send():
        with own_server.client() as api:
            try:
                path = f"/v3/api/trace/{new_id()}/telemetry-upload"
                answers.append(api.post(path, content=body()).status_code)
            except httpx.TransportError as error:
                answers.append(type(error))

    sender = threading.Thread(target=send)
    sender.start()
    assert began.wait(30)
    _until_taken(own_server)

    def finish():
        go_on.set()
        sender.join(60)
        return answers

    yield finish
    finish()


def _until_taken(server):
    with server.client() as api:
        for _ in range(200):
            if 'hud_queue{queue="telemetry"} 1.0' in api.get("/metrics").text:
                return
    raise AssertionError("the upload never began")


def test_a_request_that_is_being_answered_is_answered_before_it_stops(own_server, slow_upload):
    own_server.process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        own_server.process.wait(1.0)
    assert slow_upload() == [200]
    assert own_server.process.wait(60) == 0


@pytest.mark.slow
def test_a_second_interruption_waits_for_nobody(own_server, slow_upload):
    own_server.process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        own_server.process.wait(1.0)
    own_server.process.send_signal(signal.SIGINT)
    assert own_server.process.wait(10) == 128 + signal.SIGINT
    assert slow_upload() != [200]


@pytest.mark.slow
def test_a_port_that_is_taken_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = up(tmp_path, port=port)
    _refused(ended, rf"127\.0\.0\.1:{port} .*--port")


@pytest.mark.slow
def test_a_database_that_does_not_answer_is_named(tmp_path):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        ended = up(tmp_path, "--database", f"postgresql://hud:secret@{where}/hud")
    _refused(ended, re.escape(where))
    assert "secret" not in ended.stderr


@pytest.mark.slow
def test_storage_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    _refused(up(tmp_path / "home", "--storage", f"{tmp_path}/file/blobs"), "file is no folder")
    _refused(up(tmp_path / "home", "--storage", "nothing://there"), "nothing://there")


def _refused(ended, said):
    assert ended.returncode == 2, ended.stderr
    assert re.search(said, ended.stderr)
    assert ended.stderr.startswith("Error: ")
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert ended.stdout == ""
