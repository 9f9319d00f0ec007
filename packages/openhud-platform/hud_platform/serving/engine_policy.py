"""A model of an engine in another process, sampled as a policy of this process is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing

from hud.engine.chat.chat_format import ChatFormat
from hud.engine.policy import SampledPolicy
from hud.engine.sample.request import SampledTurn
from hud.errors import InfrastructureFault, OverloadedError
from hud.trace import SamplingParams
from hud.trace.sampled.pictures import Picture
from hud_platform.models.records import ModelRecord
from hud_platform.serving.token_engine import (
    EngineDownError,
    TokenDelta,
    TokenEngine,
    TokenRequest,
)

RESTART_SECONDS = 120.0
"""Time-out of a turn whose engine is being restarted."""


class EnginePolicy(SampledPolicy):
    """A model at its head, read when a turn begins, or pinned to a checkpoint."""

    def __init__(
        self,
        engine: TokenEngine,
        model: ModelRecord,
        checkpoint: str | None,
        chat: ChatFormat,
        system_prompt: str | None,
    ) -> None:
        self.chat = chat
        self.system_prompt = system_prompt
        self._engine = engine
        self._model = model
        self._checkpoint = checkpoint

    async def sample(
        self,
        prompt: list[int],
        params: SamplingParams,
        *,
        pictures: tuple[Picture, ...] = (),
        stopped: Callable[[list[int]], bool] | None = None,
    ) -> SampledTurn:
        """Sample one turn; see `Policy.sample`.

        A turn that its engine's crash interrupted is sampled again. Raises `InfrastructureFault` for an engine that is not
        back in time.
        """
        request = TokenRequest(
            prompt,
            params,
            self.chat.stop_ids,
            pictures=pictures,
            # Without a condition on the tokens so far, they may all come at the end.
            followed=stopped is not None,
        )
        late = time.monotonic() + RESTART_SECONDS
        while True:
            try:
                return await self._sampled(request, stopped)
            except OverloadedError as error:
                await asyncio.sleep(error.retry_after)
            except EngineDownError as error:
                if time.monotonic() > late:
                    raise InfrastructureFault(str(error)) from error
                await asyncio.sleep(error.retry_after)

    async def _sampled(
        self, request: TokenRequest, stopped: Callable[[list[int]], bool] | None
    ) -> SampledTurn:
        ids: list[int] = []
        logprobs: list[float] = []
        swaps: list[tuple[int, str | None]] = []
        reason = "stop"
        async with aclosing(self._engine.stream(self._model, self._checkpoint, request)) as items:
            async for item in items:
                if not isinstance(item, TokenDelta):
                    reason = item.finish_reason
                    break
                swaps = item.swaps
                begun = len(ids)
                ids += item.token_ids
                logprobs += item.logprobs
                if (end := _end_of(ids, begun, stopped)) is not None:
                    ids, logprobs = ids[:end], logprobs[:end]
                    break
        swaps = [swap for swap in swaps if swap[0] < len(ids)]
        return SampledTurn(ids, logprobs, reason, item.cached_tokens, item.version, swaps)


def _end_of(ids: list[int], begun: int, stopped: Callable[[list[int]], bool] | None) -> int | None:
    """Return the length, above `begun`, at which a turn has stopped; None: it goes on."""
    if stopped is None:
        return None
    lengths = range(begun + 1, len(ids) + 1)
    return next((length for length in lengths if stopped(ids[:length])), None)
