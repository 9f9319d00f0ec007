"""Tools offered to a model whose chat template shows none are written into its prompt in every dialect, and its call is read."""

import httpx
import pytest
from tests.engine.test_chat_templates import PLAIN, folder_of
from tests.platform.gateway.gateway_server import ScriptedEngine, make_platform, serving

from hud_platform.gateway.chat_formats import format_of
from hud_platform.store.tables import LOCAL_TEAM

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
        {"messages": HELLO, "max_tokens": 64},
        [{"name": "look", "input_schema": SCHEMA}],
    ),
}


CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'


@pytest.fixture
def engine(tmp_path):
    """A platform's engine that answers with a call; `url` is the platform's."""
    app = make_platform(tmp_path / "home")
    folder = folder_of(tmp_path / "plain", {}, {"chat_template.jinja": PLAIN})
    parts = app.state.parts
    parts.registry.of(LOCAL_TEAM).add(str(folder), "plain")
    parts.engine = ScriptedEngine(format_of(folder).chat.tokenizer, CALL)
    with serving(app) as url:
        parts.engine.url = url
        yield parts.engine
    parts.close()


@pytest.mark.parametrize("path", REQUESTS)
def test_the_model_sees_the_tools_and_its_call_is_a_call(engine, path):
    body, tools = REQUESTS[path]
    body = {"model": "plain", **body}
    shown = []
    for offered in ({}, {"tools": tools}):
        answer = httpx.post(engine.url + path, json={**body, **offered})
        assert answer.status_code == 200
        shown.append(engine.tokenizer.decode(engine.asked[-1][2].prompt))
    assert "look" not in shown[0]
    assert '"name": "look"' in shown[1]
    assert call_name(path, answer.json()) == "look"


def call_name(path, answer):
    """Return the name of the only call of an answer."""
    if path == "/v1/chat/completions":
        [call] = answer["choices"][0]["message"]["tool_calls"]
        return call["function"]["name"]
    blocks = answer["output"] if path == "/v1/responses" else answer["content"]
    [call] = [block for block in blocks if block["type"] in ("function_call", "tool_use")]
    return call["name"]
