"""The calls of a training session by name, as routes have them and as a worker hears them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict
from pydantic_core import to_json

from hud.learning.wire_types import (
    BackwardRequest,
    ForwardBackwardRequest,
    ForwardRequest,
    OptimStepRequest,
)
from hud.platform.models.records import ModelRecord
from hud.trace import ToolSpec
from hud.train.contributor import Contributor

if TYPE_CHECKING:
    from hud.platform.training.open_sessions import Sessions


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class OpenRequest(_Strict):
    """Begin with nothing accumulated and an empty cache."""

    alone: bool = False
    """Refuse other clients until this one closes the session, or is gone."""


class CloseRequest(_Strict):
    """End a session and give its lease back."""

    alone: bool = False
    """Only where it is this client's own."""


class HoldRequest(_Strict):
    """Say that the training run which has the session to itself is alive."""


class DiscardRequest(_Strict):
    """Throw away what is accumulated."""


class Conversation(_Strict):
    """One run as chat messages, its assistant's turns among them, and the tools that it was offered."""

    messages: list[dict[str, Any]]
    tools: list[ToolSpec] = []


class RenderRequest(_Strict):
    """Conversations to turn into training data for `cross_entropy`."""

    conversations: list[Conversation]


REQUESTS: dict[str, type[BaseModel]] = {
    "open": OpenRequest,
    "close": CloseRequest,
    "discard": DiscardRequest,
    "hold": HoldRequest,
    "render": RenderRequest,
    "forward-backward": ForwardBackwardRequest,
    "forward": ForwardRequest,
    "backward": BackwardRequest,
    "optim-step": OptimStepRequest,
}
"""The body of each call."""


class TrainingCalls:
    """Answers calls from the sessions of one platform."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions

    async def answer(self, model: ModelRecord, body: BaseModel, client: Contributor) -> bytes:
        """Return the answer of one call as JSON. Raises whatever the session raises."""
        result = await self._result(model, body, client)
        return to_json(result)

    async def _result(self, model: ModelRecord, body: BaseModel, client: Contributor) -> Any:
        sessions = self.sessions
        if isinstance(body, CloseRequest):
            await sessions.close(model.id, client if body.alone else None)
            return {"closed": True}
        if isinstance(body, HoldRequest):
            return {"held": sessions.hold(model.id, client)}
        if isinstance(body, DiscardRequest):
            return {"discarded": await sessions.discard(model, client)}
        session = await sessions.open(model)
        if isinstance(body, OpenRequest):
            dropped = await session.refresh(client, alone=body.alone)
            opened = {"model": session.slug, "head": session.head, "step": session.step}
            return {**opened, "discarded": dropped}
        if isinstance(body, RenderRequest):
            return {"samples": await session.render(body.conversations)}
        if isinstance(body, ForwardBackwardRequest):
            return await session.forward_backward(body, client)
        if isinstance(body, ForwardRequest):
            return await session.forward(body, client)
        if isinstance(body, BackwardRequest):
            return await session.backward(body, client)
        assert isinstance(body, OptimStepRequest)
        return await session.optim_step(body, client)
