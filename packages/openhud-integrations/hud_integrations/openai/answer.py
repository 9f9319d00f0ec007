"""Responses, read and written: text, reasoning, calls, refusals, citations, finish reasons, usage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hud.inference.dialects.chat_completions.answer import write_logprobs
from hud.inference.dialects.codec import SafetyPolicy
from hud.inference.dialects.events import Finished, TokenInfo, Turn
from hud.inference.dialects.tool_calls import are_whole, arguments_in, new_call_id
from hud.inference.prices import TokenCounts
from hud.inference.retries import AnsweredError, BrokenAnswer
from hud.trace import Citation, Completion, ToolCall, new_id, parsed_arguments
from hud_integrations.openai.computer import actions_of
from hud_integrations.openai.conversation import DIALECT
from hud_integrations.openai.tools import ClientTool, Declared, shell_arguments

_KINDS = {"text": "output_text"}
"""Kinds of content of other servers, by the dialect's."""
_CALLS = ("function_call", "computer_call")


def read_response(
    response: dict[str, Any],
    model: str,
    declared: Declared,
    *,
    safety: SafetyPolicy = "acknowledge",
) -> Completion:
    """Return the turn of a response.

    Raises `AnsweredError` for a failed response and `BrokenAnswer` for an incomplete one.
    """
    status = response.get("status") or "completed"
    if status == "failed" or response.get("error"):
        error = response.get("error") or {}
        raise AnsweredError(error.get("code"), error.get("message") or "The response failed.")
    if status not in ("completed", "incomplete"):
        raise BrokenAnswer(f"answered with a response that is {status}")
    if not isinstance(response.get("output"), list):
        raise BrokenAnswer(f"answered with something that is no response: {str(response)[:200]}")
    cut = status == "incomplete"
    items = [_plain(item) for item in response["output"] if _whole(item, cut=cut)]
    items = _repeatable(_with_ids(items))
    calls = [call for item in items for call in _calls(item, declared)]
    refusal = "\n".join(_parts(items, "refusal", "refusal")) or None
    reason = _finish_reason(response, calls)
    if reason == "content_filter":
        refusal = refusal or "The provider's content filter stopped the turn."
    checks = _safety_checks(items)
    stopped = bool(checks) and safety == "stop"
    if stopped:
        # A call that is not executed must not be repeated either: the API rejects calls without outputs.
        items = _repeatable([item for item in items if item["type"] not in _CALLS])
        calls = []
        refusal = "; ".join(
            check.get("message") or check.get("code") or check["id"] for check in checks
        )
    # A turn may contain commentary in addition to its answer; only the answer is graded.
    final = [item for item in items if item.get("phase") == "final_answer"]
    usage = response.get("usage") or {}
    counts = token_counts(usage)
    completion = Completion(
        content="\n".join(_parts(final or items, "output_text", "text")) or None,
        reasoning=_reasoning(items),
        tool_calls=calls,
        finish_reason="safety_check" if stopped else reason,
        refusal=refusal,
        model=response.get("model") or model,
        usage=counts.priced(model) if usage.get("cost") is None else counts.usage(usage["cost"]),
        citations=_citations(items),
        verbatim={"dialect": DIALECT, "items": items},
    )
    remarks = [item for item in items if item.get("phase") == "commentary"]
    if final and remarks:
        completion.extra["commentary"] = "\n".join(_parts(remarks, "output_text", "text"))
    if checks:
        completion.extra["safety_checks"] = [
            {**check, "acknowledged": not stopped} for check in checks
        ]
    return completion


def _whole(item: dict[str, Any], *, cut: bool) -> bool:
    """Return True for a complete item: a truncated call can be neither executed nor repeated."""
    if item.get("type") in _CALLS and item.get("status") == "incomplete":
        return False
    return not (cut and item.get("type") == "function_call") or are_whole(arguments_in(item))


def _with_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items with new ids for calls without one, or with another's. Raises `BrokenAnswer` for one without a name."""
    used: set[str] = set()
    for item in items:
        if item["type"] not in _CALLS:
            continue
        if item["type"] == "function_call" and not item.get("name"):
            raise BrokenAnswer(f"answered with a function call without a name: {str(item)[:200]}")
        if not item.get("call_id") or item["call_id"] in used:
            item["call_id"] = new_call_id()
        used.add(item["call_id"])
    return items


