"""Tools offered to a model whose chat template shows none are refused in every dialect, and in no turn without tools."""

import httpx
import pytest
from tests.engine.test_chat_templates import PLAIN, folder_of
from tests.platform.gateway.gateway_server import ScriptedEngine, make_platform, serving

from hud.platform.gateway.chat_formats import format_of
from hud.platform.store.tables import LOCAL_TEAM

HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {}}
REQUESTS = {
    "/v1/chat/completions": (
        {"messages": HELLO},
        [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}],
    ),
    "/v1/responses": (
        {"input": "hello"},
        [{"type": "function", "name": "look", "parameters": SCHEMA}],
    ),
    "/v1/messages": (
        {"messages": HELLO, "max_tokens": 8},
        [{"name": "look", "input_schema": SCHEMA}],
    ),
}


@pytest.fixture
def url(tmp_path):
    app = make_platform(tmp_path / "home")
    folder = folder_of(tmp_path / "plain", {}, {"chat_template.jinja": PLAIN})
    parts = app.state.parts
    parts.registry.of(LOCAL_TEAM).add(str(folder), "plain")
    parts.engine = ScriptedEngine(format_of(folder).chat.tokenizer, "hi")
    with serving(app) as url:
        yield url
    parts.close()


@pytest.mark.parametrize("path", REQUESTS)
def test_tools_that_the_model_would_never_see_are_refused(url, path):
    body, tools = REQUESTS[path]
    body = {"model": "plain", **body}
    assert httpx.post(url + path, json=body).status_code == 200
    refused = httpx.post(url + path, json={**body, "tools": tools})
    assert refused.status_code == 400
    assert "shows no tools, so the model would never see" in refused.text
