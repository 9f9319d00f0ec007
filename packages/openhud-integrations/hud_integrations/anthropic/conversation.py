"""Conversations as Messages API messages, written and read: blocks of text, images, tool calls and results.

Claude's own turns are repeated unchanged, including signed thoughts.
"""

from __future__ import annotations

from typing import Any

from hud import exact_json
from hud.inference.dialects.conversation_parts import (
    Answered,
    add_seal,
    alternating_turns,
    image_part,
    inline_image,
    join_parts,
    own_turn,
    parts_of,
    split_opening,
)
from hud.inference.dialects.fields import Fields
from hud.inference.dialects.tool_calls import arguments_object, with_call_ids
from hud.trace import ChatMessage, call_message
from hud_integrations.anthropic.tools import Declared

Block = dict[str, Any]

DIALECT = "messages"
_BILLING = "x-anthropic-billing-header:"
LONGEST_ID = 64
"""Most characters of a call's id, of letters, digits, `_` and `-`."""
_CACHED_MESSAGES = 2
"""User turns that end in a cache mark: the newest writes the prompt cache, the one before reads it."""
_CACHED: dict[str, str] = {"type": "ephemeral"}


def write_system(messages: list[ChatMessage]) -> list[Block]:
    """Return the system messages that open the conversation."""
    opening, _ = split_opening(messages)
    return [block for message in opening for block in content_blocks(message["content"])]


def write_conversation(
    messages: list[ChatMessage], declared: Declared, *, citations: bool = False
) -> list[dict[str, Any]]:
    """Return the conversation after its opening system messages, user and assistant in turn.

    With `citations`, results of functions are documents for Claude to cite.
    """

    def written(message: ChatMessage) -> tuple[list[Block], dict[str, Block]]:
        blocks = _written(message, declared)
        return blocks, {block["id"]: block for block in blocks if block["type"] == "tool_use"}

    def results(answered: Answered) -> list[Block]:
        return [_result(call, answers, citations) for call, answers in answered]

    _, spoken = split_opening(with_call_ids(messages, DIALECT, LONGEST_ID, plain=True))
    return alternating_turns(
        spoken,
        ("user", "assistant"),
        "content",
        content=content_blocks,
        written=written,
        results=results,
    )


def mark_cache(system: list[Block], turns: list[dict[str, Any]]) -> None:
    """Add the cache marks of the prompt; thoughts accept none, and do not occur in user turns."""
    if system:
        system[-1]["cache_control"] = _CACHED
    users = [turn for turn in turns if turn["role"] == "user"]
    for turn in users[-_CACHED_MESSAGES:]:
        *before, last = turn["content"]
        turn["content"] = [*before, {**last, "cache_control": _CACHED}]


def container_of(messages: list[ChatMessage]) -> str | None:
    """Return the id of the container of Claude's last code execution, for access to its files."""
    for message in reversed(messages):
        verbatim = own_turn(message, DIALECT)
        if verbatim and verbatim.get("container"):
            return str(verbatim["container"])
    return None


def content_blocks(content: Any) -> list[Block]:
    """Return message content as blocks, without blank text, which the API rejects."""
    return [
        {"type": "image", "source": _source(part["image_url"]["url"])}
        if part["type"] == "image_url"
        else {"type": "text", "text": part["text"]}
        for part in parts_of(content)
        if part["type"] == "image_url" or part["text"].strip()
    ]


def _written(message: ChatMessage, declared: Declared) -> list[Block]:
    """Return an assistant turn's blocks: Claude's own, or newly written ones."""
    verbatim = own_turn(message, DIALECT)
    if verbatim is not None:
        own: list[Block] = verbatim["items"]
        return own
    calls = [
        {
            "type": "tool_use",
            "id": call["id"],
            "name": declared.wire.get(call["function"]["name"], call["function"]["name"]),
            "input": arguments_object(call["function"]["arguments"]),
        }
        for call in message.get("tool_calls") or []
    ]
    return [*content_blocks(message.get("content")), *calls]


