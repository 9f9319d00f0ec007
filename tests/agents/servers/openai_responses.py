"""OpenAI's responses on loopback, as https://platform.openai.com/docs/api-reference/responses documents them.

A turn of the script is a list of output items without their ids, or a dict `{"output": [...], "status": ...,
"incomplete_details": ..., "usage": ..., "error": ...}`.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

from aiohttp import web
from tests.agents.servers.loopback import LoopbackProvider, WireError, demand, fields, image_url

KEY = "sk-loopback"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_TOP = {
    "include": list,
    "instructions": str,
    "max_output_tokens": int,
    "parallel_tool_calls": bool,
    "prompt_cache_key": str,
    "reasoning": dict,
    "store": bool,
    "stream": bool,
    "temperature": (int, float),
    "text": dict,
    "tool_choice": (str, dict),
    "tools": list,
    "truncation": ("auto", "disabled"),
}
_HOSTED = ("web_search", "web_search_preview", "file_search", "code_interpreter")
_PREFIXES = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "computer_call": "cu_",
    "web_search_call": "ws_",
}
_PARTS = {"input_text": {"text": str}, "input_image": {"image_url": str}}


def say(text: str, **part: Any) -> dict[str, Any]:
    """A message of one text."""
    content = {"type": "output_text", "text": text, "annotations": [], "logprobs": [], **part}
    return {"type": "message", "role": "assistant", "status": "completed", "content": [content]}


def refuse(text: str) -> dict[str, Any]:
    """A message that refuses."""
    part = {"type": "refusal", "refusal": text}
    return {"type": "message", "role": "assistant", "status": "completed", "content": [part]}


def think(summary: str = "", secret: str = "gAAAA-secret") -> dict[str, Any]:
    """Reasoning, with its encrypted form."""
    parts = [{"type": "summary_text", "text": summary}] if summary else []
    return {"type": "reasoning", "summary": parts, "encrypted_content": secret, "status": None}


def call(name: str, call_id: str, arguments: Any = None) -> dict[str, Any]:
    """A function call; `arguments` is what is written as JSON, or the text itself."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return {
        "type": "function_call",
        "name": name,
        "call_id": call_id,
        "arguments": text,
        "status": "completed",
    }


def use(call_id: str, *actions: dict[str, Any], checks: tuple[Any, ...] = ()) -> dict[str, Any]:
    """A computer call of the current tool: several actions in one."""
    return {
        "type": "computer_call",
        "call_id": call_id,
        "actions": list(actions),
        "pending_safety_checks": list(checks),
        "status": "completed",
    }


def use_preview(call_id: str, action: dict[str, Any], checks: tuple[Any, ...] = ()) -> Any:
    """A computer call of the preview: one action."""
    item = use(call_id, checks=checks)
    del item["actions"]
    return {**item, "action": action}


