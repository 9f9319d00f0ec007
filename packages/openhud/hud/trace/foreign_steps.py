"""Conversion of steps recorded by other clients to `hud.trace` types.

Other clients use the Model Context Protocol loosely: a single block instead of a list, other kinds of blocks, other roles.
Content that cannot be shown is replaced by its name, so that every trace stays readable.
"""

from __future__ import annotations

from typing import Any

_ROLES = ("system", "user", "assistant")
_SHOWN = 2000


def understood(payload: dict[str, Any]) -> dict[str, Any]:
    """Return a step's payload with its messages and its tool result as `hud.trace` types."""
    plain = dict(payload)
    messages = payload.get("messages")
    if messages is not None:
        plain["messages"] = [_message(message) for message in _several(messages)]
    if payload.get("result") is not None:
        plain["result"] = _result(payload["result"])
    return plain


def _message(message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        return {"role": "user", "content": _text(message)}
    role = message.get("role")
    return {
        "role": role if role in _ROLES else "user",
        "content": _content(message.get("content")),
    }


def _result(result: Any) -> dict[str, Any]:
    if not isinstance(result, dict):
        result = {"content": result}
    content = _content(result.get("content"))
    structured = result.get("structuredContent", result.get("structured_content"))
    return {
        "content": [{"type": "text", "text": content}] if isinstance(content, str) else content,
        "isError": bool(result.get("isError", result.get("is_error"))),
        "structuredContent": structured if isinstance(structured, dict) else None,
    }


def _content(content: Any) -> str | list[dict[str, Any]]:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return [_block(block) for block in _several(content)]


def _block(block: Any) -> dict[str, Any]:
    if not isinstance(block, dict):
        return {"type": "text", "text": _text(block)}
    kind = block.get("type")
    mime = block.get("mimeType", block.get("mime_type"))
    if kind == "text" and isinstance(block.get("text"), str):
        return {"type": "text", "text": block["text"]}
    if kind == "image" and isinstance(block.get("data"), str) and isinstance(mime, str):
        return {"type": "image", "data": block["data"], "mimeType": mime}
    resource = block.get("resource")
    if isinstance(resource, dict) and isinstance(resource.get("text"), str):
        return {"type": "text", "text": resource["text"]}
    fields = {name: value for name, value in block.items() if name not in ("type", "data")}
    return {"type": "text", "text": f"[{kind or 'block'}] {_text(fields)}"}


def _text(value: Any) -> str:
    return (value if isinstance(value, str) else repr(value))[:_SHOWN]


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