def _result(call: Block, answers: list[ChatMessage], citations: bool) -> Block:
    result: Block = {"type": "tool_result", "tool_use_id": call["id"]}
    if call.get("toolset_name"):
        result["toolset_name"] = call["toolset_name"]
    failed = [message for message in answers if message.get("is_error")]
    content = content_blocks((failed or answers)[-1]["content"])
    if failed and all(block["type"] == "text" for block in content):
        # The API accepts only text in an error, and requires it.
        result["is_error"] = True
        content = content or [{"type": "text", "text": "(no message)"}]
    elif citations and not call.get("toolset_name"):
        content = [_citable(block, call["name"]) for block in content]
    if content:
        result["content"] = content
    return result


def _source(url: str) -> dict[str, Any]:
    inline = inline_image(url)
    if inline is None:
        return {"type": "url", "url": url}
    return {"type": "base64", "media_type": inline[0], "data": inline[1]}


def _citable(block: Block, title: str) -> Block:
    if block["type"] != "text":
        return block
    source = {"type": "text", "media_type": "text/plain", "data": block["text"]}
    return {
        "type": "document",
        "source": source,
        "title": title,
        "citations": {"enabled": True},
    }


def read_conversation(body: Fields) -> list[ChatMessage]:
    """Return the system prompt and the messages as chat messages."""
    messages: list[ChatMessage] = []
    system = body.get("system")
    if system is not None:
        blocks = [system] if isinstance(system, str) else _system_texts(body)
        messages.append({"role": "system", "content": "\n".join(blocks)})
    for message in body.objects("messages"):
        role = message.needed_text("role")
        if role == "user":
            messages.extend(_read_user(message))
        elif role == "assistant":
            messages.append(_read_assistant(message))
        elif role == "system":
            messages.append({"role": "system", "content": _read_content(message)})
        else:
            raise message.wrong("role", "'user' or 'assistant'")
    return messages


def _system_texts(body: Fields) -> list[str]:
    """Return the texts of the system prompt, without Claude Code's billing header.

    It differs between conversations: no two of them would share a prefix.
    """
    texts = [part.text("text") or "" for part in body.objects("system")]
    return [text for text in texts if not text.startswith(_BILLING)]


def _read_user(message: Fields) -> list[ChatMessage]:
    """Return tool results as separate messages, before the rest of the user's turn."""
    if isinstance(message.get("content"), str):
        return [{"role": "user", "content": message.get("content")}]
    results: list[ChatMessage] = []
    parts: list[dict[str, Any]] = []
    for block in message.objects("content"):
        if block.text("type") == "tool_result":
            results.append(
                {
                    "role": "tool",
                    "tool_call_id": block.needed_text("tool_use_id"),
                    "content": _read_content(block) or "",
                }
            )
        else:
            parts.append(_read_part(block))
    return [*results, {"role": "user", "content": join_parts(parts)}] if parts else results


def _read_assistant(message: Fields) -> ChatMessage:
    if isinstance(message.get("content"), str):
        return {"role": "assistant", "content": message.get("content")}
    read: ChatMessage = {"role": "assistant", "content": None}
    calls: list[dict[str, Any]] = []
    for block in message.objects("content"):
        match block.needed_text("type"):
            case "text":
                read["content"] = (read["content"] or "") + (block.text("text") or "")
            case "tool_use":
                arguments = exact_json.dumps(block.object("input") or {}).decode()
                calls.append(
                    call_message(block.needed_text("id"), block.needed_text("name"), arguments)
                )
            case "thinking":
                thoughts = (read.get("reasoning_content"), block.text("thinking"))
                read["reasoning_content"] = "\n\n".join(filter(None, thoughts))
                add_seal(read, block.text("signature"))
            case "redacted_thinking":
                pass
            case _:
                raise block.unsupported("content")
    if calls:
        read["tool_calls"] = calls
    return read


def _read_content(block: Fields) -> Any:
    content = block.get("content")
    if content is None or isinstance(content, str):
        return content
    return join_parts([_read_part(part) for part in block.objects("content")])


def _read_part(block: Fields) -> dict[str, Any]:
    kind = block.needed_text("type")
    if kind == "text":
        return {"type": "text", "text": block.text("text") or ""}
    source = block.inner("source")
    if kind == "image" and source is not None:
        if source.text("type") == "url":
            return image_part(source.needed_text("url"))
        data = source.needed_text("data")
        return image_part(f"data:{source.text('media_type') or 'image/png'};base64,{data}")
    raise block.unsupported("content")
