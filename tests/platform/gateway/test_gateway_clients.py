"""The official clients hold a conversation with a tool, streamed and not, each in its own dialect."""

import json

import anthropic
import openai
import pytest
from google import genai
from google.genai import types
from tests.platform.gateway.gateway_server import ScriptedEngine

CALL = '<tool_call>{"name": "look", "arguments": {"at": 7}}</tool_call>'
FIRST = "<think>I have to look.</think>Looking. 🍎" + CALL
SECOND = "There are 7 apples."
QUESTION = "What is at 7?"
SCHEMA = {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]}


@pytest.fixture
def engine(app):
    from hud_platform.gateway.chat_formats import format_of

    record = app.state.parts.registry.model("tiny")
    engine = ScriptedEngine(format_of(record.folder).chat.tokenizer, FIRST, SECOND, pieces=3)
    app.state.parts.__dict__["engine"] = engine
    return engine


def prompts(engine):
    return [engine.tokenizer.decode(asked[2].prompt, False) for asked in engine.asked]


def check_prompts(engine):
    """The second prompt repeats the call and tells its result."""
    first, second = prompts(engine)
    assert first.startswith("<|system|>Be brief.")
    assert "look(at)" in first
    assert first.endswith(f"<|user|>{QUESTION}<|end|><|assistant|>")
    assert second.endswith(
        f"<|assistant|>Looking. 🍎{CALL}<|end|><|tool|>seven apples<|end|><|assistant|>"
    )


# -- OpenAI -------------------------------------------------------------------------------------------


def chat_stream(client, **request):
    """Put a streamed answer together as its reader would."""
    text, reasoning, calls, reason, usage = "", "", {}, None, None
    chunks = client.chat.completions.create(
        **request, stream=True, stream_options={"include_usage": True}
    )
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            for call in choice.delta.tool_calls or []:
                kept = calls.setdefault(call.index, {"id": call.id, "name": "", "arguments": ""})
                kept["name"] += call.function.name or ""
                kept["arguments"] += call.function.arguments or ""
            reason = choice.finish_reason or reason
    return text, reasoning, list(calls.values()), reason, usage


def chat_whole(client, **request):
    answer = client.chat.completions.create(**request)
    choice = answer.choices[0]
    calls = [
        {"id": call.id, "name": call.function.name, "arguments": call.function.arguments}
        for call in choice.message.tool_calls or []
    ]
    reasoning = getattr(choice.message, "reasoning_content", "")
    return choice.message.content or "", reasoning, calls, choice.finish_reason, answer.usage


