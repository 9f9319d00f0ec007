"""One conversation as each of the gateway's dialects asks for it."""

import json


def chat_body(messages, tools):
    """Chat completions."""
    declared = [{"type": "function", "function": tool.function()} for tool in tools]
    return {"model": "tiny", "messages": messages, "tools": declared}


def responses_body(messages, tools):
    """Responses: a turn is one item for each of its parts."""
    items = []
    for message in messages:
        if message["role"] == "tool":
            items.append(
                {
                    "type": "function_call_output",
                    "call_id": message["tool_call_id"],
                    "output": message["content"],
                }
            )
            continue
        if message.get("reasoning_content"):
            thought = {"type": "reasoning_text", "text": message["reasoning_content"]}
            items.append({"type": "reasoning", "summary": [], "content": [thought]})
        if message["content"]:
            kind = "output_text" if message["role"] == "assistant" else "input_text"
            content = [{"type": kind, "text": message["content"]}]
            items.append({"type": "message", "role": message["role"], "content": content})
        items += [
            {"type": "function_call", "call_id": call["id"], **call["function"]}
            for call in message.get("tool_calls", ())
        ]
    declared = [{"type": "function", **tool.function()} for tool in tools]
    return {"model": "tiny", "input": items, "tools": declared}


def anthropic_body(messages, tools):
    """Messages: results of one turn's calls are blocks of one user message."""
    body = {"model": "tiny", "max_tokens": 8, "messages": []}
    for message in messages:
        if message["role"] == "system":
            body["system"] = message["content"]
        elif message["role"] == "tool":
            block = {
                "type": "tool_result",
                "tool_use_id": message["tool_call_id"],
                "content": message["content"],
            }
            if body["messages"][-1]["role"] == "user":
                body["messages"][-1]["content"].append(block)
            else:
                body["messages"].append({"role": "user", "content": [block]})
        elif message["role"] == "user":
            block = {"type": "text", "text": message["content"]}
            body["messages"].append({"role": "user", "content": [block]})
        else:
            body["messages"].append({"role": "assistant", "content": _anthropic_turn(message)})
    body["tools"] = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
        for tool in tools
    ]
    return body


def _anthropic_turn(message):
    blocks = []
    if message.get("reasoning_content"):
        thought = message["reasoning_content"]
        blocks.append({"type": "thinking", "thinking": thought, "signature": ""})
    if message["content"]:
        blocks.append({"type": "text", "text": message["content"]})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        blocks.append(
            {
                "type": "tool_use",
                "id": call["id"],
                "name": function["name"],
                "input": json.loads(function["arguments"]),
            }
        )
    return blocks


def gemini_body(messages, tools):
    """generateContent."""
    body = {"model": "tiny", "contents": []}
    names = {
        call["id"]: call["function"]["name"]
        for message in messages
        for call in message.get("tool_calls", ())
    }
    for message in messages:
        if message["role"] == "system":
            body["systemInstruction"] = {"parts": [{"text": message["content"]}]}
        elif message["role"] == "tool":
            answer = {
                "id": message["tool_call_id"],
                "name": names[message["tool_call_id"]],
                "response": {"result": message["content"]},
            }
            part = {"functionResponse": answer}
            if body["contents"][-1]["role"] == "user":
                body["contents"][-1]["parts"].append(part)
            else:
                body["contents"].append({"role": "user", "parts": [part]})
        elif message["role"] == "user":
            body["contents"].append({"role": "user", "parts": [{"text": message["content"]}]})
        else:
            body["contents"].append({"role": "model", "parts": _gemini_turn(message)})
    declared = [
        {
            "name": tool.name,
            "description": tool.description,
            "parametersJsonSchema": tool.parameters,
        }
        for tool in tools
    ]
    body["tools"] = [{"functionDeclarations": declared}] if tools else []
    return body


def _gemini_turn(message):
    parts = []
    if message.get("reasoning_content"):
        parts.append({"text": message["reasoning_content"], "thought": True})
    if message["content"]:
        parts.append({"text": message["content"]})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        arguments = json.loads(function["arguments"])
        parts.append(
            {"functionCall": {"id": call["id"], "name": function["name"], "args": arguments}}
        )
    return parts
