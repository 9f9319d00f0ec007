"""Messages of the usual APIs and logs as messages of chat completions.

Reads chat completions, Responses items, Anthropic's blocks, OpenTelemetry's parts and LangChain's dumps. Logs are of many
versions: content of an unknown kind becomes its JSON text. Refused are only weights other than 0 and 1, and tools without a name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hud import exact_json
from hud.errors import UsageError
from hud.exchange.supervision import WEIGHT
from hud.inference.dialects.conversation_parts import text_in
from hud.trace import ChatMessage
from hud.trace.content import ToolSpec, call_message

_ROLES = {
    **{"human": "user", "ai": "assistant", "model": "assistant", "developer": "system"},
    **{"HumanMessage": "user", "AIMessage": "assistant", "SystemMessage": "system"},
    **{"ToolMessage": "tool", "AIMessageChunk": "assistant", "function": "tool"},
    **{"gpt": "assistant", "chatgpt": "assistant"},
    **{"observation": "tool", "function_response": "tool", "tool_response": "tool"},
}
_CALLS = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    "local_shell_call": "action",
    "web_search_call": "action",
}
"""Types of a Responses item that calls a tool, and the field of its arguments."""
_THOUGHTS = ("thinking", "reasoning")


def read_messages(rows: Any) -> list[ChatMessage]:
    """Return the messages of a list; a text is one message of a user."""
    if isinstance(rows, str):
        return [{"role": "user", "content": rows}]
    if isinstance(rows, dict):
        rows = rows.get("messages", [rows])
    messages: list[ChatMessage] = []
    for row in rows if isinstance(rows, list) else []:
        for message in _read(row):
            if _continues(messages, message):
                _join(messages[-1], message)
            else:
                messages.append(message)
    return messages


def read_tools(tools: Any) -> list[ToolSpec]:
    """Return the tools of a conversation: functions of chat completions, bare ones, or a JSON text of them.

    Raises `UsageError` for a tool without a name.
    """
    if isinstance(tools, str):
        tools = exact_json.loads(tools) if tools.strip() else None
    specs = []
    for tool in _several(tools) if tools else ():
        function = tool.get("function", tool) if isinstance(tool, dict) else {}
        if not isinstance(function.get("name"), str):
            raise UsageError(f"A tool of a conversation has no name: {_json(tool)[:80]}")
        fields = {
            "name": function["name"],
            "description": function.get("description") or "",
            "parameters": function.get("parameters") or function.get("input_schema"),
        }
        specs.append(ToolSpec(**{name: value for name, value in fields.items() if value}))
    return specs


def _continues(messages: list[ChatMessage], message: ChatMessage) -> bool:
    """Return whether a message is a further item of the turn before: the Responses API splits turns."""
    is_item = message.pop("item", False)
    return is_item and bool(messages) and messages[-1]["role"] == "assistant"


def _join(turn: ChatMessage, item: ChatMessage) -> None:
    for name in ("content", "reasoning_content"):
        if item.get(name):
            turn[name] = f"{turn[name]}\n{item[name]}" if turn.get(name) else item[name]
    if item.get("tool_calls"):
        turn["tool_calls"] = [*turn.get("tool_calls", []), *item["tool_calls"]]


def _read(row: Any) -> Iterator[ChatMessage]:
    if isinstance(row, str):
        yield {"role": "user", "content": row}
        return
    if isinstance(row, list) and len(row) == 2 and isinstance(row[0], str):
        row = {"role": row[0], "content": row[1]}  # LangChain's pair.
    if not isinstance(row, dict):
        return
    if isinstance(row.get("kwargs"), dict) and isinstance(row.get("id"), list):
        row = {"type": row["id"][-1], **row["kwargs"]}  # A dump of LangChain.
    if {"from", "value"} <= row.keys():
        row = _of_sharegpt(row)
    kind = str(row.get("type") or "")
    if kind in _CALLS:
        arguments = row.get(_CALLS[kind])
        name = row.get("name") or kind.removesuffix("_call")
        yield _assistant(calls=[_call(row.get("call_id") or row.get("id"), name, arguments)])
    elif kind.endswith("_call_output"):
        yield _result(row.get("call_id"), row.get("output"))
    elif kind == "reasoning" and "role" not in row:
        parts = [*(row.get("summary") or []), *(row.get("content") or [])]
        thought = "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
        yield _assistant(reasoning=thought)
    else:
        role = str(row.get("role") or kind)
        yield from _of_role(_ROLES.get(role, role), row)


def _of_sharegpt(row: dict[str, Any]) -> dict[str, Any]:
    """Return a message of ShareGPT's form, `{"from": ..., "value": ...}`; a `function_call` has its calls as JSON."""
    role, value = str(row["from"]), row["value"]
    if role not in ("function_call", "tool_call"):
        return {**row, "role": role, "content": value}
    calls = exact_json.loads(value) if isinstance(value, str) else value
    return {**row, "role": "assistant", "content": None, "tool_calls": _several(calls)}


def _of_role(role: str, row: dict[str, Any]) -> Iterator[ChatMessage]:
    if "parts" in row and "content" not in row:
        row = {**row, "content": row["parts"]}
    if role == "assistant":
        yield _turn(row)
    elif role == "tool":
        identifier = row.get("tool_call_id") or row.get("call_id") or row.get("id")
        blocks = row.get("content")
        responses = [block for block in _list(blocks) if _is_result(block)]
        yield from (
            map(_of_result, responses)
            if responses
            else [
                _result(
                    identifier, blocks, name=row.get("name"), failed=row.get("status") == "error"
                )
            ]
        )
    elif role in ("user", "system"):
        yield from _spoken(role, row.get("content"))


