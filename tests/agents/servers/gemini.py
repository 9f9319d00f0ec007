"""Gemini's generateContent on loopback, as https://ai.google.dev/api/generate-content documents it.

A turn of the script is a list of parts, or a dict `{"parts": [...], "finishReason": ..., "promptFeedback": ...}` of the
candidate's fields and the answer's. Parts with signatures, and function calls, must come back as they went; each call
has its response, by name, id and order.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
from typing import Any

from aiohttp import web
from tests.agents.servers.loopback import LoopbackProvider, demand, fields, image_url

KEY = "AIza-loopback"
_PATH = re.compile(r"/v1beta/models/([\w.-]+):(generateContent|streamGenerateContent)")
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")
_TOP = {"systemInstruction": dict, "tools": list, "toolConfig": dict, "generationConfig": dict}
_GENERATION = {
    "maxOutputTokens": int,
    "temperature": (int, float),
    "topP": (int, float),
    "topK": (int, float),
    "thinkingConfig": dict,
}
_LEVELS = ("MINIMAL", "LOW", "MEDIUM", "HIGH", "XHIGH")
_POINTED = ("click", "double_click", "triple_click", "middle_click", "right_click", "move")
NEWER = {
    *_POINTED,
    *("mouse_down", "mouse_up", "type", "drag_and_drop", "wait", "press_key", "key_down", "key_up"),
    *("hotkey", "take_screenshot", "scroll"),
}
NEWER_BROWSER = {*NEWER, "go_back", "navigate", "go_forward"}
LEGACY = {
    *("open_web_browser", "wait_5_seconds", "go_back", "go_forward", "search", "navigate"),
    *("click_at", "hover_at", "type_text_at", "key_combination", "scroll_document", "scroll_at"),
    "drag_and_drop",
}


def say(text: str) -> dict[str, Any]:
    return {"text": text}


def think(text: str) -> dict[str, Any]:
    return {"text": text, "thought": True}


def call(name: str, call_id: str | None = None, sign: str | None = None, **args: Any) -> Any:
    function = {"name": name, "args": args, **({"id": call_id} if call_id else {})}
    return {"functionCall": function, **({"thoughtSignature": sign} if sign else {})}


class GeminiContent(LoopbackProvider):
    """`POST /v1beta/models/{model}:generateContent` and `:streamGenerateContent`."""

    def __init__(self, *script: Any) -> None:
        super().__init__(*script)
        self.numbers = itertools.count(1)
        self.given: list[str] = []
        """What was answered and must come back as it was, as JSON."""

    def streams(self, request: web.Request, body: dict[str, Any]) -> bool:
        return request.path.endswith(":streamGenerateContent")

    def whole(self, turn: Any, body: dict[str, Any]) -> dict[str, Any]:
        turn = {"parts": turn} if isinstance(turn, list) else dict(turn)
        answer = {
            "modelVersion": "gemini-loopback-001",
            "responseId": f"r{next(self.numbers)}",
            "usageMetadata": turn.pop("usageMetadata", _usage()),
        }
        if "promptFeedback" in turn:
            return {**answer, "promptFeedback": turn["promptFeedback"]}
        parts = turn.pop("parts")
        self.given.extend(_canonical(part) for part in parts if _kept(part))
        content = {"content": {"role": "model", "parts": parts}} if parts else {}
        candidate = {**content, "finishReason": "STOP", "index": 0, **turn}
        return {**answer, "candidates": [candidate]}

    def events(self, turn: Any, body: dict[str, Any]) -> list[bytes]:
        answer = self.whole(turn, body)
        if not answer.get("candidates"):
            return [_event(answer)]
        (candidate,) = answer.pop("candidates")
        parts = [
            piece
            for part in candidate.pop("content", {"parts": []})["parts"]
            for piece in _pieces(part)
        ]
        usage = answer.pop("usageMetadata")
        told = [{"content": {"role": "model", "parts": [part]}, "index": 0} for part in parts]
        chunks = [{**answer, "candidates": [one]} for one in told]
        last = {"content": {"role": "model", "parts": [{"text": ""}]}, **candidate}
        chunks.append({**answer, "candidates": [last], "usageMetadata": usage})
        return [_event(chunk) for chunk in chunks]

    def error_event(self, error: dict[str, Any]) -> bytes:
        return _event({"error": error})

    def refusal(self, problem: str) -> dict[str, Any]:
        return {"error": {"code": 400, "message": problem, "status": "INVALID_ARGUMENT"}}

    def check(self, request: web.Request, body: dict[str, Any]) -> None:
        path = _PATH.fullmatch(request.path)
        demand(path, f"Not found: {request.path}")
        assert path is not None
        model = path[1]
        if path[2] == "streamGenerateContent":
            demand(request.query.get("alt") == "sse", "alt=sse is missing")
        demand(request.headers.get("x-goog-api-key") == KEY, "API key not valid.")
        # Protocol buffers take names in either case, and the SDK writes them in both.
        body.update(_camel(body))
        fields(body, "body", {"contents": list}, _TOP)
        _check_generation(body.get("generationConfig", {}), model)
        if "systemInstruction" in body:
            fields(body["systemInstruction"], "systemInstruction", {"parts": list}, {"role": str})
        names, actions = _check_tools(body, model)
        told = body.get("toolConfig", {}).get("includeServerSideToolInvocations", False)
        hosted = any("googleSearch" in tool for tool in body.get("tools", []))
        if hosted and names | actions:
            demand(told or "gemini-3" not in model, "Please enable server side tool invocations")
        self._check_contents(body["contents"], names, actions, model)

    def _check_contents(
        self, contents: list[Any], names: set[str], actions: set[str], model: str
    ) -> None:
        demand(contents, "contents is not specified")
        waiting: list[dict[str, Any]] = []
        for number, content in enumerate(contents):
            where = f"contents[{number}]"
            fields(content, where, {"role": ("user", "model"), "parts": list}, {})
            demand(content["parts"], f"{where}.parts must not be empty")
            if number:
                demand(content["role"] != contents[number - 1]["role"], f"{where}: roles alternate")
            for index, part in enumerate(content["parts"]):
                _check_part(part, f"{where}.parts[{index}]", model)
            calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
            if content["role"] == "user":
                demand(not calls, f"{where}: a user calls no functions")
                _check_responses(content["parts"], waiting, actions, where)
                waiting = []
                continue
            demand(not waiting, f"{where}: function calls without responses")
            for part in content["parts"]:
                if _kept(part):
                    demand(_canonical(part) in self.given, f"{where}: not as it was given: {part}")
            for function in calls:
                demand(function["name"] in names | actions, f"{where}: no {function['name']!r}")
            waiting = calls
        demand(not waiting, "the function calls of the last turn have no responses")


def _camel(value: Any) -> Any:
    if isinstance(value, list):
        return [_camel(one) for one in value]
    if not isinstance(value, dict):
        return value
    free = ("args", "response", "parametersJsonSchema")
    named = {re.sub(r"_(\w)", lambda found: found[1].upper(), key): key for key in value}
    return {name: value[key] if name in free else _camel(value[key]) for name, key in named.items()}


def _check_generation(config: dict[str, Any], model: str) -> None:
    fields(config, "generationConfig", {}, _GENERATION)
    thinking = config.get("thinkingConfig", {})
    fields(thinking, "thinkingConfig", {}, {"includeThoughts": bool, "thinkingLevel": _LEVELS})
    if "thinkingLevel" in thinking:
        demand("gemini-2" not in model, "Thinking level is not supported for this model.")


def _check_tools(body: dict[str, Any], model: str) -> tuple[set[str], set[str]]:
    names: list[str] = []
    actions: set[str] = set()
    for number, tool in enumerate(body.get("tools", [])):
        where = f"tools[{number}]"
        kinds = {"functionDeclarations": list, "computerUse": dict, "googleSearch": dict}
        fields(tool, where, {}, kinds)
        demand(len(tool) == 1, f"{where}: one kind of tool each")
        for declared in tool.get("functionDeclarations", []):
            needed = {"name": str, "description": str, "parametersJsonSchema": dict}
            fields(declared, where, needed, {})
            demand(_NAME.fullmatch(declared["name"]), f"Invalid function name {declared['name']!r}")
            demand(declared["parametersJsonSchema"].get("type") == "object", f"{where}: no object")
            names.append(declared["name"])
        if "computerUse" in tool:
            actions = _check_computer(tool["computerUse"], where, model)
    demand(len(names) == len(set(names)), "Duplicate function declaration found")
    demand(not actions & set(names), f"declared twice: {actions & set(names)}")
    return set(names), actions


def _check_computer(tool: dict[str, Any], where: str, model: str) -> set[str]:
    kinds = ("ENVIRONMENT_BROWSER", "ENVIRONMENT_DESKTOP")
    excluded = set(tool.get("excludedPredefinedFunctions", []))
    fields(tool, where, {"environment": kinds}, {"excludedPredefinedFunctions": list})
    desktop = tool["environment"] == "ENVIRONMENT_DESKTOP"
    newer = "gemini-3.5" in model
    demand("computer-use" in model or "gemini-3" in model, "Computer Use is not enabled")
    demand(newer or not desktop, "only browsers are supported")
    known = (NEWER if desktop else NEWER_BROWSER) if newer else LEGACY
    demand(excluded <= known, f"{where}: no such functions: {excluded - known}")
    return known - excluded


def _check_part(part: Any, where: str, model: str) -> None:
    kinds = {"text": str, "inlineData": dict, "functionCall": dict, "functionResponse": dict}
    kinds |= {"toolCall": dict, "toolResponse": dict}
    more = {"thought": bool, "thoughtSignature": str}
    fields(part, where, {}, {**kinds, **more})
    demand(len(part.keys() & kinds.keys()) == 1, f"{where}: needs one kind of data: {part}")
    if "thoughtSignature" in part:
        base64.b64decode(part["thoughtSignature"], altchars=b"-_")
    if "inlineData" in part:
        _check_blob(part["inlineData"], where)
    if "functionCall" in part:
        fields(part["functionCall"], where, {"name": str}, {"args": dict, "id": str})
    if "functionResponse" in part:
        response = part["functionResponse"]
        needed = {"name": str, "response": dict}
        fields(response, where, needed, {"id": str, "parts": list})
        for inner in response.get("parts", []):
            demand("gemini-3" in model or "computer-use" in model, "no media in responses")
            fields(inner, where, {"inlineData": dict}, {})
            _check_blob(inner["inlineData"], where)


def _check_blob(blob: dict[str, Any], where: str) -> None:
    fields(blob, where, {"mimeType": str, "data": str}, {})
    data = blob["data"].replace("-", "+").replace("_", "/")
    image_url(f"data:{blob['mimeType']};base64,{data}", where)


def _check_responses(
    parts: list[Any], calls: list[dict[str, Any]], actions: set[str], where: str
) -> None:
    responses = [part["functionResponse"] for part in parts if "functionResponse" in part]
    demand(
        len(responses) == len(calls),
        "Please ensure that the number of function response parts is equal to the number of function call parts",
    )
    for response, function in zip(responses, calls, strict=True):
        demand(response["name"] == function["name"], f"{where}: response of {response['name']}")
        demand(response.get("id") == function.get("id"), f"{where}: another id")
        if function["name"] in actions:
            demand("url" in response["response"], f"{where}: the response needs a url")
            asks = "safety_decision" in function.get("args", {})
            acknowledged = "safety_acknowledgement" in response["response"]
            demand(asks == acknowledged, f"{where}: the safety decision must be acknowledged")


def _kept(part: dict[str, Any]) -> bool:
    return bool(part.keys() & {"functionCall", "toolCall", "toolResponse", "thoughtSignature"})


def _canonical(part: dict[str, Any]) -> str:
    sign = part.get("thoughtSignature")
    if sign is not None:
        part = {**part, "thoughtSignature": sign.replace("+", "-").replace("/", "_")}
    return json.dumps(part, sort_keys=True)


def _pieces(part: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a part as a stream tells it: text in pieces, unless it is signed."""
    if _kept(part) or len(part.get("text", "")) < 2:
        return [part]
    middle = len(part["text"]) // 2
    return [{**part, "text": text} for text in (part["text"][:middle], part["text"][middle:])]


def _usage() -> dict[str, Any]:
    return {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 40,
        "candidatesTokenCount": 12,
        "thoughtsTokenCount": 8,
        "totalTokenCount": 120,
    }


def _event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data)}\r\n\r\n".encode()
