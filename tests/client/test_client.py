"""Requests to a platform: what is retried, what is raised, and that one process has one platform."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

import hud.client
from hud.client import client as module
from hud.client.client import Client
from hud.errors import ConflictError, NotFoundError, PlatformError, StoreError, UsageError
from hud.processes.backoff import Backoff


@pytest.fixture
def served(monkeypatch):
    """A client of a server that answers from a list, and the requests that it got."""
    waits = []

    async def wait(seconds):
        waits.append(round(seconds))

    monkeypatch.setattr(module.asyncio, "sleep", wait)
    monkeypatch.setattr(module, "PAUSES", Backoff(2.0))

    def serve(*answers):
        requests, left = [], list(answers)

        def answer(request):
            requests.append(request)
            said = left.pop(0)
            if isinstance(said, Exception):
                raise said
            return said

        client = Client(api_url="http://platform", api_key="secret")
        pool = httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://platform")
        monkeypatch.setattr(client, "_pool", lambda: pool)
        return client, requests, waits

    return serve


OK = httpx.Response(200, json={"ok": True})


async def test_faults_on_the_way_are_retried_with_growing_waits(served):
    client, requests, waits = served(
        httpx.Response(503), httpx.ConnectError("refused"), httpx.Response(502), OK
    )
    assert await client.get("/v2/jobs") == {"ok": True}
    assert (len(requests), waits) == (4, [2, 4, 8])


async def test_it_gives_up_after_five(served):
    client, requests, waits = served(*[httpx.Response(504, json={"detail": "busy"})] * 5)
    with pytest.raises(PlatformError, match="busy") as caught:
        await client.get("/v2/jobs")
    assert (caught.value.status, len(requests), waits) == (504, 5, [2, 4, 8, 16])


async def test_a_server_that_says_when_is_heard(served):
    client, _, waits = served(httpx.Response(503, headers={"retry-after": "7"}), OK)
    await client.get("/v2/jobs")
    assert waits == [7]


async def test_a_server_that_says_when_is_come_back_to_for_two_minutes(served, monkeypatch):
    away = httpx.Response(503, headers={"retry-after": "2"}, json={"detail": "starting"})
    client, requests, waits = served(*[away] * 30, OK)
    assert await client.get("/v2/jobs") == {"ok": True}
    assert (len(requests), set(waits)) == (31, {2})
    monkeypatch.setattr(hud.client.client, "PATIENCE_SECONDS", -1.0)
    client, requests, _ = served(away)
    with pytest.raises(PlatformError, match="starting"):
        await client.get("/v2/jobs")
    assert len(requests) == 1


async def test_a_wait_of_more_than_five_seconds_says_for_what(served, caplog):
    away = httpx.Response(503, headers={"retry-after": "2"}, json={"detail": "It is starting."})
    client, _, _ = served(*[away] * 2, OK)
    await client.get("/v2/jobs")
    assert caplog.messages == []
    client, _, _ = served(*[away] * 10, OK)
    await client.get("/v2/jobs")
    said = "http://platform answers 503: It is starting. It is asked again in 2 s."
    assert caplog.messages == [said, said]
    caplog.clear()
    client, _, _ = served(*[httpx.ConnectError("refused")] * 2, OK)
    await client.get("/v2/jobs")
    assert caplog.messages == ["http://platform did not answer: refused. It is asked again in 4 s."]


async def test_posts_are_not_repeated_unless_that_is_harmless(served):
    client, requests, _ = served(httpx.Response(503))
    with pytest.raises(PlatformError):
        await client.post("/v1/models/x/train/optim-step", {})
    assert len(requests) == 1


async def test_a_request_that_took_too_long_is_not_repeated(served):
    client, requests, _ = served(httpx.ReadTimeout("600 s"))
    with pytest.raises(PlatformError, match="http://platform did not answer"):
        await client.get("/v2/jobs")
    assert len(requests) == 1


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, UsageError), (404, NotFoundError), (409, ConflictError), (422, UsageError)],
)
async def test_a_status_is_an_error_of_ours(served, status, kind):
    client, _, _ = served(httpx.Response(status, json={"detail": "No such thing."}))
    with pytest.raises(kind, match=r"^No such thing\.$"):
        await client.get("/v2/jobs")


async def test_an_answer_without_detail_still_says_something(served):
    client, _, _ = served(httpx.Response(500, text="<html>oops</html>"))
    with pytest.raises(PlatformError, match="oops"):
        await client.get("/v2/jobs")


async def test_a_store_that_failed_is_a_store_error_here_too(served):
    headers = {"x-hud-error": "StoreError"}
    client, _, _ = served(httpx.Response(500, json={"detail": "full"}, headers=headers))
    with pytest.raises(StoreError, match="full"):
        await client.get("/v2/jobs")


def test_one_process_opens_one_platform(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    client = hud.client.connect()
    together = threading.Barrier(8)

    def first(_):
        together.wait()
        return client.embedded

    with ThreadPoolExecutor(8) as pool:
        platforms = list(pool.map(first, range(8)))
    assert len(set(map(id, platforms))) == 1
    assert hud.client.connect() is client
    hud.client.disconnect(tmp_path)


def test_it_serves_one_event_loop_after_another(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    for _ in range(2):
        assert asyncio.run(hud.client.connect().get("/v2/jobs"))["total"] == 0
    hud.client.disconnect(tmp_path)


@pytest.mark.sqlite
async def test_a_home_that_cannot_be_used_is_told_in_a_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "file"))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    with pytest.raises(StoreError, match="Set HUD_HOME to"):
        await hud.client.connect().get("/v2/jobs")
    with pytest.raises(StoreError, match="set HUD_HOME to"):
        hud.client.recorder()
