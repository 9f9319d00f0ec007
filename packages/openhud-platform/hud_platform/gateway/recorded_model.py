"""A policy sampled in this process, whose turns are recorded as the gateway's requests are."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from hud.trace.chat_model import ChatModel, Completion
from hud_platform.gateway.ledger import Ledger, Meter

ROUTE = "in process"
"""Value of `requests.route`, in place of a request's path."""


class RecordedModel(ChatModel):
    """A `ChatModel` whose turns are in the ledger of a team."""

    def __init__(self, model: ChatModel, ledger: Ledger, team: str) -> None:
        self.name = model.name
        self._model = model
        self._ledger = ledger
        self._team = team

    async def complete(
        self, *conversation: Any, trace_id: str | None = None, **options: Any
    ) -> Completion:
        began = perf_counter()
        completion = await self._model.complete(*conversation, trace_id=trace_id, **options)
        meter = Meter(checkpoint=completion.sample.checkpoint if completion.sample else None)
        meter.count(completion.usage)
        self._ledger.add(
            meter,
            team_id=self._team,
            key_id=None,
            trace_id=trace_id,
            route=ROUTE,
            model=self.name,
            status=200,
            seconds=perf_counter() - began,
            cost_usd=None,
        )
        return completion

    async def aclose(self) -> None:
        await self._model.aclose()
