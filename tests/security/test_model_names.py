"""Names of models that a client makes up lead to no other path, method or request at a provider."""

import httpx
import pytest
from tests.platform.gateway.gateway_server import serving
from tests.platform.gateway.test_gateway_providers import StandIn

from hud_platform.application import create_app
from hud_platform.process.config import PlatformConfig

ANSWER = b'{"candidates": [{"content": {"parts": [{"text": "hi"}], "role": "model"}, "finishReason": "STOP"}]}'
NAMES = [
    "gemini-x/../../files",
    "gemini-x/../../../upload/v1beta/files",
    "gemini-x:batchGenerateContent?",
    "gemini-x:batchGenerateContent#",
    "gemini-x%2f..%2f..%2ffiles",
    "gemini-x?key=another&",
    "gemini-x HTTP/1.1\r\nhost: evil.example\r\nx-evil: 1\r\n\r\nPOST /second",
    "gemini-x\r\nx-evil: 1",
    "gemini-x\n",
    "gemini-x\x00",
    "gemini-x\u202e",
    "gemini-x\\..\\files",
    "gemini-" + "x" * 5000,
]


@pytest.fixture
def provider(monkeypatch):
    standin = StandIn()
    standin.pieces = [ANSWER]
    with serving(standin) as url:
        standin.url = url
        monkeypatch.setenv("GEMINI_BASE_URL", url)
        monkeypatch.setenv("GEMINI_API_KEY", "AIza-the-key-of-this-server")
        yield standin


@pytest.fixture
def url(tmp_path, provider):
    app = create_app(PlatformConfig(tmp_path / "home"))
    with serving(app) as url:
        yield url
    app.state.parts.close()


def asked(url, name):
    """Send a request in each of two dialects; returns the statuses."""
    message = {"role": "user", "content": "hello"}
    body = {"model": name, "messages": [message], "max_tokens": 5}
    return [
        httpx.post(f"{url}/{path}", json=body).status_code
        for path in ("v1/chat/completions", "v1/messages")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_name_that_is_none_is_sent_nowhere(url, provider, name):
    assert asked(url, name) == [404, 404]
    path = f"{url}/v1beta/models/{httpx.URL('http://x', params={'q': name}).query[2:].decode()}"
    answer = httpx.post(f"{path}:generateContent", json={"contents": []})
    assert 400 <= answer.status_code < 500
    assert provider.requests == []


def test_a_registered_name_stays_a_part_of_the_path(url, provider):
    config = {
        "url": provider.url,
        "dialect": "gemini",
        "upstream_model": "x:batch?y#z\r\nx-evil: 1",
    }
    made = httpx.post(f"{url}/v2/models/provide", json={"name": "mine", "provider": config})
    assert made.status_code == 200, made.text
    assert asked(url, "mine") == [200, 200]
    for scope, headers, _ in provider.requests:
        assert scope["raw_path"].startswith(b"/v1beta/models/x")
        assert b"batch%3Fy%23z%0D%0Ax-evil" in scope["raw_path"]
        assert b"x-evil" not in headers


def test_a_name_of_the_provider_s_is_sent(url, provider):
    assert asked(url, "gemini-2.5-flash-preview_09-2025") == [200, 200]
    for scope, _, _ in provider.requests:
        assert scope["path"].startswith("/v1beta/models/gemini-2.5-flash-preview_09-2025:")
