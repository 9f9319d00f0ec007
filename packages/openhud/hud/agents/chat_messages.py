"""Chat-completions messages from prompts, turns and tool results.

Pure functions on plain data; the tool loop decides the order of turns.
"""

from __future__ import annotations

from typing import Any

from hud import exact_json
from hud.trace import (
    ChatMessage,
    Completion,
    ContentBlock,
    ImageContent,
    Message,
    ToolCall,
    ToolResult,
)


def opening_messages(prompt: list[Message], system_prompt: str | None) -> list[ChatMessage]:
    """Return the conversation before the model's first turn."""
    messages: list[ChatMessage] = []
    if system_prompt:
        messages.append({"role": "system", "content": system_prompt})
    for message in prompt:
        content = message.content if isinstance(message.content, str) else parts(message.content)
        messages.append({"role": message.role, "content": content})
    return messages


def parts(blocks: list[ContentBlock]) -> str | list[dict[str, Any]]:
    """Return content blocks as chat-completions parts, or as plain text if there is only text."""
    if not any(isinstance(block, ImageContent) for block in blocks):
        return "\n".join(block.text for block in blocks if not isinstance(block, ImageContent))
    return [
        {
            "type": "image_url",
            "image_url": {"url": f"data:{block.mime_type};base64,{block.data}"},
        }
        if isinstance(block, ImageContent)
        else {"type": "text", "text": block.text}
        for block in blocks
    ]


def assistant_message(completion: Completion) -> ChatMessage:
    """Return the model's turn as a message of the next prompt."""
    message: ChatMessage = {"role": "assistant", "content": completion.content}
    if completion.reasoning:
        message["reasoning_content"] = completion.reasoning
    if completion.tool_calls:
        message["tool_calls"] = [call.message() for call in completion.tool_calls]
    if completion.verbatim is not None:
        message["verbatim"] = completion.verbatim
    return message


def tool_message(call: ToolCall, result: ToolResult) -> ChatMessage:
    """Return a tool's result as a message for the model."""
    content = parts(result.content)
    if not content and result.structured_content is not None:
        content = exact_json.dumps(result.structured_content).decode()
    message: ChatMessage = {"role": "tool", "tool_call_id": call.id, "content": content}
    if result.is_error:
        message["is_error"] = True
    return message


def user_message(text: str) -> ChatMessage:
    """Return a user turn of plain text."""
    return {"role": "user", "content": text}


def spoken_messages(messages: list[ChatMessage]) -> int:
    """Return the number of messages without system messages, as in a continuation's `covered`."""
    return sum(message["role"] != "system" for message in messages)