class OpenAIResponses(LoopbackProvider):
    """`POST /v1/responses`."""

    def __init__(self, *script: Any) -> None:
        super().__init__(*script)
        self.numbers = itertools.count(1)
        self.given: dict[str, dict[str, Any]] = {}
        """The items that were answered, by id: what is sent back must be what was given."""

    def whole(self, turn: Any, body: dict[str, Any]) -> dict[str, Any]:
        turn = {"output": turn} if isinstance(turn, list) else dict(turn)
        output = [self._numbered(item) for item in turn.pop("output", [])]
        usage = {
            "input_tokens": 100,
            "input_tokens_details": {"cached_tokens": 40, "cache_write_tokens": 0},
            "output_tokens": 20,
            "output_tokens_details": {"reasoning_tokens": 8},
            "total_tokens": 120,
        }
        return {
            "id": f"resp_{next(self.numbers)}",
            "object": "response",
            "created_at": 1_790_000_000,
            "completed_at": 1_790_000_001,
            "status": "completed",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.get("instructions"),
            "max_output_tokens": body.get("max_output_tokens"),
            "max_tool_calls": None,
            "model": f"{body['model']}-2026-07-01",
            "output": output,
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None, **body.get("reasoning", {})},
            "service_tier": "default",
            "store": body.get("store", True),
            "temperature": body.get("temperature", 1.0),
            "text": {"format": {"type": "text"}, "verbosity": "medium"},
            "tool_choice": body.get("tool_choice", "auto"),
            "tools": body.get("tools", []),
            "top_logprobs": 0,
            "top_p": 1.0,
            "truncation": body.get("truncation", "disabled"),
            "usage": usage,
            "user": None,
            "metadata": {},
            **turn,
        }

    def _numbered(self, item: dict[str, Any]) -> dict[str, Any]:
        item = {"id": f"{_PREFIXES[item['type']]}{next(self.numbers)}", **item}
        self.given[item["id"]] = item
        return item

    def events(self, turn: Any, body: dict[str, Any]) -> list[bytes]:
        response = self.whole(turn, body)
        begun = {**response, "status": "in_progress", "output": [], "usage": None}
        begun |= {"completed_at": None, "error": None, "incomplete_details": None}
        said = [("response.created", {"response": begun})]
        said.append(("response.in_progress", {"response": begun}))
        for index, item in enumerate(response["output"]):
            said.extend(_spoken(index, item))
        if response["status"] == "failed":
            said.append(("response.failed", {"response": response}))
        else:
            said.append((f"response.{response['status']}", {"response": response}))
        return [
            _event(name, {"type": name, "sequence_number": number, **data})
            for number, (name, data) in enumerate(said)
        ]

    def error_event(self, error: dict[str, Any]) -> bytes:
        return _event("error", {"type": "error", "sequence_number": 9, "param": None, **error})

    def check(self, request: web.Request, body: dict[str, Any]) -> None:
        demand(request.path == "/v1/responses", f"Invalid URL (POST {request.path})")
        demand(request.headers.get("authorization") == f"Bearer {KEY}", "Incorrect API key")
        fields(body, "body", {"model": str, "input": (str, list)}, _TOP)
        demand(body.get("max_output_tokens", 16) >= 16, "max_output_tokens must be at least 16")
        for name in body.get("include", []):
            demand(name == "reasoning.encrypted_content", f"include has {name!r}")
            # "Encrypted content is not supported with this model."
            demand(not body["model"].startswith("gpt-4"), "Encrypted content is not supported")
        tools = self._check_tools(body)
        demand(
            "computer_use_preview" not in tools or body.get("truncation") == "auto",
            "computer_use_preview needs truncation 'auto'",
        )
        _check_choice(body.get("tool_choice", "auto"), tools)
        demand(body["input"], "input is empty")
        if isinstance(body["input"], list):
            self._check_items(body["input"], tools, stored=body.get("store", True))

    def _check_tools(self, body: dict[str, Any]) -> set[str]:
        names: set[str] = set()
        for number, tool in enumerate(body.get("tools", [])):
            where = f"tools[{number}]"
            kind = tool.get("type")
            if kind == "function":
                required = {"type": str, "name": str, "parameters": dict, "strict": bool}
                fields(tool, where, required, {"description": str})
                demand(_NAME.fullmatch(tool["name"]), f"{where}.name does not match the pattern")
                demand(tool["parameters"].get("type") == "object", f"{where}: no object schema")
                if tool["strict"]:
                    properties = tool["parameters"].get("properties", {})
                    demand(
                        set(properties) == set(tool["parameters"].get("required", [])),
                        f"{where}: strict schemas require every property",
                    )
                name = tool["name"]
            elif kind == "computer":
                fields(tool, where, {"type": str}, {})
                name = kind
            elif kind == "computer_use_preview":
                size = {"display_width": int, "display_height": int}
                places = ("windows", "mac", "linux", "ubuntu", "browser")
                fields(tool, where, {"type": str, **size, "environment": places}, {})
                demand("computer-use-preview" in body["model"], f"{kind} is not for this model")
                name = kind
            else:
                demand(kind in _HOSTED, f"{where}.type {kind!r} is none")
                name = str(kind)
            demand(name not in names, f"{where}: there are two tools {name!r}")
            names.add(name)
        return names

    def _check_items(self, items: list[Any], tools: set[str], *, stored: bool) -> None:
        open_calls: dict[str, dict[str, Any]] = {}
        called: set[str] = set()
        for number, item in enumerate(items):
            where = f"input[{number}]"
            demand(None not in item.values(), f"{where} has a field that is null")
            kind = item.get("type", "message")
            if kind in ("function_call", "computer_call"):
                demand(item["call_id"] not in called, f"{where}: call_id was used before")
                called.add(item["call_id"])
                open_calls[item["call_id"]] = item
            if "id" in item:
                self._check_given(item, where)
            if kind == "reasoning":
                demand(
                    stored or "encrypted_content" in item,
                    f"Item with id '{item['id']}' not found: items are not stored",
                )
                following = items[number + 1] if number + 1 < len(items) else {}
                demand(
                    following.get("type") in (*_PREFIXES,) and following.get("role") != "user",
                    f"Item '{item['id']}' of type 'reasoning' was provided without its required "
                    "following item.",
                )
            elif kind == "message":
                _check_message(item, where)
            elif kind == "function_call":
                required = {"type": str, "call_id": str, "name": str, "arguments": str}
                fields(item, where, required, {"id": str, "status": str})
                demand(_NAME.fullmatch(item["name"]), f"{where}.name does not match the pattern")
            elif kind == "function_call_output":
                required = {"type": str, "call_id": str, "output": (str, list)}
                fields(item, where, required, {})
                opened = open_calls.pop(item["call_id"], {})
                demand(
                    opened.get("type") == "function_call",
                    f"No tool call found for function call output with call_id {item['call_id']}.",
                )
                if isinstance(item["output"], list):
                    _check_parts(item["output"], where)
            elif kind == "computer_call_output":
                _check_screen(item, where, open_calls.pop(item["call_id"], None))
            else:
                demand(kind in _PREFIXES, f"{where}.type {kind!r} is none")
        left = next(iter(open_calls), None)
        demand(left is None, f"No tool output found for function call {left}.")

    def _check_given(self, item: dict[str, Any], where: str) -> None:
        """Demand that an item of ours comes back as it was given, but for what was null."""
        ours = self.given.get(item["id"])
        demand(ours is not None, f"{where}: item {item['id']!r} was never given")
        assert ours is not None
        plain = _without_nulls(ours)
        demand(item == plain, f"{where} is not what was given: {item} is not {plain}")


