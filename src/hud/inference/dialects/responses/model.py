"""A model behind `POST /responses`, as a `ChatModel`, through OpenAI's own SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hud.errors import UsageError
from hud.inference.dialects.responses.computer import ComputerTool
from hud.inference.dialects.responses.input import input_items, instructions_of
from hud.inference.dialects.responses.output import SafetyPolicy, read_response
from hud.inference.dialects.responses.tools import Declared, declare
from hud.inference.endpoints import Endpoint
from hud.inference.retries import AnsweredError, BrokenAnswer, ask
from hud.trace import ChatMessage, Completion, Continuation, SamplingParams, ToolSpec

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_WITHOUT_REASONING = ("gpt-3", "gpt-4", "chatgpt-")
_OVER = ("response.completed", "response.incomplete", "response.failed")
_LEAST_OUTPUT = 16
"""Fewer tokens than this the provider does not let one ask for."""


class ResponsesModel:
    """Asks one model; may be used by many runs at once, for it keeps nothing of any."""

    def __init__(
        self,
        model: str,
        endpoint: Endpoint,
        *,
        request: dict[str, Any] | None = None,
        computer: ComputerTool | None = None,
        hosted_tools: Sequence[dict[str, Any]] = (),
        safety: SafetyPolicy = "acknowledge",
        stream: bool = False,
        timeout_seconds: float = 600.0,
    ) -> None:
        self.name = model
        self.endpoint = endpoint
        self.request = dict(request or {})
        self.computer = computer
        self.hosted_tools = list(hosted_tools)
        self.safety = safety
        self.stream = stream
        self.timeout_seconds = timeout_seconds
        self._client: AsyncOpenAI | None = None
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
        declared = declare(tools, self.computer, self.hosted_tools)
        body = self._body(messages, declared, params)
        if trace_id is not None:
            body["extra_headers"] = {"trace-id": trace_id}

        async def attempt() -> Completion:
            response = await (self._streamed(body) if self.stream else self._whole(body))
            return read_response(response, self.name, declared, safety=self.safety)

        return await ask(attempt, self.endpoint.provider)

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _body(
        self, messages: list[ChatMessage], declared: Declared, params: SamplingParams
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.name,
            "input": input_items(messages, declared.wire),
            # Nothing of a task stays with the provider; what it must be told again, it is told.
            "store": False,
            **self.request,
        }
        instructions = instructions_of(messages)
        if instructions is not None:
            body["instructions"] = instructions
        if declared.tools:
            body["tools"] = declared.tools
        if not self.name.startswith(_WITHOUT_REASONING):
            body["include"] = ["reasoning.encrypted_content"]
        if params.max_tokens is not None:
            body["max_output_tokens"] = max(_LEAST_OUTPUT, params.max_tokens)
        return body

    async def _whole(self, body: dict[str, Any]) -> dict[str, Any]:
        response = await self._connected().responses.create(**body)
        return _as_dict(response)

    async def _streamed(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the response that a stream ends with; one that ends without it is broken."""
        items: dict[int, dict[str, Any]] = {}
        stream = await self._connected().responses.create(**body, stream=True)
        try:
            async for event in stream:
                kind = getattr(event, "type", None)
                if kind == "error":
                    raise AnsweredError(event.code, event.message)
                if kind == "response.output_item.done":
                    items[event.output_index] = _as_dict(event.item)
                if kind in _OVER:
                    response = _as_dict(event.response)
                    # The items' own events hold the reasoning as it is to be sent back.
                    response["output"] = [items[index] for index in sorted(items)] or (
                        response.get("output") or []
                    )
                    return response
        finally:
            await stream.close()
        raise BrokenAnswer("broke its stream off before the response was complete")

    def _connected(self) -> AsyncOpenAI:
        """Return the SDK's client; connections belong to an event loop, so a new loop gets a new one."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            try:
                from openai import AsyncOpenAI
            except ImportError:
                raise UsageError(
                    "OpenAI's agents need its SDK: pip install 'openhud[agents]'."
                ) from None
            self._loop = loop
            self._client = AsyncOpenAI(
                api_key=self.endpoint.key,
                base_url=self.endpoint.url,
                timeout=self.timeout_seconds,
                max_retries=0,  # `ask` repeats, by one policy for all.
            )
        return self._client


def _as_dict(value: Any) -> dict[str, Any]:
    """Return what the SDK read as the JSON that came, without what it fills in."""
    if not hasattr(value, "to_dict"):
        raise BrokenAnswer(f"answered with something that is no response: {str(value)[:200]}")
    found: dict[str, Any] = value.to_dict(mode="json", exclude_unset=True, warnings=False)
    return found
