"""A model behind `POST /v1/messages`, as a `ChatModel`, through Anthropic's own SDK."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hud.errors import UsageError
from hud.inference.dialects.anthropic.answers import PAUSED, check, read_turn
from hud.inference.dialects.anthropic.requests import container_of, conversation, system_blocks
from hud.inference.dialects.anthropic.tools import Declared, binds_thinking, declare
from hud.inference.endpoints import Endpoint
from hud.inference.retries import BrokenAnswer, ask
from hud.trace import ChatMessage, Completion, Continuation, SamplingParams, ToolSpec

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

MOST_PAUSES = 16
"""Times that a turn may pause for the provider's own tools."""
LONGEST_WHOLE = 21_333
"""Tokens that Anthropic's SDK lets a turn have without streaming: more may take over ten minutes."""
DEFAULT_MAX_TOKENS = 16_384
"""Most tokens of a turn where no limit was set: the dialect demands one. `ClaudeConfig` has the same default."""
_BINDING_BETA = "thinking-binding-controls-2026-08-01"


class ClaudeModel:
    """Asks one model; may be used by many runs at once, for it keeps nothing of any."""

    def __init__(
        self,
        model: str,
        endpoint: Endpoint,
        *,
        thinking: dict[str, Any] | None = None,
        effort: str | None = None,
        hosted_tools: list[dict[str, Any]] | None = None,
        betas: list[str] | None = None,
        citations: bool = False,
        stream: bool = False,
        timeout_seconds: float = 600.0,
    ) -> None:
        self.name = model
        self.endpoint = endpoint
        self.thinking = thinking
        self.effort = effort
        self.hosted_tools = list(hosted_tools or [])
        self.betas = list(betas or [])
        self.citations = citations
        self.stream = stream
        self.timeout_seconds = timeout_seconds
        self._client: AsyncAnthropic | None = None
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
        declared = declare(tools, self.name, self.hosted_tools)
        body = self._body(messages, declared, params)
        if trace_id is not None:
            body["extra_headers"] = {"trace-id": trace_id}
        asked = body["messages"]
        answers: list[dict[str, Any]] = []

        stream = self.stream or body["max_tokens"] > LONGEST_WHOLE

        async def attempt() -> dict[str, Any]:
            return await (self._streamed(body) if stream else self._whole(body))

        while True:
            answers.append(await ask(attempt, self.endpoint.provider))
            if answers[-1]["stop_reason"] != PAUSED or len(answers) > MOST_PAUSES:
                return read_turn(answers, self.name, declared)
            so_far = [block for answer in answers for block in answer["content"]]
            body["messages"] = [*asked, {"role": "assistant", "content": so_far}]
            container = answers[-1].get("container")
            if container:
                body["container"] = container["id"]

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _body(
        self, messages: list[ChatMessage], declared: Declared, params: SamplingParams
    ) -> dict[str, Any]:
        most = DEFAULT_MAX_TOKENS if params.max_tokens is None else params.max_tokens
        body: dict[str, Any] = {
            "model": self.name,
            "max_tokens": most,
            "messages": conversation(messages, declared, citations=self.citations),
        }
        system = system_blocks(messages)
        if system:
            body["system"] = system
        if declared.tools:
            body["tools"] = declared.tools
        container = container_of(messages)
        if container is not None:
            body["container"] = container
        if self.effort is not None:
            body["output_config"] = {"effort": self.effort}
        betas = [*self.betas, *declared.betas]
        thinking = self._thinking(most)
        if binds_thinking(self.name) and (thinking is None or "block_binding" not in thinking):
            thinking = _forgiving(thinking, betas)
        if thinking is not None:
            body["thinking"] = thinking
        if betas:
            body["betas"] = betas
        return body

    def _thinking(self, max_tokens: int) -> dict[str, Any] | None:
        """Return how to think; a budget that the turn has no room for is none."""
        if self.thinking is not None and self.thinking.get("budget_tokens", 0) >= max_tokens:
            return None
        return self.thinking

    async def _whole(self, body: dict[str, Any]) -> dict[str, Any]:
        return _as_dict(await self._messages(body).create(**body))

    async def _streamed(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the message that a stream adds up to; one that ends before its last event is broken."""
        async with self._messages(body).stream(**body) as stream:
            over = False
            try:
                async for event in stream:
                    over = over or event.type == "message_stop"
            except (RuntimeError, ValueError) as error:
                # The SDK's words for events in no order, and for JSON that is none.
                raise BrokenAnswer(f"streamed what cannot be read: {error}") from error
            if not over:
                raise BrokenAnswer("broke its stream off before the message was complete")
            return _as_dict(await stream.get_final_message())

    def _messages(self, body: dict[str, Any]) -> Any:
        """Return what of the SDK takes the request: betas have a part of their own."""
        client = self._connected()
        return client.beta.messages if "betas" in body else client.messages

    def _connected(self) -> AsyncAnthropic:
        """Return the SDK's client; connections belong to an event loop, so a new loop gets a new one."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            try:
                from anthropic import AsyncAnthropic
            except ImportError:
                raise UsageError(
                    "Claude needs Anthropic's SDK: pip install 'openhud[agents]'."
                ) from None
            self._loop = loop
            self._client = AsyncAnthropic(
                api_key=self.endpoint.key,
                base_url=self.endpoint.url,
                timeout=self.timeout_seconds,
                max_retries=0,  # `ask` repeats, by one policy for all.
            )
        return self._client


def _forgiving(thinking: dict[str, Any] | None, betas: list[str]) -> dict[str, Any] | None:
    """Have thoughts dropped, not refused, where pictures or tools that came before them are no more.

    Newer models think adaptively anyhow, so that naming it changes nothing else.
    """
    thinking = thinking or {"type": "adaptive"}
    if thinking.get("type") not in ("adaptive", "enabled"):
        return thinking
    betas.append(_BINDING_BETA)
    return {**thinking, "block_binding": {"prefix_mismatch_behavior": "drop_block"}}


def _as_dict(value: Any) -> dict[str, Any]:
    """Return what the SDK read as the JSON that came, without what it fills in."""
    if not hasattr(value, "to_dict"):
        raise BrokenAnswer(f"answered with something that is no message: {str(value)[:200]}")
    return check(value.to_dict(mode="json", exclude_unset=True))
