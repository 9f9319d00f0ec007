"""`ServedModel`: a model behind a provider's HTTP API, or any server of the same dialect, as a `ChatModel`."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.request import getproxies

import httpx

from hud import exact_json
from hud.errors import UsageError
from hud.inference.connection_pool import Lanes
from hud.inference.dialects.chat_completions.codec import ChatCodec
from hud.inference.dialects.codec import ClientCodec, WireRequest
from hud.inference.dialects.request import GenerationRequest
from hud.inference.dialects.server_sent_events import events_in
from hud.inference.endpoints import Endpoint, credentials, url_of
from hud.inference.retries import BrokenAnswer, ErrorStatus, Provider, ask
from hud.trace import ChatMessage, Completion, Continuation, SamplingParams, ToolSpec

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
            **credentials(self.codec.family, self.endpoint.key),
            **({"trace-id": trace_id} if trace_id else {}),
        }

        async def attempt() -> Completion | None:
            return wire.completion(await self._post(wire, headers))

        while True:
            completion = await ask(attempt, self.endpoint.provider)
            if completion is not None:
                return completion

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _post(self, wire: WireRequest, headers: dict[str, str]) -> dict[str, Any]:
        url = url_of(self.codec.family, self.endpoint.url, self.name, wire.action)
        body = exact_json.dumps(wire.body)
        response = await self._connected().post(url, content=body, headers=headers)
        answer = _json(response)
        if not response.is_success:
            shown = response.text if answer is None else answer
            raise ErrorStatus(response.status_code, shown, response.headers)
        if wire.streams and "json" not in response.headers.get("content-type", ""):
            return wire.joined(events_in(response.content))
        if not isinstance(answer, dict):
            shown = " ".join(response.text[:200].split())
            raise BrokenAnswer(f"answered with something that {wire.lacks}: {shown}")
        return answer

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
        extra = dict(extra or {})
        self.checkpoint = checkpoint
        """Checkpoint that answers; None: the head."""
        if checkpoint is not None:
            extra["checkpoint"] = checkpoint
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


def _json(response: httpx.Response) -> Any:
    try:
        return exact_json.loads(response.content)
    except exact_json.JSONDecodeError:
        return None
