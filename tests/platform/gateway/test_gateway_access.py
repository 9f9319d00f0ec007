"""Keys at the gateway: who may ask, whose models there are, and how much."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import anthropic
import httpx
import openai
import pytest
from google import genai
from tests.platform.gateway.gateway_server import SIZES, TEXTS, ScriptedEngine, serving

from hud_platform.access.teams import Teams
from hud_platform.application import create_app
from hud_platform.gateway.chat_formats import format_of
from hud_platform.process.config import PlatformConfig

HELLO = [{"role": "user", "content": "hello"}]
GENERATE = "/v1beta/models/tiny:generateContent"


@pytest.fixture
def app(tmp_path):
    app = create_app(PlatformConfig(tmp_path / "home", keys=True))
    yield app
    app.state.parts.close()


@pytest.fixture
def url(app):
    with serving(app) as url:
        yield url


@pytest.fixture
def ours(app):
    """A key of the team that has the model."""
    platform = app.state.parts
    team = Teams(platform.store).default()
    record = platform.registry.of(team.id).create("tiny", TEXTS, sizes=SIZES)
    tokenizer = format_of(record.folder).chat.tokenizer
    platform.__dict__["engine"] = ScriptedEngine(tokenizer, "some words")
    return mint(app, team.id)


@pytest.fixture
def theirs(app):
    return mint(app, Teams(app.state.parts.store).find_or_create("others").id)


def mint(app, team, scopes=("run",), **limits):
    return app.state.parts.keys.mint("k", team, scopes=scopes, **limits)[1]


def bearer(key):
    return {"authorization": f"Bearer {key}"}


def requests(url, key):
    """The same question in every dialect, with the key where its client puts it."""
    chat = {"model": "tiny", "messages": HELLO}
    content = {"contents": [{"parts": [{"text": "hello"}]}]}
    return [
        httpx.post(url + "/chat/completions", json=chat, headers=bearer(key)),
        httpx.post(url + "/responses", json={"model": "tiny", "input": "x"}, headers=bearer(key)),
        httpx.post(
            url + "/completions", json={"model": "tiny", "prompt": "x"}, headers=bearer(key)
        ),
        httpx.post(
            url + "/v1/messages", json={**chat, "max_tokens": 9}, headers={"x-api-key": key}
        ),
        httpx.post(url + "/v1/messages", json={**chat, "max_tokens": 9}, headers=bearer(key)),
        httpx.post(url + GENERATE, json=content, headers={"x-goog-api-key": key}),
        httpx.post(f"{url}{GENERATE}?key={key}", json=content),
        httpx.post(url + "/v1/messages/count_tokens", json=chat, headers=bearer(key)),
        httpx.get(url + "/models/tiny", headers=bearer(key)),
    ]


@pytest.mark.slow
def test_every_dialect_takes_the_key_where_its_client_puts_it(url, ours):
    assert [answer.status_code for answer in requests(url, ours)] == [200] * 9


@pytest.mark.slow
def test_another_teams_model_is_not_there(url, ours, theirs):
    assert [answer.status_code for answer in requests(url, theirs)] == [404] * 9
    assert httpx.get(url + "/models", headers=bearer(theirs)).json()["data"] == []
    assert len(httpx.get(url + "/models", headers=bearer(ours)).json()["data"]) == 1


@pytest.mark.slow
def test_another_teams_response_is_not_there(url, ours, theirs):
    body = {"model": "tiny", "input": "hello"}
    made = httpx.post(url + "/responses", json=body, headers=bearer(ours)).json()["id"]
    place = f"{url}/responses/{made}"
    assert httpx.get(place, headers=bearer(theirs)).status_code == 404
    assert httpx.delete(place, headers=bearer(theirs)).status_code == 404
    assert httpx.get(place, headers=bearer(ours)).status_code == 200


@pytest.mark.slow
def test_a_key_that_may_only_read_asks_no_model(app, url, ours):
    reader = mint(app, Teams(app.state.parts.store).default().id, scopes=("read",))
    answers = requests(url, reader)
    assert [answer.status_code for answer in answers] == [403] * 8 + [200]
    with pytest.raises(anthropic.PermissionDeniedError, match="scope 'run'"):
        anthropic.Anthropic(base_url=url, api_key=reader).messages.create(
            model="tiny", max_tokens=9, messages=HELLO
        )


@pytest.mark.slow
def test_only_an_admin_registers_a_provider(app, url, ours):
    team = Teams(app.state.parts.store).default().id
    body = {"name": "p", "provider": {"url": "http://127.0.0.1:9/v1"}}
    for scope, status in (("run", 403), ("train", 403), ("admin", 200)):
        headers = bearer(mint(app, team, scopes=(scope,)))
        answer = httpx.post(url + "/v2/models/provide", json=body, headers=headers)
        assert answer.status_code == status, answer.text
    # Nor is one smuggled in as the configuration of another kind of model.
    smuggled = {
        "name": "q",
        "texts": TEXTS,
        "sizes": SIZES,
        "config": {"provider": body["provider"]},
    }
    headers = bearer(mint(app, team, scopes=("train",)))
    assert httpx.post(url + "/v2/models/create", json=smuggled, headers=headers).status_code == 400


@pytest.mark.slow
def test_a_wrong_key_is_refused_in_the_clients_dialect(url, ours):
    def refused(path, headers):
        answer = httpx.post(url + path, json={"model": "tiny"}, headers=headers)
        assert answer.status_code == 401
        body = answer.json()
        assert body["detail"] == "This key is unknown, expired or revoked."
        assert body.pop("detail") == body["error"]["message"]
        return body, {name: text for name, text in body["error"].items() if name != "message"}

    for headers in ({"x-api-key": "hud_no"}, bearer("hud_no")):
        for path in ("/v1/messages", "/messages", "/v1/messages/count_tokens"):
            body, error = refused(path, headers)
            assert (body["type"], error) == ("error", {"type": "authentication_error"})
    body, error = refused("/v1/other", {"x-api-key": "hud_no", "anthropic-version": "2023-06-01"})
    assert body["type"] == "error"
    for path in ("/v1/chat/completions", "/v1/responses", "/completions", "/v1/embeddings"):
        _, error = refused(path, bearer("hud_no"))
        assert error["type"] == "authentication_error"
        assert error["code"] == "invalid_api_key"
    _, error = refused("/v1beta/models/tiny:generateContent", {"x-goog-api-key": "hud_no"})
    assert error == {"code": 401, "status": "UNAUTHENTICATED"}


@pytest.mark.slow
def test_official_clients_are_told_of_a_wrong_key(url, ours):
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=url, api_key="hud_no").chat.completions.create(
            model="tiny", messages=HELLO
        )
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=url, api_key="hud_no").messages.create(
            model="tiny", max_tokens=9, messages=HELLO
        )
    gemini = genai.Client(api_key="hud_no", http_options={"base_url": url})
    with pytest.raises(genai.errors.ClientError) as caught:
        gemini.models.generate_content(model="tiny", contents="x")
    assert caught.value.code == 401


def test_tokens_count_against_the_limit_of_the_key(app, url, ours):
    team = Teams(app.state.parts.store).default().id
    limited = mint(app, team, tokens_per_minute=10)
    client = openai.OpenAI(base_url=url, api_key=limited, max_retries=0)
    client.chat.completions.create(model="tiny", messages=HELLO)
    with pytest.raises(openai.RateLimitError, match="tokens a minute") as caught:
        for _ in range(3):
            client.chat.completions.create(model="tiny", messages=HELLO)
    assert int(caught.value.response.headers["retry-after"]) >= 1


def test_requests_at_once_use_no_more_tokens_than_the_limit(app, url, ours):
    limited = mint(app, Teams(app.state.parts.store).default().id, tokens_per_minute=100)
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 60}
    over = threading.Event()
    engine = app.state.parts.__dict__["engine"]
    engine.then = lambda: asyncio.to_thread(over.wait)

    def ask():
        return httpx.post(url + "/chat/completions", json=body, headers=bearer(limited))

    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(ask)
        while not engine.asked:
            time.sleep(0.01)
        second = ask()
        over.set()
        assert (second.status_code, "tokens a minute" in second.text) == (429, True)
        assert first.result().status_code == 200
    assert ask().status_code == 200  # What the first one did not use was given back.


def test_an_answer_without_max_tokens_stays_within_the_limit(app, url, ours):
    limited = mint(app, Teams(app.state.parts.store).default().id, tokens_per_minute=100)
    engine = app.state.parts.__dict__["engine"]
    body = {"model": "tiny", "messages": HELLO}
    for key in (limited, ours):
        assert httpx.post(url + "/chat/completions", json=body, headers=bearer(key)).is_success
    bounded, free = (request for _, _, request in engine.asked)
    assert bounded.params.max_tokens == 100 - len(bounded.prompt)
    assert free.params.max_tokens is None


@pytest.mark.slow
def test_inference_is_described_with_the_rest_of_the_platform(url):
    described = httpx.get(url + "/openapi.json").json()["paths"]
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1beta/models/{call}"):
        assert described[path]["post"]["tags"] == ["inference"]
        assert described[path]["post"]["description"]


def test_a_method_that_a_route_does_not_have_is_refused(url, ours):
    answer = httpx.get(url + "/v1/chat/completions", headers=bearer(ours))
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def test_tokens_are_measured_by_model(url, ours):
    answer = httpx.post(
        url + "/chat/completions", json={"model": "tiny", "messages": HELLO}, headers=bearer(ours)
    ).json()
    httpx.post(
        url + "/chat/completions",
        json={"model": "unknown", "messages": HELLO},
        headers=bearer(ours),
    )
    said = httpx.get(url + "/metrics").text
    used = answer["usage"]["completion_tokens"]
    model = httpx.get(url + "/v2/models/tiny", headers=bearer(ours)).json()["id"].replace("-", "")
    assert f'hud_tokens_total{{kind="completion",model="{model}"}} {used:.1f}' in said
    assert "tiny" not in said
    assert "unknown" not in said
