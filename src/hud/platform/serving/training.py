"""The calls of a training session by name, as routes have them and as a worker hears them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict
from pydantic_core import to_json

from hud.platform.records import ModelRecord
from hud.trace import ToolSpec
from hud.train.types import (
    BackwardRequest,
    ForwardBackwardRequest,
    ForwardRequest,
    OptimStepRequest,
)

if TYPE_CHECKING:
    from hud.platform.platform import Platform


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class OwnerRequest(_Strict):
    """Who opens or closes a session: a name of its own for each training run."""

    owner: str | None = None


class Conversation(_Strict):
    """One run as chat messages, its assistant's turns among them, and the tools that it was offered."""

    messages: list[dict[str, Any]]
    tools: list[ToolSpec] = []


class RenderRequest(_Strict):
    """Conversations to turn into training data for `cross_entropy`."""

    conversations: list[Conversation]


REQUESTS: dict[str, type[BaseModel]] = {
    "open": OwnerRequest,
    "close": OwnerRequest,
    "render": RenderRequest,
    "forward-backward": ForwardBackwardRequest,
    "forward": ForwardRequest,
    "backward": BackwardRequest,
    "optim-step": OptimStepRequest,
}
"""The body of each call."""


class TrainingCalls:
    """Answers calls from the sessions of one platform."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform

    async def answer(self, model: ModelRecord, call: str, body: BaseModel) -> bytes:
        """Return the answer of one call as JSON. Raises whatever the session raises."""
        result = await self._result(model, call, body)
        return to_json(result)

    async def _result(self, model: ModelRecord, call: str, body: BaseModel) -> Any:
        sessions = self.platform.sessions
        if call == "close":
            assert isinstance(body, OwnerRequest)
            await sessions.close(model.id, body.owner)
            return {"closed": True}
        session = await sessions.open(model)
        if isinstance(body, OwnerRequest):
            await session.refresh(body.owner)
            return {"model": session.slug, "head": session.head, "step": session.step}
        if isinstance(body, RenderRequest):
            return {"samples": await session.render(body.conversations)}
        if isinstance(body, ForwardBackwardRequest):
            return await session.forward_backward(body)
        if isinstance(body, ForwardRequest):
            return await session.forward(body)
        if isinstance(body, BackwardRequest):
            return await session.backward(body)
        assert isinstance(body, OptimStepRequest)
        return await session.optim_step(body)
