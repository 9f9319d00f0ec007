"""Tool calls in every dialect: their arguments, their ids, and the finish reasons of turns."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any

from hud.inference.dialects.conversation_parts import own_turn
from hud.inference.retries import BrokenAnswer
from hud.trace import ChatMessage, ToolCall, new_id, parsed_arguments

_ARGUMENT_FIELDS = ("arguments", "input", "args", "parameters")
_NOT_PLAIN = re.compile(r"[^a-zA-Z0-9_-]")

MALFORMED = "malformed_tool_call"
CUT_OFF = ("length", "context_full", "content_filter", "refusal")
"""Finish reasons of a turn whose last call may be truncated."""


_FAILURES = frozenset(
    {
        "abort",  # SGLang, vLLM
        "aborted",
        "cancelled",
        "canceled",
        "error",  # OpenRouter, Mistral, vLLM, Cohere
        "failed",
        "finish_reason_unspecified",
        "insufficient_system_resource",  # DeepSeek
        "internal_error",
        "load",  # Ollama
        "network_error",  # GLM
        "overloaded",
        "server_error",
        "time_limit",  # watsonx
        "timeout",
        "unload",  # Ollama
        "user_cancel",  # Cohere
    }
)
"""Words for a turn that the server could not complete."""


def check_reason(word: Any) -> None:
    """Raise `BrokenAnswer` for a finish reason of a turn that the server could not complete."""
    if plain_reason(word) in _FAILURES:
        raise BrokenAnswer(f"ended the turn with finish_reason {str(word)!r}")


def plain_reason(word: Any) -> str:
    """Return a server's finish reason in lower case, with `_` between its parts."""
    return str(word).lower().replace("-", "_").replace(" ", "_")


def final_reason(reason: str, *, calls: bool) -> str:
    """Return the finish reason of a whole turn: a call makes it `tool_calls`, and `tool_calls` needs a call."""
    if reason == "stop" and calls:
        return "tool_calls"
    return MALFORMED if reason == "tool_calls" and not calls else reason


def are_whole(arguments: Any) -> bool:
    """Return True for a complete JSON object of arguments; missing ones may have been cut off."""
    if isinstance(arguments, str) and not arguments.strip():
        return False
    return arguments is not None and isinstance(parsed_arguments(arguments), dict)


def arguments_in(function: dict[str, Any], *names: str) -> Any:
    """Return the arguments of a call that a server sent, in the dialect's field or that of another dialect.

    `names` are the dialect's own. Without the other fields, a tool would run with its defaults.
    """
    for name in (*names, *_ARGUMENT_FIELDS):
        if function.get(name) is not None:
            return function[name]
    return None


def distinct_ids(calls: list[ToolCall]) -> list[ToolCall]:
    """Return the calls of a turn with new ids for missing and repeated ones: results refer to them."""
    used: set[str] = set()
    for call in calls:
        if not call.id or call.id in used:
            call.id = new_call_id()
        used.add(call.id)
    return calls


def new_call_id() -> str:
    """Return an id for a call without one."""
    return f"call_{new_id()[:12]}"


def with_call_ids(
    messages: list[ChatMessage],
    dialect: str,
    longest: int | None = None,
    *,
    plain: bool = False,
    length: int | None = None,
) -> list[ChatMessage]:
    """Return a conversation whose call ids `dialect` accepts, each for one call only.

    Ids of another server may be too long, repeated, or, with `plain`, hold other characters than letters, digits, `_` and
    `-`. With `length` ids have exactly so many letters and digits. The provider's own turns stay unchanged. Results of
    calls with equal ids are assigned in order.
    """

    def wire_id(identifier: str) -> str:
        if length is not None:
            return _fixed_id(identifier, used, length)
        return _wire_id(identifier, used, longest, plain=plain)

    used: set[str] = set()
    open_calls: dict[str, list[str]] = {}
    written: list[ChatMessage] = []
    for message in messages:
        if message["role"] == "assistant":
            open_calls = {}
            calls = []
            own = own_turn(message, dialect) is not None
            for call in message.get("tool_calls") or []:
                wire = call["id"] if own else wire_id(call["id"])
                used.add(wire)
                open_calls.setdefault(call["id"], []).append(wire)
                calls.append({**call, "id": wire})
            if calls and not own:
                message = {**message, "tool_calls": calls}
        elif message["role"] == "tool":
            wires = open_calls.get(message["tool_call_id"])
            if wires:
                wire = wires.pop(0) if len(wires) > 1 else wires[0]
                message = {**message, "tool_call_id": wire}
        written.append(message)
    return written


def _wire_id(identifier: str, used: set[str], longest: int | None, *, plain: bool) -> str:
    """Return the id in a request: the same one in every request, so that the provider's prompt cache keeps it."""
    wire = _NOT_PLAIN.sub("_", identifier) if plain else identifier
    if not wire or (longest is not None and len(wire) > longest):
        wire = f"call_{sha256(identifier.encode()).hexdigest()[:24]}"
    number, unique = 2, wire
    while unique in used:
        unique, number = f"{wire[: (longest or len(wire) + 6) - 6]}_{number}", number + 1
    return unique


def _fixed_id(identifier: str, used: set[str], length: int) -> str:
    """Return the id of `length` letters and digits in a request: a valid one unchanged, else a digest, as in `_wire_id`."""
    valid = identifier.isascii() and identifier.isalnum() and len(identifier) == length
    wire, number = identifier if valid else _digest(identifier, length), 2
    while wire in used:
        wire, number = _digest(f"{identifier} {number}", length), number + 1
    return wire


def _digest(text: str, length: int) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:length]


def arguments_object(value: Any) -> dict[str, Any]:
    """Return an earlier call's arguments as an object, also for other text, for providers that accept objects only.

    For requests only: a tool that is called with the wrapped text could run with its defaults.
    """
    arguments = parsed_arguments(value)
    return arguments if isinstance(arguments, dict) else {"arguments": arguments}


def repeated_calls(identity: str, name: str, actions: list[dict[str, Any]]) -> list[ToolCall]:
    """Return the calls of `name` for one call of a provider's native tool: ids `x`, `x.2`, `x.3`."""
    return [
        ToolCall(id=identity if n == 0 else f"{identity}.{n + 1}", name=name, arguments=arguments)
        for n, arguments in enumerate(actions)
    ]
