"""Pictures of users and of tool results reach a picture policy in every dialect, as one prompt; a text policy refuses them."""

import json
import shutil

import httpx
import pytest
from tests.engine.picture_folders import data_url, png, write_folder
from tests.platform.gateway.gateway_server import ScriptedEngine, make_platform, serving

from hud.engine.chat.chat_format import ChatFormat
from hud.engine.config import DecoderConfig
from hud.trace import ToolSpec, call_message
from hud.trace.sampled.pictures import same_pictures

PAGE, RESULT = png(1), png(2)
PARAMETERS = {"type": "object", "properties": {"x": {"type": "integer"}}}
TOOL = ToolSpec(name="click", description="Click.", parameters=PARAMETERS)
ARGUMENTS = {"x": 3}
CALL = call_message("call_1", "click", json.dumps(ARGUMENTS))


def parts(text, file):
    """Return a text and a picture as chat completions write them."""
    image = {"type": "image_url", "image_url": {"url": data_url(file)}}
    return [{"type": "text", "text": text}, image]


MESSAGES = [
    {"role": "user", "content": parts("What is it?", PAGE)},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": parts("clicked", RESULT)},
]


def base64_of(file):
    return data_url(file).partition(",")[2]


def chat():
    declared = [{"type": "function", "function": TOOL.function()}]
    return "/v1/chat/completions", {"messages": MESSAGES, "tools": declared}


def responses():
    def content(text, file):
        return [
            {"type": "input_text", "text": text},
            {"type": "input_image", "image_url": data_url(file)},
        ]

    items = [
        {"role": "user", "content": content("What is it?", PAGE)},
        {
            "type": "function_call",
            "call_id": "call_1",
            "name": "click",
            "arguments": json.dumps(ARGUMENTS),
        },
        {
            "type": "function_call_output",
            "call_id": "call_1",
            "output": content("clicked", RESULT),
        },
    ]
    return "/v1/responses", {"input": items, "tools": [{"type": "function", **TOOL.function()}]}


def messages():
    def content(text, file):
        source = {"type": "base64", "media_type": "image/png", "data": base64_of(file)}
        return [{"type": "text", "text": text}, {"type": "image", "source": source}]

    call = {"type": "tool_use", "id": "call_1", "name": "click", "input": ARGUMENTS}
    result = {
        "type": "tool_result",
        "tool_use_id": "call_1",
        "content": content("clicked", RESULT),
    }
    turns = [
        {"role": "user", "content": content("What is it?", PAGE)},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    tool = {"name": "click", "description": "Click.", "input_schema": PARAMETERS}
    return "/v1/messages", {"messages": turns, "tools": [tool], "max_tokens": 8}


def gemini():
    def image(file):
        return {"inlineData": {"mimeType": "image/png", "data": base64_of(file)}}

    response = {
        "name": "click",
        "response": {"output": "clicked"},
        "parts": [image(RESULT)],
    }
    contents = [
        {"role": "user", "parts": [{"text": "What is it?"}, image(PAGE)]},
        {"role": "model", "parts": [{"functionCall": {"name": "click", "args": ARGUMENTS}}]},
        {"role": "user", "parts": [{"functionResponse": response}]},
    ]
    declared = {"name": "click", "description": "Click.", "parametersJsonSchema": PARAMETERS}
    body = {"contents": contents, "tools": [{"functionDeclarations": [declared]}]}
    return "/v1beta/models/tiny:generateContent", body


DIALECTS = (chat, responses, messages, gemini)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("qwen3_5")
    write_folder(place, "qwen3_5")
    return place


@pytest.fixture(scope="module")
def text_policy(tmp_path_factory):
    """A server whose model reads text alone, and its engine."""
    yield from server(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def picture_policy(tmp_path_factory, folder):
    """A server whose model has a vision tower, and its engine."""
    yield from server(tmp_path_factory.mktemp("pictures"), folder)


def server(home, folder=None):
    app = make_platform(home)
    platform = app.state.parts
    place = platform.registry.model("tiny").folder
    for path in folder.iterdir() if folder is not None else ():
        shutil.copyfile(path, place / path.name)
    chat = ChatFormat(place, DecoderConfig.from_folder(place))
    engine = platform.__dict__["engine"] = ScriptedEngine(
        chat.tokenizer, "done", end="" if folder is None else "<|im_end|>"
    )
    with serving(app) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client, engine
    platform.__dict__.pop("engine")
    platform.close()


def asked(client, dialect):
    route, body = dialect()
    return client.post(route, json={"model": "tiny", **body})


@pytest.mark.parametrize("dialect", DIALECTS)
def test_pictures_of_users_and_results_are_one_prompt_in_every_dialect(
    picture_policy, folder, dialect
):
    client, engine = picture_policy
    answer = asked(client, dialect)
    assert answer.status_code == 200, answer.text
    request = engine.asked[-1][2]
    expected = ChatFormat(folder, DecoderConfig.from_folder(folder)).render(MESSAGES, [TOOL])
    assert len(expected.pictures) == 2
    assert request.prompt == expected
    assert same_pictures(request.pictures, expected.pictures)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_policy_of_text_refuses_pictures_in_one_sentence(text_policy, dialect):
    client, engine = text_policy
    answer = asked(client, dialect)
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert "text" in message
    assert message.count(". ") == 0
    assert not engine.asked
