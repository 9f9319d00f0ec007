"""`hud view` as a process: what it prints, whom it serves, how it ends."""

import os
import re
import select
import signal
import socket
import subprocess
import sys

import httpx
import pytest


def view(home, *arguments, **variables):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HUD_")}
    return subprocess.Popen(
        [sys.executable, "-m", "hud.cli.main", "view", "--no-browser", *arguments],
        env={**kept, "HUD_HOME": str(home), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def address(tmp_path):
    process = view(tmp_path / "home")
    assert select.select([process.stdout], [], [], 60)[0]
    yield re.search(r"http\S+", process.stdout.readline())[0], process
    process.kill()
    process.wait()
    process.stdout.close()
    process.stderr.close()


@pytest.mark.slow
def test_it_prints_an_address_that_opens_the_pages_once(address):
    url, process = address
    port = int(re.search(r":(\d+)/\?token=", url)[1])
    with httpx.Client(follow_redirects=True, headers={"accept": "text/html"}) as browser:
        assert "No job is recorded yet." in browser.get(url).text
        assert browser.get(f"http://127.0.0.1:{port}/jobs").status_code == 200
        for path in ("v2/jobs", "docs/"):
            refusal = browser.get(f"http://127.0.0.1:{port}/{path}")
            assert refusal.status_code == 404
            assert "hud up serves the API and the documentation" in refusal.text
            assert "start it again" not in refusal.text
    assert httpx.get(url).status_code == 403
    with socket.socket() as elsewhere, pytest.raises(OSError, match="refused"):
        elsewhere.connect(("127.0.0.2", port))
    process.send_signal(signal.SIGINT)
    said, wrong = process.communicate(timeout=60)
    assert (process.returncode, wrong) == (0, "")
    assert said.endswith("Stopped.\n")


def test_an_address_without_its_token_is_a_page_for_browsers_and_json_for_programs(address):
    url, _ = address
    place = url.partition("?")[0]
    shown = httpx.get(place, headers={"accept": "text/html"})
    assert shown.status_code == 403
    assert shown.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in shown.headers["content-security-policy"]
    assert "Open the address that hud view printed" in shown.text
    assert "start it again" in shown.text
    style = re.search(r'href="(/static/[^"]+\.css[^"]*)"', shown.text)[1]
    assert httpx.get(place.rstrip("/") + style).status_code == 200
    told = httpx.get(place + "jobs.json")
    assert told.status_code == 403
    assert "Open the address that hud view printed" in told.json()["detail"]


@pytest.mark.slow
def test_it_ends_although_a_page_is_being_followed(address):
    url, process = address
    with httpx.Client(headers={"accept": "text/html"}) as browser:
        jobs = url.partition("?")[0] + "events/jobs"
        browser.get(url)
        with browser.stream("GET", jobs, params={"ids": "0" * 32}) as events:
            assert next(events.iter_lines()) == "event: changed"
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


@pytest.mark.slow
def test_a_port_that_is_taken_is_an_error_in_a_sentence(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = view(tmp_path, "--port", str(taken.getsockname()[1]))
        _, wrong = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "cannot be listened on" in wrong
    assert "Traceback" not in wrong


@pytest.mark.slow
def test_with_a_server_set_it_says_where_its_dashboard_is(tmp_path):
    process = view(tmp_path, HUD_API_URL="http://platform.example")
    _, wrong = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "http://platform.example" in wrong