def _without_nulls(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nulls(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    return {name: _without_nulls(entry) for name, entry in value.items() if entry is not None}


def _check_choice(choice: Any, tools: set[str]) -> None:
    if isinstance(choice, str):
        demand(choice in ("auto", "none", "required"), f"tool_choice {choice!r}")
        demand(choice != "required" or tools, "tool_choice 'required' without tools")
    else:
        demand(choice.get("name", choice.get("type")) in tools, f"tool_choice {choice} is no tool")


def _check_message(item: dict[str, Any], where: str) -> None:
    if item.get("role") == "assistant":
        if isinstance(item["content"], str):
            fields(item, where, {"type": str, "role": str, "content": str}, {})
            return
        optional = {"id": str, "status": str, "phase": str}
        fields(item, where, {"type": str, "role": str, "content": list}, optional)
        for part in item["content"]:
            demand(part["type"] in ("output_text", "refusal"), f"{where} holds {part['type']}")
        return
    roles = ("user", "developer", "system")
    fields(item, where, {"role": roles, "content": (str, list)}, {"type": str})
    demand(item["content"], f"{where}.content is empty")
    if isinstance(item["content"], list):
        _check_parts(item["content"], where)


def _check_parts(parts: list[Any], where: str) -> None:
    for part in parts:
        demand(part.get("type") in _PARTS, f"{where} holds a part {part.get('type')!r}")
        details = ("auto", "low", "high", "original")
        optional = {"detail": details} if part["type"] == "input_image" else {}
        fields(part, where, {"type": str, **_PARTS[part["type"]]}, optional)
        if part["type"] == "input_image":
            image_url(part["image_url"], where)


def _check_screen(item: dict[str, Any], where: str, opened: dict[str, Any] | None) -> None:
    demand(
        opened is not None and opened["type"] == "computer_call",
        f"No tool call found for computer call output with call_id {item['call_id']}.",
    )
    assert opened is not None
    required = {"type": str, "call_id": str, "output": dict}
    fields(item, where, required, {"acknowledged_safety_checks": list})
    fields(item["output"], f"{where}.output", {"type": str, "image_url": str}, {})
    demand(item["output"]["type"] == "computer_screenshot", f"{where}.output is no screenshot")
    image_url(item["output"]["image_url"], where)
    pending = [check["id"] for check in opened["pending_safety_checks"]]
    acknowledged = [check["id"] for check in item.get("acknowledged_safety_checks", [])]
    demand(
        pending == acknowledged,
        f"The following pending safety checks were not acknowledged: {pending}",
    )


def _spoken(index: int, item: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the events by which one output item is written."""
    at = {"output_index": index, "item_id": item["id"]}
    empty = {**item, "status": "in_progress"}
    body: list[tuple[str, dict[str, Any]]] = []
    if item["type"] == "function_call":
        empty["arguments"] = ""
        text = item["arguments"]
        middle = len(text) // 2
        name = "response.function_call_arguments.delta"
        body = [(name, {**at, "delta": delta}) for delta in (text[:middle], text[middle:])]
        done = {**at, "arguments": text, "name": item["name"]}
        body.append(("response.function_call_arguments.done", done))
    elif item["type"] == "message":
        empty["content"] = []
        for number, part in enumerate(item["content"]):
            body.extend(_spoken_part({**at, "content_index": number}, part))
    elif item["type"] == "reasoning":
        # Documented: what is encrypted may be incomplete until the item is done.
        empty |= {"summary": [], "encrypted_content": "gAAAA-begun"}
        for number, part in enumerate(item["summary"]):
            where = {**at, "summary_index": number}
            body.append(("response.reasoning_summary_text.delta", {**where, "delta": part["text"]}))
            body.append(("response.reasoning_summary_text.done", {**where, "text": part["text"]}))
    added = ("response.output_item.added", {"output_index": index, "item": empty})
    return [added, *body, ("response.output_item.done", {"output_index": index, "item": item})]


def _spoken_part(at: dict[str, Any], part: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    text = part.get("text", part.get("refusal"))
    assert isinstance(text, str)
    kind = "output_text" if part["type"] == "output_text" else "refusal"
    opened = {**part, "text" if kind == "output_text" else "refusal": ""}
    done = {"text": text, "logprobs": []} if kind == "output_text" else {"refusal": text}
    more = {"logprobs": []} if kind == "output_text" else {}
    return [
        ("response.content_part.added", {**at, "part": opened}),
        (f"response.{kind}.delta", {**at, "delta": text, **more}),
        (f"response.{kind}.done", {**at, **done}),
        ("response.content_part.done", {**at, "part": part}),
    ]


def _event(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


__all__ = [
    "KEY",
    "OpenAIResponses",
    "WireError",
    "call",
    "refuse",
    "say",
    "think",
    "use",
    "use_preview",
]
