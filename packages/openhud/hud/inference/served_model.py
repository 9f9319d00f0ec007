"""`ServedModel`: a model behind a provider's HTTP API, or any server of the same dialect, as a `ChatModel`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from urllib.request import getproxies

import httpx

from hud import exact_json
from hud.errors import RefusedError, UsageError
from hud.inference.connection_pool import Lanes
from hud.inference.dialects.chat_completions.codec import ChatCodec
from hud.inference.dialects.codec import ClientCodec, WireRequest
from hud.inference.dialects.request import GenerationRequest
from hud.inference.dialects.server_sent_events import BYTE_ORDER_MARK, events_in, is_stream
from hud.inference.endpoints import Endpoint
from hud.inference.request_window import RequestWindow, window_of
from hud.inference.retries import (
    BrokenAnswer,
    ErrorStatus,
    Provider,
    answered_error,
    ask,
    error_in,
)
from hud.trace import ChatMessage, Completion, Continuation, SamplingParams, ToolSpec

_UNREADABLE = (AttributeError, IndexError, KeyError, TypeError, ValueError)
_PROXIED = httpx.Limits(max_connections=1_000, max_keepalive_connections=100)


class ServedModel:
    """A model of a server; stateless, so that concurrent runs can share it."""

    with_tokens = False
    """The server continues exact token ids."""

    def __init__(
        self,
        model: str,
        endpoint: Endpoint,
        codec: ClientCodec,
        *,
        stream: bool = False,
        timeout_seconds: float = 600.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.name = model
        self.endpoint = endpoint
        self.codec = codec
        self.stream = stream
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
        """Return the model's next turn; failures of server and network are retried."""
        request = GenerationRequest(
            model=self.name,
            messages=messages,
            tools=tools,
            sampling=params,
            continuation=continuation if self.with_tokens else None,
            stream=self.stream,
        )
        wire = self.codec.request(self.name, request)
        headers = {
            "content-type": "application/json",
            **wire.headers,
            **self.codec.credentials(self.endpoint.key),
            **({"trace-id": trace_id} if trace_id else {}),
        }

        async def attempt() -> Completion | None:
            response = await self._post(wire, headers)
            try:
                return wire.completion(_answer(wire, response))
            except _UNREADABLE as error:
                # Fields are absent or of another type: the server's failure, never the agent's.
                shown = " ".join(response.text[:200].split())
                raise BrokenAnswer(
                    f"answered with something that cannot be read: {shown}"
                ) from error

        window = self._window()
        while True:
            completion = await ask(attempt, self.endpoint.provider, window=window)
            if completion is not None:
                return completion

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _post(self, wire: WireRequest, headers: dict[str, str]) -> httpx.Response:
        url = self.codec.url(self.endpoint.url, self.name, wire.action)
        response = await self._connected().post(
            url, content=exact_json.dumps(wire.body), headers=headers
        )
        if not response.is_success:
            answer = _json(response)
            shown = response.text if answer is None else answer
            raise ErrorStatus(response.status_code, shown, response.headers)
        self._window().heed(response.headers)
        return response

    def _window(self) -> RequestWindow:
        return window_of(self.endpoint.url, self.name)

    def _connected(self) -> httpx.AsyncClient:
        """Return the HTTP client; connections belong to an event loop, so a new loop gets a new one."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._loop = loop
            # Lanes are faster than httpx's pool, but do not support proxies.
            transport = self._transport or (None if getproxies() else Lanes())
            self._client = httpx.AsyncClient(
                timeout=self.timeout_seconds, transport=transport, limits=_PROXIED
            )
        return self._client


class OpenAIChatModel(ServedModel):
    """A model behind `POST {base_url}/chat/completions`.

    `default_tokens` is the bound of a turn that nobody chose, if the requests have one. A server that refuses it, since its
    context or its longest answer is smaller, gets requests without a bound.
    """

    default_tokens: int | None = None

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
        extra = dict(extra or {})
        self.checkpoint = checkpoint
        """Checkpoint that answers; None: the head."""
        if checkpoint is not None:
            extra["checkpoint"] = checkpoint
        self._refuses_default = False
        codec = ChatCodec(extra)
        if stream and codec.with_tokens:
            raise UsageError(f"{model!r}: token ids come with whole answers; leave stream out.")
        self.with_tokens = codec.with_tokens
        url = base_url.rstrip("/")
        named = Provider(f"{url}/chat/completions", "HUD_API_KEY" if api_key else None)
        super().__init__(
            model,
            Endpoint(url, api_key or "", named),
            codec,
            stream=stream,
            timeout_seconds=timeout_seconds,
            transport=transport,
        )

    async def complete(
        self,
        messages: list[ChatMessage],
        tools: list[ToolSpec],
        params: SamplingParams,
        *,
        continuation: Continuation | None = None,
        trace_id: str | None = None,
    ) -> Completion:
        """Return the model's next turn, bounded by `params.max_tokens` unless the server refuses the default."""
        context: dict[str, Any] = {"continuation": continuation, "trace_id": trace_id}
        by_default = params.max_tokens is not None and params.max_tokens == self.default_tokens
        unbounded = replace(params, max_tokens=None)
        if by_default and self._refuses_default:
            return await super().complete(messages, tools, unbounded, **context)
        try:
            return await super().complete(messages, tools, params, **context)
        except RefusedError as refusal:
            if not by_default or refusal.everywhere:
                raise
            completion = await super().complete(messages, tools, unbounded, **context)
            self._refuses_default = True
            return completion


def _answer(wire: WireRequest, response: httpx.Response) -> dict[str, Any]:
    """Return the answer in a response, streamed or whole, whatever was requested.

    Raises `AnsweredError` for an error, and `BrokenAnswer` for anything that is no answer.
    """
    answer = _json(response)
    if isinstance(answer, dict):
        error = error_in(answer)
        if error is not None:
            raise answered_error(error)
        return answer
    if "event-stream" in response.headers.get("content-type", "") or is_stream(response.content):
        return wire.joined(events_in(response.content, wire.done))
    shown = " ".join(response.text[:200].split()) or "(nothing)"
    raise BrokenAnswer(f"answered with something that {wire.lacks}: {shown}")


def _json(response: httpx.Response) -> Any:
    try:
        return exact_json.loads(response.content.removeprefix(BYTE_ORDER_MARK))
    except exact_json.JSONDecodeError:
        return None
