"""A model behind `models/{model}:generateContent`, as a `ChatModel`, through Google's own SDK."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx
import orjson
from pydantic import ValidationError

from hud.errors import UsageError
from hud.inference.dialects.gemini.answers import SafetyPolicy, joined, read_answer
from hud.inference.dialects.gemini.requests import contents, system_instruction
from hud.inference.dialects.gemini.tools import Declared, declare, sees_results
from hud.inference.endpoints import Endpoint
from hud.inference.retries import BrokenAnswer, ask
from hud.trace import ChatMessage, Completion, Continuation, SamplingParams, ToolSpec

if TYPE_CHECKING:
    from google import genai

_LIMITS = httpx.Limits(max_connections=1_000, max_keepalive_connections=100)
"""As the other providers' SDKs have it; more runs than this wait for one another."""


class GeminiModel:
    """Asks one model; may be used by many runs at once, for it keeps nothing of any."""

    def __init__(
        self,
        model: str,
        endpoint: Endpoint,
        *,
        generation: dict[str, Any] | None = None,
        hosted_tools: list[dict[str, Any]] | None = None,
        computer: bool = False,
        safety: SafetyPolicy = "acknowledge",
        stream: bool = False,
        timeout_seconds: float = 600.0,
    ) -> None:
        self.name = model
        self.endpoint = endpoint
        self.generation = dict(generation or {})
        self.hosted_tools = list(hosted_tools or [])
        self.computer = computer
        self.safety = safety
        self.stream = stream
        self.timeout_seconds = timeout_seconds
        self._client: genai.Client | None = None
        self._http: httpx.AsyncClient | None = None
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
        """Return the model's next turn; faults of the provider and the network are retried."""
        del continuation
        client = self._connected()
        declared = declare(tools, self.name, self.hosted_tools, computer=self.computer)
        request = self._request(messages, declared, params, trace_id)

        async def attempt() -> Completion:
            answer = await _read(client, request, stream=self.stream)
            return read_answer(answer, self.name, declared, self.safety)

        return await ask(attempt, self.endpoint.provider)

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aio.aclose()
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    def _request(
        self,
        messages: list[ChatMessage],
        declared: Declared,
        params: SamplingParams,
        trace_id: str | None,
    ) -> dict[str, Any]:
        """Return the arguments of the SDK's call; it reads bytes out of JSON, not out of plain data."""
        from google.genai import types

        config: dict[str, Any] = {
            **self.generation,
            "automatic_function_calling": {"disable": True},
        }
        if params.max_tokens is not None:
            config["max_output_tokens"] = params.max_tokens
        instruction = system_instruction(messages)
        if instruction is not None:
            config["system_instruction"] = instruction
        if declared.tools:
            config["tools"] = declared.tools
        if declared.mixed:
            config["tool_config"] = {"include_server_side_tool_invocations": True}
        if trace_id is not None:
            config["http_options"] = {"headers": {"trace-id": trace_id}}
        spoken = contents(messages, declared, sees_results=sees_results(self.name))
        return {
            "model": self.name,
            "contents": [types.Content.model_validate_json(orjson.dumps(one)) for one in spoken],
            "config": types.GenerateContentConfig.model_validate_json(orjson.dumps(config)),
        }

    def _connected(self) -> genai.Client:
        """Return the SDK's client; connections belong to an event loop, so a new loop gets a new one."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            try:
                from google import genai
                from google.genai import types
            except ImportError:
                raise UsageError(
                    "Gemini needs Google's SDK: pip install 'openhud[agents]'."
                ) from None
            self._loop = loop
            # Given to the SDK, since of itself it limits the time of a whole stream, not of its next piece.
            self._http = httpx.AsyncClient(
                timeout=self.timeout_seconds, follow_redirects=True, limits=_LIMITS
            )
            self._client = genai.Client(
                api_key=self.endpoint.key,
                vertexai=False,
                http_options=types.HttpOptions(
                    base_url=self.endpoint.url,
                    api_version="v1beta",
                    timeout=max(1, round(self.timeout_seconds * 1000)),
                    retry_options=types.HttpRetryOptions(attempts=1),  # `ask` repeats.
                    httpx_async_client=self._http,
                ),
            )
        return self._client


async def _read(client: genai.Client, request: dict[str, Any], *, stream: bool) -> dict[str, Any]:
    """Return the answer as plain data, bytes as base64; raises `BrokenAnswer` where it is none."""
    from google.genai.errors import UnknownApiResponseError

    try:
        if not stream:
            return _as_dict(await client.aio.models.generate_content(**request))
        chunks = await client.aio.models.generate_content_stream(**request)
        return joined([_as_dict(chunk) async for chunk in chunks])
    except (UnknownApiResponseError, ValidationError, json.JSONDecodeError) as error:
        raise BrokenAnswer(f"answered with what cannot be read: {error}") from error


def _as_dict(answer: Any) -> dict[str, Any]:
    found: dict[str, Any] = answer.model_dump(mode="json", exclude_none=True)
    return found