@pytest.mark.parametrize("prefix", ["", "/v1"])
@pytest.mark.parametrize("ask", [chat_whole, chat_stream])
def test_openai_chat_completions(url, engine, ask, prefix):
    client = openai.OpenAI(base_url=url + prefix, api_key="k", max_retries=0)
    tools = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": QUESTION}]},
    ]
    asked = {"model": "tiny", "tools": tools}
    text, reasoning, calls, reason, usage = ask(client, messages=messages, **asked)
    assert (text, reasoning, reason) == ("Looking. 🍎", "I have to look.", "tool_calls")
    (call,) = calls
    assert (call["name"], json.loads(call["arguments"])) == ("look", {"at": 7})
    assert usage.completion_tokens == len(engine.turns[0])
    assert usage.prompt_tokens == len(engine.asked[0][2].prompt)
    assert usage.prompt_tokens_details.cached_tokens == 1
    function = {"name": call["name"], "arguments": call["arguments"]}
    messages += [
        {
            "role": "assistant",
            "content": text,
            "tool_calls": [{"id": call["id"], "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call["id"], "content": "seven apples"},
    ]
    text, _, calls, reason, _ = ask(client, messages=messages, **asked)
    assert (text, calls, reason) == (SECOND, [], "stop")
    check_prompts(engine)


def response_stream(client, **request):
    """Return the last event's response, after checking that the events tell the same."""
    seen, texts, arguments = [], "", ""
    for event in client.responses.create(**request, stream=True):
        seen.append(event.type)
        assert event.sequence_number == len(seen) - 1
        if event.type == "response.output_text.delta":
            texts += event.delta
        if event.type == "response.function_call_arguments.delta":
            arguments += event.delta
    final = event.response
    told = [item.type for item in final.output]
    assert [kind for kind in seen if "delta" not in kind] == expected_events(told)
    assert texts == final.output_text
    assert arguments == "".join(i.arguments for i in final.output if i.type == "function_call")
    return final


def expected_events(items):
    events = ["response.created", "response.in_progress"]
    inner = {
        "message": ["content_part.added", "output_text.done", "content_part.done"],
        "reasoning": ["content_part.added", "reasoning_text.done", "content_part.done"],
        "function_call": ["function_call_arguments.done"],
    }
    for item in items:
        names = ["output_item.added", *inner[item], "output_item.done"]
        events += [f"response.{name}" for name in names]
    return [*events, "response.completed"]


def response_whole(client, **request):
    return client.responses.create(**request)


@pytest.mark.slow
@pytest.mark.parametrize("ask", [response_whole, response_stream])
def test_openai_responses_go_on_from_one_another(url, engine, ask):
    client = openai.OpenAI(base_url=url, api_key="k", max_retries=0)
    tools = [{"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}]
    asked = {"model": "tiny", "tools": tools, "instructions": "Be brief."}
    first = ask(client, input=QUESTION, **asked)
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
    assert first.output[0].content[0].text == "I have to look."
    assert (first.output_text, first.status) == ("Looking. 🍎", "completed")
    call = first.output[2]
    assert (call.name, json.loads(call.arguments)) == ("look", {"at": 7})
    result = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": "seven apples",
    }
    second = ask(client, input=[result], previous_response_id=first.id, **asked)
    assert (second.output_text, second.previous_response_id) == (SECOND, first.id)
    assert second.usage.input_tokens == len(engine.asked[1][2].prompt)
    check_prompts(engine)
    assert client.responses.retrieve(first.id).output_text == "Looking. 🍎"
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_a_response_that_is_not_stored_cannot_be_gone_on_from(url, engine):
    client = openai.OpenAI(base_url=url, api_key="k", max_retries=0)
    first = client.responses.create(model="tiny", input="hello", store=False)
    with pytest.raises(openai.NotFoundError, match="no stored response"):
        client.responses.create(model="tiny", input="on", previous_response_id=first.id)


def test_items_may_be_repeated_instead_of_a_previous_response(url, engine):
    client = openai.OpenAI(base_url=url, api_key="k", max_retries=0)
    tools = [{"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}]
    asked = {"model": "tiny", "tools": tools, "instructions": "Be brief."}
    items = [{"role": "user", "content": QUESTION}]
    first = client.responses.create(input=items, **asked)
    items += [item.model_dump(exclude_none=True) for item in first.output]
    call = first.output[2].call_id
    items.append({"type": "function_call_output", "call_id": call, "output": "seven apples"})
    assert client.responses.create(input=items, **asked).output_text == SECOND
    check_prompts(engine)


# -- Anthropic ------------------------------------------------------------------------------------------


def message_stream(client, **request):
    with client.messages.stream(**request) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop")
    assert kinds.count("content_block_start") == len(final.content)
    return final


def message_whole(client, **request):
    return client.messages.create(**request)


def beta_stream(client, **request):
    """As HUD's client asks: `?beta=true`."""
    with client.beta.messages.stream(**request) as stream:
        return stream.get_final_message()


@pytest.mark.slow
@pytest.mark.parametrize("ask", [message_whole, message_stream, beta_stream])
def test_anthropic_messages(url, engine, ask):
    client = anthropic.Anthropic(base_url=url, api_key="k", max_retries=0)
    asked = {
        "model": "tiny",
        "max_tokens": 100,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "look", "description": "", "input_schema": SCHEMA}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    }
    messages = [{"role": "user", "content": QUESTION}]
    first = ask(client, messages=messages, **asked)
    assert [block.type for block in first.content] == ["thinking", "text", "tool_use"]
    thought, text, call = first.content
    assert (thought.thinking, text.text) == ("I have to look.", "Looking. 🍎")
    assert (call.name, call.input, first.stop_reason) == ("look", {"at": 7}, "tool_use")
    result = {
        "type": "tool_result",
        "tool_use_id": call.id,
        "content": [{"type": "text", "text": "seven apples"}],
        "cache_control": {"type": "ephemeral"},
    }
    said = [block.model_dump(exclude_none=True) for block in first.content]
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": [result]}]
    second = ask(client, messages=messages, **asked)
    assert [block.type for block in second.content] == ["text"]
    assert (second.content[0].text, second.stop_reason) == (SECOND, "end_turn")
    used = second.usage
    assert used.input_tokens + used.cache_read_input_tokens == len(engine.asked[1][2].prompt)
    check_prompts(engine)


def test_anthropic_counts_tokens(url, engine):
    client = anthropic.Anthropic(base_url=url, api_key="k")
    messages = [{"role": "user", "content": QUESTION}]
    counted = client.messages.count_tokens(model="tiny", messages=messages)
    answer = client.messages.create(model="tiny", max_tokens=50, messages=messages)
    used = answer.usage.input_tokens + answer.usage.cache_read_input_tokens
    assert counted.input_tokens == used


# -- Gemini -----------------------------------------------------------------------------------------------


def content_whole(client, **request):
    answer = client.models.generate_content(**request)
    return answer.candidates[0].content.parts, answer.candidates[0].finish_reason, answer


def content_stream(client, **request):
    parts, reason = [], None
    for answer in client.models.generate_content_stream(**request):
        candidate = answer.candidates[0]
        reason = candidate.finish_reason or reason
        for part in candidate.content.parts or []:
            last = parts[-1] if parts else None
            if last is not None and part.text and last.text and part.thought == last.thought:
                last.text += part.text
            else:
                parts.append(part)
    return parts, reason, answer


@pytest.mark.parametrize("version", ["v1beta", "v1"])
@pytest.mark.parametrize("ask", [content_whole, content_stream])
def test_gemini_content(url, engine, ask, version):
    client = genai.Client(
        api_key="k", http_options=types.HttpOptions(base_url=url, api_version=version)
    )
    declared = types.FunctionDeclaration(
        name="look",
        parameters=types.Schema(
            type="OBJECT", properties={"at": types.Schema(type="INTEGER")}, required=["at"]
        ),
    )
    config = types.GenerateContentConfig(
        system_instruction="Be brief.",
        tools=[types.Tool(function_declarations=[declared])],
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
        thinking_config=types.ThinkingConfig(include_thoughts=True),
    )
    contents = [types.Content(role="user", parts=[types.Part(text=QUESTION)])]
    parts, reason, answer = ask(client, model="tiny", contents=contents, config=config)
    thought, text, called = parts
    assert (thought.text, thought.thought, text.text) == ("I have to look.", True, "Looking. 🍎")
    assert (called.function_call.name, called.function_call.args) == ("look", {"at": 7})
    assert reason == types.FinishReason.STOP
    assert answer.usage_metadata.candidates_token_count == len(engine.turns[0])
    result = types.Part.from_function_response(name="look", response={"result": "seven apples"})
    contents += [
        types.Content(role="model", parts=parts),
        types.Content(role="user", parts=[result]),
    ]
    parts, reason, _ = ask(client, model="tiny", contents=contents, config=config)
    assert ([part.text for part in parts], reason) == ([SECOND], types.FinishReason.STOP)
    check_prompts(engine)


def test_gemini_shows_thoughts_only_where_they_are_wanted(url, engine):
    client = genai.Client(api_key="k", http_options={"base_url": url})
    answer = client.models.generate_content(model="tiny", contents=QUESTION)
    assert not any(part.thought for part in answer.candidates[0].content.parts)
    assert client.models.count_tokens(model="tiny", contents=QUESTION).total_tokens == len(
        engine.asked[0][2].prompt
    )


# -- lists ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_client_lists_the_models(url, engine, monkeypatch):
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert [model.id for model in openai.OpenAI(base_url=url, api_key="k").models.list()] == [
        "tiny"
    ]
    listed = anthropic.Anthropic(base_url=url, api_key="k").models.list()
    assert [model.id for model in listed] == ["tiny"]
    gemini = genai.Client(api_key="k", http_options={"base_url": url})
    assert [model.name for model in gemini.models.list()] == ["models/tiny"]
    assert gemini.models.get(model="tiny").name == "models/tiny"
    assert openai.OpenAI(base_url=url, api_key="k").models.retrieve("tiny").id == "tiny"
