"""The source `openai`: logs of requests and answers, arrays of messages, and pairs of preferences.

A row is one call, `{"request": {"messages": ...}, "response": {"choices": ...}}` (or `input` and `output`, and the Responses API's
bodies), or one conversation, `{"messages": [...]}`, or `{"conversations": [...]}` in ShareGPT's form. A conversation may have `tools`,
and a `weight` of 0 on turns that are not trained on. A file that is an array of messages is one conversation. Calls are linked to runs
by the messages that they repeat. A row with `chosen` and `rejected`, and a `prompt` where they do not repeat it, is two runs of one
prompt, with the rewards 1 and 0 (as https://huggingface.co/docs/trl/dataset_formats describes it).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

from hud import exact_json
from hud.errors import UsageError
from hud.exchange import ForeignRun, RunSource
from hud.exchange.supervision import PAIR, TOOL_SPECS, WEIGHT
from hud.trace import ChatMessage
from hud.trace.recorded_time import now
from hud.trace.steps import Usage
from hud_integrations.sources.chat_messages import read_messages, read_tools
from hud_integrations.sources.conversations import Conversation, Conversations, ModelCall
from hud_integrations.sources.json_lines import leading_rows, rows_of, time_of

_REQUESTS = ("request", "kwargs", "input", "body")
_ANSWERS = ("response", "output", "completion")
_REWARDS = ("reward", "score")
_MESSAGES = ("messages", "input", "prompt")
_CONVERSATIONS = ("messages", "conversations")
_SIDES = {"chosen": 1.0, "rejected": 0.0}
"""Fields of a pair of preferences, with the rewards of their runs."""


def is_log(path: Path) -> bool:
    """Return whether the first rows of a file are calls, conversations or pairs."""
    rows = leading_rows(path)
    return bool(rows) and all(
        _is_call(row) or _is_conversation(row) or _is_pair(row) for row in rows[:3]
    )


def read_log(path: Path) -> Iterator[ForeignRun]:
    """Yield the conversations of a file. Raises `UsageError` for a row in another form."""
    rows = list(rows_of(path))
    if rows and all("role" in row for row in rows):
        rows = [{"messages": rows}]
    yield from read_rows(rows, str(path))


def read_rows(
    rows: Iterable[dict[str, Any]], source: str, *, ids: str = "openai"
) -> Iterator[ForeignRun]:
    """Yield the conversations of rows. Raises `UsageError` for one in another form.

    `source` names them in errors, `ids` is the space of their ids.
    """
    calls, repeated = Conversations(), Counter[str]()
    for number, row in enumerate(rows, 1):
        # Equal rows without ids are different calls.
        name = f"{ids}:{_name(row)}"
        repeated[name] += 1
        identifier = name if repeated[name] == 1 else f"{name}:{repeated[name]}"
        if _is_call(row):
            calls.add(_call_of(row, identifier))
        elif _is_conversation(row) or _is_pair(row):
            try:
                both = _is_pair(row)
                yield from _pair(row, identifier) if both else [_conversation(row, identifier)]
            except UsageError as error:
                raise UsageError(f"Row {number} of {source}: {error}") from error
        else:
            raise UsageError(
                f"Row {number} of {source} is no call of a model: it has no messages, or no answer."
            )
    for conversation in calls.all:
        yield conversation.run()


def usage_of(usage: Any) -> Usage | None:
    """Return token counts of a provider's answer; None without any."""
    if not isinstance(usage, dict):
        return None
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    cached = usage.get("cache_read_input_tokens", details.get("cached_tokens"))
    prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
    if "cache_read_input_tokens" in usage:  # Anthropic counts cached tokens apart.
        prompt = sum(
            usage.get(name) or 0
            for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        )
    return Usage(
        prompt_tokens=prompt or 0,
        completion_tokens=usage.get("completion_tokens", usage.get("output_tokens")) or 0,
        cached_tokens=cached or 0,
    )


def answer_of(response: Any) -> tuple[ChatMessage | None, str | None]:
    """Return the message of an answer, and its finish reason; None without a message."""
    if isinstance(response, dict) and response.get("choices"):
        choice = response["choices"][0]
        messages = read_messages([{"role": "assistant", **(choice.get("message") or {})}])
        return messages[0], choice.get("finish_reason")
    if isinstance(response, dict) and isinstance(response.get("output"), list):
        response = response["output"]
    reason = response.get("stop_reason") if isinstance(response, dict) else None
    if isinstance(response, str):
        response = {"role": "assistant", "content": response}
    messages = read_messages(response if isinstance(response, list) else [response])
    turns = [message for message in messages if message["role"] == "assistant"]
    return (turns[-1] if turns else None), reason


