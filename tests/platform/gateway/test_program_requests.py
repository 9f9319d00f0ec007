"""Agent programs play local models with their defaults: what they send is read, and their tools' calls come back in their form."""

import json

import httpx
import pytest
from tests.platform.gateway.gateway_server import ScriptedEngine
from tests.platform.gateway.program_requests import CLAUDE_CODE, CODEX, PYDANTIC_AI_GEMINI

from hud_platform.gateway.chat_formats import format_of


@pytest.fixture
def chat(app):
    return format_of(app.state.parts.registry.model("tiny").folder).chat


@pytest.fixture
def ask(app, url, chat):
    """Send a request of which the model answers `text`; returns the answer and the prompt."""

    def ask(path, body, text="done"):
        engine = ScriptedEngine(chat.tokenizer, text)
        app.state.parts.__dict__["engine"] = engine
        answer = httpx.post(url + path, json={"model": "tiny", **body}, timeout=30)
        assert answer.status_code == 200, answer.text
        return answer, chat.decode([*engine.asked[-1][2].prompt, 0])

    return ask


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_claude_codes_request_is_answered(ask):
    answer, prompt = ask("/v1/messages?beta=true", CLAUDE_CODE, call("Read", file_path="a.py"))
    assert answer.json()["content"][-1]["input"] == {"file_path": "a.py"}
    assert "The folder is /project." in prompt
    assert "billing" not in prompt  # It differs in every conversation.


@pytest.mark.parametrize(
    "edit",
    [
        {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}},
        {"type": "clear_tool_uses_20250919"},
    ],
)
def test_an_edit_that_changes_the_conversation_is_refused(url, edit):
    body = {**CLAUDE_CODE, "model": "tiny", "context_management": {"edits": [edit]}}
    answer = httpx.post(f"{url}/v1/messages", json=body, timeout=30)
    assert answer.status_code == 400
    assert "context edits" in answer.json()["error"]["message"]


def test_claude_codes_web_search_is_answered_without_one(ask):
    search = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}]
    answer, _ = ask("/v1/messages", {**CLAUDE_CODE, "tools": search})
    assert answer.json()["content"][-1]["text"] == "done"


def test_an_image_in_a_result_is_a_sentence_for_a_model_without_pictures(ask):
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    use = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"file_path": "a.png"}}
    image = {"type": "image", "source": source}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [image]}
    messages = [
        *CLAUDE_CODE["messages"],
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    _, prompt = ask("/v1/messages", {**CLAUDE_CODE, "messages": messages})
    assert "(An image, which this model cannot see.)" in prompt


CALLS = {
    "function": (
        call("exec_command", cmd="ls"),
        {"type": "function_call", "name": "exec_command", "arguments": '{"cmd":"ls"}'},
    ),
    "namespace": (
        call("agents__spawn", task="look"),
        {
            "type": "function_call",
            "name": "spawn",
            "namespace": "agents",
            "arguments": '{"task":"look"}',
        },
    ),
    "custom": (
        call("apply_patch", input="*** Begin\n+a"),
        {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin\n+a"},
    ),
    "local_shell": (
        call("local_shell", command=["ls", "-l"]),
        {
            "type": "local_shell_call",
            "action": {"type": "exec", "command": ["ls", "-l"], "env": {}},
        },
    ),
}


def events_of(answer):
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", CALLS)
def test_calls_of_codexs_tools_come_back_in_their_form(ask, kind, stream):
    text, expected = CALLS[kind]
    answer, prompt = ask("/v1/responses", {**CODEX, "stream": stream}, text)
    assert "web_search" not in prompt
    if stream:
        events = events_of(answer)
        item = events[-1]["response"]["output"][-1]
        done = [event for event in events if event["type"] == "response.output_item.done"]
        assert done[-1]["item"] == item
        if kind == "custom":
            inputs = [event for event in events if "custom_tool_call_input" in event["type"]]
            assert inputs[0]["delta"] == inputs[1]["input"] == "*** Begin\n+a"
    else:
        item = answer.json()["output"][-1]
    shown = (
        {**item, "arguments": item["arguments"].replace(" ", "")} if "arguments" in item else item
    )
    assert expected.items() <= shown.items()
    # The way back: the call is in the next prompt as the model wrote it.
    output = {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "result."}
    body = {**CODEX, "input": [*CODEX["input"], item, output]}
    _, later = ask("/v1/responses", body)
    assert "result." in later
    assert (
        json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))["name"] in later
    )


def test_every_message_of_codex_is_in_the_prompt(ask):
    _, prompt = ask("/v1/responses", CODEX)
    for text in ("You are a coding agent.", "The sandbox is off.", "/project", "Mend the test."):
        assert text in prompt


def test_pydantic_ais_default_mode_of_gemini_is_read(ask):
    answer, _ = ask("/v1beta/models/tiny:generateContent", PYDANTIC_AI_GEMINI)
    assert answer.json()["candidates"][0]["content"]["parts"] == [{"text": "done"}]
