"""Chat completions over HTTP, as a `ChatModel`: requests and answers.

It speaks to any server of the dialect. With `return_token_ids` it also asks for the sampled ids and sends
the exact prefix of later turns, so that a served policy is trained on what it sampled; such a server is ours, and
reads conversations as we write them. For others, they are written as the dialect's documentation has them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx
import orjson

from hud.errors import InfrastructureFault, UsageError
from hud.inference.connection_pool import Lanes
from hud.inference.dialects.chat_completions.messages import documented_messages
from hud.inference.dialects.chat_completions.stream import joined
from hud.inference.prices import cost_usd
from hud.inference.retries import BrokenAnswer, Provider, ask
from hud.inference.tool_names import wire_names
from hud.trace import (
    ChatMessage,
    Completion,
    Continuation,
    Sample,
    SamplingParams,
    ToolCall,
    ToolSpec,
    Usage,
    new_id,
    wire_messages,
)

LONGEST_NAME = 64
FILTERED = "The server's content filter stopped the turn."
_SETTINGS = ("max_tokens", "temperature", "top_p", "top_k", "seed", "reasoning_effort")


class _ErrorStatus(Exception):
    """An answer with an error status, as `ask` reads it."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(response.text[:500])
        self.response = response
        self.status_code = response.status_code
        try:
            self.body = orjson.loads(response.content)
        except orjson.JSONDecodeError:
            self.body = response.text


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
        stream: bool = False,
        timeout_seconds: float = 600.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.name = model
        self.url = base_url.rstrip("/") + "/chat/completions"
        self.extra = dict(extra or {})
        if checkpoint is not None:
            self.extra["checkpoint"] = checkpoint
        self.with_tokens = bool(self.extra.get("return_token_ids"))
        if self.with_tokens:
            self.extra["logprobs"] = True
        if stream and self.with_tokens:
            raise UsageError(f"{model!r}: token ids come with whole answers; leave stream out.")
        if stream:
            self.extra |= {"stream": True, "stream_options": {"include_usage": True}}
        self.stream = stream
        self.provider = Provider(self.url, "HUD_API_KEY" if api_key else None)
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
        asked = continuation if self.with_tokens else None
        # A server of ours renders the names that were trained with.
        names = [] if self.with_tokens else [tool.name for tool in tools]
        wire = wire_names(names, LONGEST_NAME)
        body = orjson.dumps(self._body(messages, tools, params, asked, wire))
        headers = {**self.headers, "trace-id": trace_id} if trace_id else self.headers
        answer = await ask(lambda: self._post(body, headers), self.provider)
        completion = read_answer(answer, self.name, asked, params.temperature)
        ours = {sent: name for name, sent in wire.items()}
        for call in completion.tool_calls:
            call.name = ours.get(call.name, call.name)
        return completion

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
        wire: Mapping[str, str],
    ) -> dict[str, Any]:
        if self.with_tokens:
            messages = wire_messages(messages)
        else:
            messages = documented_messages(messages, wire)
        body: dict[str, Any] = {"model": self.name, "messages": messages}
        if tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {**tool.function(), "name": wire.get(tool.name, tool.name)},
                }
                for tool in tools
            ]
        # Only what was set: a server's own defaults, and its refusals, stay its own.
        given = {name: getattr(params, name) for name in _SETTINGS}
        body.update({name: value for name, value in given.items() if value is not None})
        if params.stop:
            body["stop"] = params.stop
        body.update(self.extra)
        if continuation is not None:
            body["prompt_token_ids"] = continuation.token_ids
            body["continuation_from"] = continuation.covered
        return body

    async def _post(self, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
        response = await self._connected().post(self.url, content=body, headers=headers)
        if not response.is_success:
            raise _ErrorStatus(response)
        if self.stream and "json" not in response.headers.get("content-type", ""):
            return joined(response.content)
        return _json_object(response)

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
    answer: dict[str, Any],
    model: str,
    continuation: Continuation | None,
    temperature: float | None = None,
) -> Completion:
    """Return the completion that a chat-completions answer holds; raises `InfrastructureFault` if none.

    `temperature` was asked for; a sample has the one that the server says, else that, else the dialect's default of 1.
    """
    try:
        choice = answer["choices"][0]
        message = choice["message"]
    except (KeyError, IndexError, TypeError):
        raise InfrastructureFault(
            f"The server of {model!r} answered without choices: {str(answer)[:200]}"
        ) from None
    calls = [_tool_call(call) for call in message.get("tool_calls") or []]
    reason = _finish_reason(choice, calls)
    sample = _sample(choice, answer, 1.0 if temperature is None else temperature)
    extended = True
    if continuation is not None and sample is not None:
        prefix = continuation.token_ids
        extended = sample.prompt_token_ids[: len(prefix)] == prefix
    return Completion(
        content=message.get("content"),
        reasoning=message.get("reasoning_content") or message.get("reasoning"),
        tool_calls=calls,
        finish_reason=reason,
        refusal=message.get("refusal") or (FILTERED if reason == "content_filter" else None),
        model=answer.get("model") or model,
        usage=_usage(answer.get("usage") or {}, model),
        sample=sample,
        extended=extended,
    )


def _finish_reason(choice: dict[str, Any], calls: list[ToolCall]) -> str:
    reason: str = choice.get("finish_reason") or ("tool_calls" if calls else "stop")
    # The dialect has no word for it; our gateway says it beside the reason.
    malformed = choice.get("stop_reason") == "malformed_tool_call" and reason != "length"
    return "malformed_tool_call" if malformed else reason


def _tool_call(call: dict[str, Any]) -> ToolCall:
    try:
        name = call["function"]["name"]
        text = call["function"].get("arguments") or "{}"
    except (KeyError, TypeError, AttributeError):
        raise InfrastructureFault(
            f"The server answered with a tool call that is none: {str(call)[:200]}"
        ) from None
    # Some servers write the object itself.
    arguments = text
    if isinstance(text, str):
        try:
            arguments = orjson.loads(text)
        except orjson.JSONDecodeError:
            arguments = text
        if not isinstance(arguments, dict):
            arguments = text
    # Some give no id; what the tool answers must still find its call.
    return ToolCall(id=call.get("id") or f"call_{new_id()[:12]}", name=name, arguments=arguments)


def _sample(choice: dict[str, Any], answer: dict[str, Any], temperature: float) -> Sample | None:
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
        swaps=choice.get("swaps") or [],
        temperature=_number(choice.get("temperature"), temperature),
    )


def _number(said: Any, otherwise: float) -> float:
    is_number = isinstance(said, int | float) and not isinstance(said, bool)
    return float(said) if is_number else otherwise


def _usage(usage: dict[str, Any], model: str) -> Usage:
    details = usage.get("prompt_tokens_details") or {}
    prompt, drawn = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    cached = details.get("cached_tokens") or 0
    cost = usage.get("cost")
    if cost is None:
        cost = cost_usd(model, prompt_tokens=prompt, completion_tokens=drawn, cached_tokens=cached)
    return Usage(prompt_tokens=prompt, completion_tokens=drawn, cached_tokens=cached, cost_usd=cost)


def _json_object(response: httpx.Response) -> dict[str, Any]:
    try:
        answer = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict) or not answer.get("choices"):
        shown = " ".join(response.text[:200].split())
        raise BrokenAnswer(f"answered with something that has no choices: {shown}")
    return answer