def _spoken(role: str, content: Any) -> Iterator[ChatMessage]:
    """Yield a message of a user, after the tool results among its blocks."""
    blocks = _list(content)
    yield from (_of_result(block) for block in blocks if _is_result(block))
    rest = [block for block in blocks if not _is_result(block)]
    if rest or not blocks:
        yield {"role": role, "content": _content(content if not blocks else rest)}


def _turn(row: dict[str, Any]) -> ChatMessage:
    """Return an assistant's message."""
    content = row.get("content")
    thoughts = [row.get("reasoning_content") or row.get("reasoning") or ""]
    calls = [_chat_call(call) for call in row.get("tool_calls") or [] if isinstance(call, dict)]
    shown = []
    for block in _list(content):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind in _THOUGHTS:
            thoughts.append(
                block.get("thinking") or block.get("reasoning") or block.get("content") or ""
            )
        elif kind in ("tool_use", "tool_call", "server_tool_use"):
            arguments = block.get("input", block.get("arguments", block.get("args")))
            calls.append(_call(block.get("id"), block.get("name"), arguments))
        elif kind not in ("redacted_thinking",):
            shown.append(block)
    text = text_in(_content(shown)) if isinstance(content, list) else content
    if row.get("refusal"):
        text = "\n".join(filter(None, [text, row["refusal"]]))
    joined = "\n".join(str(thought) for thought in thoughts if thought)
    turn = _assistant(text or None, joined, _once(calls), item=row.get("type") == "message")
    if (weight := row.get(WEIGHT)) is None:
        return turn
    if weight not in (0, 1):
        raise UsageError(f"The weight of a turn is 0 or 1, not {weight!r}.")
    return {**turn, WEIGHT: int(weight)}


def _assistant(
    content: str | None = None,
    reasoning: str = "",
    calls: Iterable[dict[str, Any]] = (),
    *,
    item: bool = True,
) -> ChatMessage:
    message: ChatMessage = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls := list(calls):
        message["tool_calls"] = calls
    return {**message, "item": True} if item else message


def _once(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return calls, each id once: dumps of LangChain list a turn's calls twice."""
    by_id = {call["id"] or str(number): call for number, call in enumerate(calls)}
    return list(by_id.values())


def _chat_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    source = function if isinstance(function, dict) else call
    arguments = source.get("arguments", source.get("args"))
    name = function if isinstance(function, str) else source.get("name")
    return _call(call.get("id"), name, arguments)


def _call(identifier: Any, name: Any, arguments: Any) -> dict[str, Any]:
    text = (
        arguments if isinstance(arguments, str) else _json({} if arguments is None else arguments)
    )
    return call_message(str(identifier or ""), str(name or "tool"), text)


def _is_result(block: Any) -> bool:
    kind = block.get("type") if isinstance(block, dict) else None
    return kind in ("tool_result", "tool_call_response", "function_call_output")


def _of_result(block: dict[str, Any]) -> ChatMessage:
    """Return the message of a tool result among the blocks of a message."""
    names = ("content", "response", "result", "output")
    content = next((block[name] for name in names if name in block), "")
    identifier = block.get("tool_use_id") or block.get("id")
    return _result(identifier, content, failed=bool(block.get("is_error")))


def _result(
    identifier: Any, content: Any, *, name: Any = None, failed: bool = False
) -> ChatMessage:
    shown = _content(content)
    message: ChatMessage = {"role": "tool", "tool_call_id": str(identifier or ""), "content": shown}
    if name:
        message["name"] = str(name)
    return {**message, "is_error": True} if failed else message


def _content(content: Any) -> Any:
    """Return content as a text, or as blocks where it has pictures."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        return _json(content)
    blocks = [_block(block) for block in content]
    if all(block["type"] == "text" for block in blocks):
        return "\n".join(block["text"] for block in blocks)
    return blocks


def _block(block: Any) -> dict[str, Any]:
    """Return a block of a text, or of a picture as chat completions have it."""
    if not isinstance(block, dict):
        return {"type": "text", "text": block if isinstance(block, str) else _json(block)}
    text = block.get("text", block.get("content"))
    if isinstance(text, str) and block.get("type") in (None, *_TEXTS):
        return {"type": "text", "text": text}
    address = _picture(block)
    if address is not None:
        return {"type": "image_url", "image_url": {"url": address}}
    return {"type": "text", "text": _json(block)}


_TEXTS = ("text", "input_text", "output_text", "summary_text", "refusal")


def _picture(block: dict[str, Any]) -> str | None:
    """Return the address of a picture; None for another block."""
    url = block.get("image_url", block.get("url"))
    if isinstance(url, dict):
        url = url.get("url")
    if isinstance(url, str) and block.get("type") in ("image_url", "input_image", "image"):
        return url
    source = block.get("source")
    source = source if isinstance(source, dict) else block
    data = source.get("data")
    media = source.get("media_type") or source.get("mimeType") or source.get("mime_type")
    if block.get("type") == "image" and isinstance(data, str):
        return f"data:{media or 'image/png'};base64,{data}"
    return None


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _list(content: Any) -> list[Any]:
    return content if isinstance(content, list) else []


def _json(value: Any) -> str:
    return exact_json.dumps(value, default=str).decode()