def _repeatable(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items without trailing reasoning, which the API rejects in later requests."""
    last = max((n for n, item in enumerate(items) if item["type"] != "reasoning"), default=-1)
    return items[: last + 1]


def _plain(value: Any) -> Any:
    """Return an item for a later request, without null fields, which the API rejects."""
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    return {name: _plain(entry) for name, entry in value.items() if entry is not None}


def _calls(item: dict[str, Any], declared: Declared) -> list[ToolCall]:
    if item["type"] == "computer_call":
        actions = actions_of(item)
        return [
            ToolCall(
                id=item["call_id"] if len(actions) == 1 else f"{item['call_id']}#{number}",
                name=declared.computer,
                arguments=action,
            )
            for number, action in enumerate(actions)
        ]
    if item["type"] != "function_call":
        return []
    arguments = parsed_arguments(arguments_in(item))
    name = declared.named.get(item["name"], item["name"])
    return [ToolCall(id=item["call_id"], name=name, arguments=arguments)]


def _finish_reason(response: dict[str, Any], calls: list[ToolCall]) -> str:
    if response.get("status") == "incomplete":
        reason = (response.get("incomplete_details") or {}).get("reason")
        return "length" if reason in (None, "max_output_tokens") else str(reason)
    return "tool_calls" if calls else "stop"


def _parts(items: list[dict[str, Any]], kind: str, field: str) -> list[str]:
    return [
        part[field]
        for item in items
        if item["type"] == "message"
        for part in item.get("content") or []
        if _KINDS.get(part.get("type"), part.get("type")) == kind and part.get(field)
    ]


def _reasoning(items: list[dict[str, Any]]) -> str | None:
    texts = [
        part["text"]
        for item in items
        if item["type"] == "reasoning"
        for part in item.get("summary") or item.get("content") or []
    ]
    return "\n\n".join(texts) or None


def _safety_checks(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"call_id": item["call_id"], **check}
        for item in items
        if item["type"] == "computer_call"
        for check in item.get("pending_safety_checks") or []
    ]


def _citations(items: list[dict[str, Any]]) -> list[Citation]:
    citations = []
    for item in items:
        for part in item.get("content") or [] if item["type"] == "message" else []:
            for note in part.get("annotations") or []:
                source = note.get("url") or note.get("file_id")
                if source is None:
                    continue
                start, end = note.get("start_index"), note.get("end_index")
                cited = part["text"][start:end] if start is not None and end is not None else ""
                citations.append(
                    Citation(
                        type=note["type"],
                        text=cited,
                        source=source,
                        title=note.get("title") or note.get("filename"),
                        start_index=start if start is not None else note.get("index"),
                        end_index=end,
                    )
                )
    return citations


def token_counts(usage: dict[str, Any]) -> TokenCounts:
    """Return the counts in `usage`."""
    details = usage.get("input_tokens_details") or {}
    return TokenCounts(
        usage.get("input_tokens") or 0,
        usage.get("output_tokens") or 0,
        details.get("cached_tokens") or 0,
        details.get("cache_write_tokens") or 0,
    )


INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""`incomplete_details.reason` by finish reason."""


def item_id(prefix: str) -> str:
    """Return a new id of a response or an item."""
    return f"{prefix}_{new_id()}"


def write_output(
    turn: Turn, tools: Mapping[str, ClientTool], *, summary: bool
) -> list[dict[str, Any]]:
    """Return the items of a turn; `tools` as returned by `client_tools`, `summary` as for `reasoning_item`."""
    output: list[dict[str, Any]] = []
    if turn.reasoning:
        output.append(reasoning_item(item_id("rs"), turn.reasoning, turn.seal, summary=summary))
    if turn.text:
        status = "incomplete" if turn.finished.reason == "length" else "completed"
        output.append(message_item(item_id("msg"), turn.text, turn.tokens, status))
    output.extend(
        call_item(
            item_id("fc"),
            call.id,
            call.name,
            call.arguments,
            "completed" if call.complete else "incomplete",
            tools.get(call.name),
        )
        for call in turn.calls
    )
    return output


def end_response(
    response: dict[str, Any], output: list[dict[str, Any]], finished: Finished
) -> dict[str, Any]:
    """Return a response with its output, status and token counts."""
    cut, usage = INCOMPLETE.get(finished.reason), finished.usage
    return {
        **response,
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": cut} if cut else None,
        "output": output,
        "usage": {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        },
    }


def content_part(kind: str, text: str, tokens: list[TokenInfo]) -> dict[str, Any]:
    """Return the one content part of a message or reasoning item."""
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {
        "type": "output_text",
        "text": text,
        "annotations": [],
        "logprobs": write_logprobs(tokens),
    }


def message_item(
    identifier: str, text: str, tokens: list[TokenInfo], status: str
) -> dict[str, Any]:
    """Return an assistant's message."""
    return {
        "id": identifier,
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [content_part("message", text, tokens)],
    }


def reasoning_item(identifier: str, text: str, seal: str, *, summary: bool) -> dict[str, Any]:
    """Return a reasoning item. `summary`: the thought is its summary, too, as some clients read no other text.

    The seal does not wait for `include`: clients that do not ask for it send it back all the same.
    """
    item: dict[str, Any] = {
        "id": identifier,
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": text}] if summary else [],
        "content": [content_part("reasoning", text, [])],
    }
    return {**item, "encrypted_content": seal} if seal else item


def call_item(
    identifier: str,
    call_id: str,
    name: str,
    arguments: str,
    status: str,
    tool: ClientTool | None = None,
) -> dict[str, Any]:
    """Return a call as the client knows its tool; None: a function of the same name."""
    item: dict[str, Any] = {"id": identifier, "call_id": call_id, "status": status}
    match tool:
        case ClientTool("custom"):
            return {
                **item,
                "type": "custom_tool_call",
                "name": name,
                "input": text_input(arguments),
            }
        case ClientTool("local_shell"):
            parsed = parsed_arguments(arguments or "{}")
            values = parsed if isinstance(parsed, dict) else {}
            action = {"type": "exec", "command": [], "env": {}, **shell_arguments(values)}
            return {**item, "type": "local_shell_call", "action": action}
    item |= {"type": "function_call", "name": name, "arguments": arguments}
    return item if tool is None else {**item, "name": tool.name, "namespace": tool.namespace}


def text_input(arguments: str) -> str:
    """Return the text in the arguments of a custom tool's call."""
    values = parsed_arguments(arguments)
    text = values.get("input") if isinstance(values, dict) else None
    return text if isinstance(text, str) else arguments
