"""Chat completions over HTTP, as a `ChatModel`: requests, answers, retries.

It speaks to any server of the dialect. With `return_token_ids` it also asks for the sampled ids and sends
the exact prefix of later turns, so that a served policy is trained on what it sampled.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx
import orjson

from hud.agents.lanes import Lanes
from hud.errors import InfrastructureFault, UsageError
from hud.trace import (
    ChatMessage,
    Completion,
    Continuation,
    Sample,
    SamplingParams,
    ToolCall,
    ToolSpec,
    Usage,
    wire_messages,
)

ATTEMPTS = 5
LONGEST_WAIT_SECONDS = 30.0
RETRIED_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_DEFAULTS = SamplingParams()


class OpenAIChatModel:
    """A model behind `POST {base_url}/chat/completions`."""

    def __init__(
        self,
        model: str,
        *,
        base_url: str,
        api_key: str | None = None,
        checkpoint: str | None = None,
        extra: dict[str, Any] | None = None,
        timeout_seconds: float = 600.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.name = model
        self.url = base_url.rstrip("/") + "/chat/completions"
        self.extra = dict(extra or {})
        if checkpoint is not None:
            self.extra["checkpoint"] = checkpoint
        if self.extra.get("return_token_ids"):
            self.extra["logprobs"] = True
        self.headers = {"content-type": "application/json"}
        if api_key:
            self.headers["authorization"] = f"Bearer {api_key}"
        self.timeout_seconds = timeout_seconds
        self._transport = transport
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def complete(
        self,
        messages: list[ChatMessage],
        tools: list[ToolSpec],
        params: SamplingParams,
        *,
        continuation: Continuation | None = None,
        trace_id: str | None = None,
    ) -> Completion:
        """Return the model's next turn; faults of the server and the network are retried."""
        asked = continuation if self.extra.get("return_token_ids") else None
        body = orjson.dumps(self._body(messages, tools, params, asked))
        headers = {**self.headers, "trace-id": trace_id} if trace_id else self.headers
        return read_answer(await self._post(body, headers), self.name, asked)

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _body(
        self,
        messages: list[ChatMessage],
        tools: list[ToolSpec],
        params: SamplingParams,
        continuation: Continuation | None,
    ) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.name, "messages": wire_messages(messages)}
        if tools:
            body["tools"] = [{"type": "function", "function": tool.function()} for tool in tools]
        # Only what differs from our defaults: a server's own defaults, and its refusals, stay its own.
        for field in ("max_tokens", "temperature", "top_p", "top_k", "stop", "seed"):
            value = getattr(params, field)
            if value != getattr(_DEFAULTS, field):
                body[field] = value
        body.update(self.extra)
        if continuation is not None:
            body["prompt_token_ids"] = continuation.token_ids
            body["continuation_from"] = continuation.covered
        return body

    async def _post(self, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
        wait = 0.5
        for attempt in range(1, ATTEMPTS + 1):
            asked_for: float | None = None
            try:
                response = await self._connected().post(self.url, content=body, headers=headers)
            except httpx.HTTPError as error:
                problem = f"{self.url} did not answer: {type(error).__name__}: {error}"
            else:
                if response.is_success:
                    return _json_object(response, self.url)
                problem = f"{self.url} answered {response.status_code}: {_detail(response)}"
                if response.status_code not in RETRIED_STATUSES:
                    raise UsageError(problem)
                asked_for = _retry_after(response)
            if attempt == ATTEMPTS:
                raise InfrastructureFault(f"{problem} (after {ATTEMPTS} attempts).")
            # Jitter keeps a thousand refused requests from coming back in one instant.
            await asyncio.sleep(
                asked_for if asked_for is not None else wait * random.uniform(0.5, 1.5)
            )
            wait = min(wait * 2, LONGEST_WAIT_SECONDS)
        raise AssertionError("unreachable")

    def _connected(self) -> httpx.AsyncClient:
        """Return the HTTP client; connections belong to an event loop, so a new loop gets a new one."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._loop = loop
            self._client = httpx.AsyncClient(
                timeout=self.timeout_seconds, transport=self._transport or Lanes()
            )
        return self._client


def read_answer(
    answer: dict[str, Any], model: str, continuation: Continuation | None
) -> Completion:
    """Return the completion that a chat-completions answer holds; raises `InfrastructureFault` if none."""
    try:
        choice = answer["choices"][0]
        message = choice["message"]
    except (KeyError, IndexError, TypeError):
        raise InfrastructureFault(
            f"The server of {model!r} answered without choices: {str(answer)[:200]}"
        ) from None
    calls = [_tool_call(call) for call in message.get("tool_calls") or []]
    sample = _sample(choice, answer)
    extended = True
    if continuation is not None and sample is not None:
        prefix = continuation.token_ids
        extended = sample.prompt_token_ids[: len(prefix)] == prefix
    return Completion(
        content=message.get("content"),
        reasoning=message.get("reasoning_content") or message.get("reasoning"),
        tool_calls=calls,
        finish_reason=_finish_reason(choice, calls),
        refusal=message.get("refusal"),
        model=answer.get("model") or model,
        usage=_usage(answer.get("usage") or {}),
        sample=sample,
        extended=extended,
    )


def _finish_reason(choice: dict[str, Any], calls: list[ToolCall]) -> str:
    reason: str = choice.get("finish_reason") or ("tool_calls" if calls else "stop")
    # The dialect has no word for it; our gateway says it beside the reason.
    malformed = choice.get("stop_reason") == "malformed_tool_call" and reason != "length"
    return "malformed_tool_call" if malformed else reason


def _tool_call(call: dict[str, Any]) -> ToolCall:
    function = call["function"]
    text = function.get("arguments") or "{}"
    try:
        arguments = orjson.loads(text)
    except orjson.JSONDecodeError:
        arguments = text
    if not isinstance(arguments, dict):
        arguments = text
    return ToolCall(id=call.get("id") or "", name=function["name"], arguments=arguments)


def _sample(choice: dict[str, Any], answer: dict[str, Any]) -> Sample | None:
    ids = choice.get("token_ids")
    prompt_ids, chunks = choice.get("prompt_token_ids"), choice.get("prompt_chunks")
    if ids is None or (prompt_ids is None and chunks is None):
        return None
    logprobs = [entry["logprob"] for entry in (choice.get("logprobs") or {}).get("content") or []]
    if len(logprobs) != len(ids):
        raise InfrastructureFault(
            f"The server of {answer.get('model')!r} gave {len(ids)} token ids but {len(logprobs)} logprobs."
        )
    return Sample(
        prompt_token_ids=prompt_ids or [],
        prompt_chunks=chunks,
        output_token_ids=ids,
        output_logprobs=logprobs,
        checkpoint=choice.get("checkpoint"),
        temperature=choice.get("temperature", 1.0),
    )


def _usage(usage: dict[str, Any]) -> Usage:
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        prompt_tokens=usage.get("prompt_tokens") or 0,
        completion_tokens=usage.get("completion_tokens") or 0,
        cached_tokens=details.get("cached_tokens") or 0,
        cost_usd=usage.get("cost"),
    )


def _json_object(response: httpx.Response, url: str) -> dict[str, Any]:
    try:
        answer = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise InfrastructureFault(
            f"{url} answered with something that is not a JSON object: {response.text[:200]}"
        )
    return answer


def _detail(response: httpx.Response) -> str:
    try:
        body = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        return response.text[:500]
    if isinstance(body, dict):
        detail = body.get("detail") or body.get("error") or body
        if isinstance(detail, dict) and "message" in detail:
            detail = detail["message"]
        return str(detail)[:500]
    return str(body)[:500]


def _retry_after(response: httpx.Response) -> float | None:
    try:
        seconds = float(response.headers["retry-after"])
    except (KeyError, ValueError):
        return None
    return min(max(seconds, 0.0), LONGEST_WAIT_SECONDS)