def _is_call(row: dict[str, Any]) -> bool:
    return _first(row, _ANSWERS) is not None and _request(row) is not None


def _is_conversation(row: dict[str, Any]) -> bool:
    messages = _first(row, _CONVERSATIONS) or [row]
    return isinstance(messages, list) and all(
        isinstance(message, dict) and ("role" in message or {"from", "value"} <= message.keys())
        for message in messages
    )


def _is_pair(row: dict[str, Any]) -> bool:
    return all(isinstance(row.get(side), str | list) for side in _SIDES)


def _request(row: dict[str, Any]) -> dict[str, Any] | None:
    request = _first(row, _REQUESTS)
    request = {"messages": request} if isinstance(request, list | str) else request or row
    return request if isinstance(request, dict) and _first(request, _MESSAGES) else None


def _call_of(row: dict[str, Any], identifier: str) -> ModelCall:
    request, response = _request(row) or {}, _first(row, _ANSWERS)
    answer, reason = answer_of(response)
    body = response if isinstance(response, dict) else {}
    system = request.get("instructions") or request.get("system")
    opening = [] if system is None else read_messages([{"role": "system", "content": system}])
    return ModelCall(
        id=identifier,
        messages=[*opening, *read_messages(_first(request, _MESSAGES))],
        answer=answer or {"role": "assistant", "content": None},
        model=body.get("model") or request.get("model"),
        usage=usage_of(body.get("usage") or row.get("usage")),
        finish_reason=reason,
        started_at=time_of(_first(row, ("started_at", "timestamp", "created_at", "created")))
        or time_of(body.get("created", body.get("created_at"))),
        ended_at=time_of(row.get("ended_at")),
        error=None if answer else "The log has no answer of this call.",
        reward=_reward(row),
    )


def _conversation(row: dict[str, Any], identifier: str) -> ForeignRun:
    messages = read_messages(_first(row, _CONVERSATIONS) or [row])
    return _run_of(row, identifier, messages).run(reward=_reward(row))


def _pair(row: dict[str, Any], identifier: str) -> Iterator[ForeignRun]:
    """Yield the better and the worse run of a pair. Raises `UsageError` for texts without a prompt."""
    prompt = read_messages(row.get("prompt") or [])
    sides = [_answer(row[side]) for side in _SIDES]
    if all(messages and messages[0]["role"] != "assistant" for messages in sides):
        # Both repeat the prompt.
        equal = takewhile(lambda both: both[0] == both[1], zip(*sides, strict=False))
        prompt = [first for first, _ in equal]
        sides = [messages[len(prompt) :] for messages in sides]
    if not prompt or not all(sides):
        raise UsageError(
            "a pair of preferences has a prompt, and two answers to it: prompt, chosen and rejected."
        )
    context = [
        {**message, WEIGHT: 0} if message["role"] == "assistant" else message for message in prompt
    ]
    for (side, reward), answer in zip(_SIDES.items(), sides, strict=True):
        conversation = _run_of(row, f"{identifier}:{side}", [*context, *answer])
        conversation.extra[PAIR] = identifier
        yield conversation.run(reward=reward)


def _answer(side: str | list[Any]) -> list[ChatMessage]:
    """Return the messages of a side of a pair; a text is an answer."""
    return read_messages(
        [{"role": "assistant", "content": side}] if isinstance(side, str) else side
    )


def _run_of(row: dict[str, Any], identifier: str, messages: list[ChatMessage]) -> Conversation:
    """Return messages as a conversation, with the system prompt, the tools, the model and the time of its row."""
    tools = [tool.model_dump() for tool in read_tools(row.get("tools"))]
    conversation = Conversation(identifier, {TOOL_SPECS: tools} if tools else {})
    at = time_of(row.get("timestamp", row.get("created_at")))
    system = row.get("system")
    opening = read_messages([{"role": "system", "content": system}]) if system else []
    conversation.add([*opening, *messages], at or now())
    conversation.model = row.get("model")
    return conversation


def _reward(row: dict[str, Any]) -> float | None:
    reward = _first(row, _REWARDS)
    return float(reward) if isinstance(reward, int | float) else None


def _name(row: dict[str, Any]) -> str:
    """Return the id of a row: its own, its answer's, or one of its content."""
    response = _first(row, _ANSWERS)
    answered = response.get("id") if isinstance(response, dict) else None
    identifier = row.get("id") or answered
    if identifier:
        return str(identifier)
    content = exact_json.dumps(row, option=exact_json.OPT_SORT_KEYS, default=str)
    return hashlib.sha256(content).hexdigest()[:32]


def _first(row: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


openai = RunSource(
    summary="logs of requests and answers of chat models, or arrays of messages",
    recognizes=is_log,
    read=read_log,
)
