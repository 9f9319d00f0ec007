"""What the gateway does not have, it says in a sentence that each official client reads; models answer to every name."""

import anthropic
import openai
import pytest
from google import genai
from google.genai import errors
from tests.platform.gateway.gateway_server import ScriptedEngine, make_platform

from hud_platform.store.tables import LOCAL_TEAM


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    app = make_platform(tmp_path_factory.mktemp("home"))
    platform = app.state.parts
    from hud_platform.gateway.chat_formats import format_of

    record = platform.registry.model("tiny")
    platform.__dict__["engine"] = ScriptedEngine(
        format_of(record.folder).chat.tokenizer, "Seven apples."
    )
    yield app
    platform.close()


@pytest.fixture(params=["", "/v1"])
def openai_client(url, request):
    return openai.OpenAI(base_url=url + request.param, api_key="k", max_retries=0)


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda client: client.embeddings.create(model="tiny", input="hello"), "no embeddings"),
        (
            lambda client: client.fine_tuning.jobs.create(model="tiny", training_file="f"),
            "hud train",
        ),
        (lambda client: client.fine_tuning.jobs.list(), "hud train"),
        (lambda client: client.images.generate(prompt="a cat"), "no images"),
        (lambda client: client.files.list(), "no files"),
        (lambda client: client.batches.list(), "no batches"),
        (lambda client: client.moderations.create(input="hello"), "no moderation"),
        (lambda client: client.get("/surprises", cast_to=object), "There is no GET"),
        (lambda client: client.models.retrieve("nobody"), "no model 'nobody'"),
    ],
)
def test_openais_client_reads_what_is_absent(openai_client, ask, told):
    with pytest.raises(openai.NotFoundError) as refused:
        ask(openai_client)
    assert told in refused.value.body["message"]
    assert refused.value.body["type"]


def test_anthropics_client_reads_what_is_absent(url):
    client = anthropic.Anthropic(base_url=url, api_key="k", max_retries=0)
    for ask, told in [
        (lambda: client.messages.batches.list(), "no batches"),
        (lambda: client.beta.files.list(), "no files"),
        (lambda: client.get("/v1/surprises", cast_to=object), "There is no GET /v1/surprises"),
        (lambda: client.models.retrieve("nobody"), "no model 'nobody'"),
    ]:
        with pytest.raises(anthropic.NotFoundError) as refused:
            ask()
        assert refused.value.body["type"] == "error"
        assert refused.value.body["error"]["type"] == "not_found_error"
        assert told in refused.value.body["error"]["message"]


VERSIONS = ["v1beta", "v1alpha", "v1", ""]


def gemini(url, version):
    return genai.Client(api_key="k", http_options={"base_url": url, "api_version": version})


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_googles_client_reads_what_is_absent(url, version):
    client = gemini(url, version)
    for ask, told in [
        (lambda: client.models.embed_content(model="tiny", contents="hello"), "mbedContent"),
        (lambda: client.caches.list(), "no caches"),
        (lambda: client.files.list(), "no files"),
        (lambda: client.models.get(model="nobody"), "no model 'nobody'"),
    ]:
        with pytest.raises(errors.ClientError) as refused:
            list(ask() or ())
        assert refused.value.code == 404
        assert refused.value.status == "NOT_FOUND"
        assert told in refused.value.message


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_googles_client_works_with_every_version_and_with_none(url, version):
    client = gemini(url, version)
    assert client.models.generate_content(model="tiny", contents="What?").text == "Seven apples."
    parts = client.models.generate_content_stream(model="tiny", contents="What?")
    assert "".join(part.text or "" for part in parts) == "Seven apples."
    assert client.models.count_tokens(model="tiny", contents="What?").total_tokens > 1
    assert next(model.name for model in client.models.list()) == "models/tiny"
    assert client.models.get(model="tiny").name == "models/tiny"


@pytest.mark.slow
def test_a_model_is_found_by_every_name_under_which_it_answers(app, url, openai_client):
    registry = app.state.parts.registry
    record = registry.model("tiny")
    named = make_named(app)
    for name, told in [
        ("tiny", "tiny"),
        ("TINY", "tiny"),
        (record.id, "tiny"),
        (record.id[:12], "tiny"),
        ("tiny@base", "tiny@base"),
        ("tiny@head", "tiny@head"),
        (named.name, named.slug),
    ]:
        found = openai_client.models.retrieve(name)
        assert (found.id, found.owned_by) == (told, "openhud"), name
        answer = openai_client.chat.completions.create(
            model=found.id, messages=[{"role": "user", "content": "What?"}]
        )
        assert answer.model
    assert anthropic.Anthropic(base_url=url, api_key="k").models.retrieve(record.id).id == "tiny"
    assert gemini(url, "v1beta").models.get(model="tiny@base").name == "models/tiny@base"


def make_named(app):
    """A model whose display name has a slash and a space."""
    registry = app.state.parts.registry.of(LOCAL_TEAM)
    for model in registry.models():
        if model.name == "Some Org/Some Model":
            return model
    return registry.fork("tiny", "Some Org/Some Model")


def test_a_providers_model_is_found_where_the_server_has_its_key(openai_client, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    assert openai_client.models.retrieve("gpt-9-preview").id == "gpt-9-preview"
    monkeypatch.delenv("OPENAI_API_KEY")


def test_a_wrong_method_names_the_right_one(openai_client):
    with pytest.raises(openai.APIStatusError) as refused:
        openai_client.get("/chat/completions", cast_to=object)
    assert refused.value.status_code == 405
    assert "takes POST, not GET" in refused.value.body["message"]
    assert refused.value.response.headers["allow"] == "POST"
