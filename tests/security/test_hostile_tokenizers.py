"""A stranger's tokenizer stops no server: it is refused, other requests go on, and SIGTERM ends the process."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from tests.engine.test_tokenizer_file import folder_with, split_by
from tests.engine.tiny_policy import tiny_folder
from tests.fleet.live_server import LiveServer

pytestmark = pytest.mark.timeout(300)

GATED = "(?=a{1,2000}q7w)(?:a*a*)(?<!a)|[^\\n]"
"""Passes the trial: only before its word, on a line that it does not name, each position costs millions of steps."""
HOURS = ("a" * 2000 + "q7w") * 500


@pytest.fixture
def server(tmp_path):
    server = LiveServer(tmp_path / "home", "--workers", "0")
    server.start()
    yield server
    if server.process.poll() is None:
        server.kill()


@pytest.mark.slow
def test_a_pattern_that_backtracks_is_refused_by_a_server(server, tmp_path):
    folder = folder_with(tmp_path / "nested", **split_by("(a+)+$"))
    with server.client() as client:
        refused = client.post("/v2/models/add", json={"source": str(folder), "name": "nested"})
        assert refused.status_code == 400
        assert "its own patterns" in refused.text
        assert client.get("/v2/models").json()["items"] == []
    assert server.stop() == 0


@pytest.mark.slow
def test_a_text_that_takes_hours_stops_neither_other_requests_nor_the_end(server, tmp_path):
    folder = folder_with(tmp_path / "gated", **split_by(GATED))
    with server.client() as client:
        client.timeout = 120
        for name, source in (("gated", folder), ("usual", tiny_folder())):
            added = client.post("/v2/models/add", json={"source": str(source), "name": name})
            assert added.status_code == 200, added.text
        slow = threading.Thread(target=ask, args=(server, "gated", HOURS), daemon=True)
        slow.start()
        time.sleep(3)
        assert client.get("/v2/models").status_code == 200
        assert ask(server, "usual", "hi").status_code == 200
        assert slow.is_alive()
    assert server.stop() == 0


@pytest.mark.slow
def test_slow_texts_are_refused_and_take_no_thread_of_other_models(server, tmp_path):
    folder = folder_with(tmp_path / "gated", **split_by(GATED))
    with server.client() as client:
        client.timeout = 120
        for name, source in (("gated", folder), ("usual", tiny_folder())):
            client.post("/v2/models/add", json={"source": str(source), "name": name})
        # A model's first answer loads it, which may take as long as a slow text is allowed.
        assert ask(server, "usual", "x" * 30_000) is not None
        with ThreadPoolExecutor(20) as pool:
            # The longer a text, the longer it is allowed to take.
            slow = [pool.submit(ask, server, "gated", 5 * HOURS) for _ in range(20)]
            time.sleep(1)
            # Rendered in a thread that all models share.
            assert ask(server, "usual", "x" * 30_000) is not None
            assert not any(request.done() for request in slow)
        for request in slow:
            assert request.result().status_code == 400
            assert "not used again" in request.result().text
    assert server.stop() == 0


def ask(server, model, text):
    body = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": text}]}
    with server.client() as client:
        try:
            return client.post("/v1/chat/completions", json=body, timeout=200)
        except httpx.TransportError:
            return None
