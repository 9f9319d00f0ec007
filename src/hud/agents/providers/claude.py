"""`ClaudeAgent` and how its settings become a model."""

from __future__ import annotations

from typing import Any

from hud.agents.tool_loop import ToolLoopAgent
from hud.agents.types import ClaudeConfig
from hud.inference.dialects.anthropic.model import ClaudeModel
from hud.inference.endpoints import ANTHROPIC, endpoint
from hud.trace import SamplingParams


class ClaudeAgent(ToolLoopAgent):
    """Plays runs with a Claude model.

    The connections stay open between runs; `aclose()` closes them.
    """

    def __init__(self, config: ClaudeConfig | None = None, **fields: Any) -> None:
        if config is None:
            config = ClaudeConfig(**fields)
        elif fields:
            config = ClaudeConfig(**{**config.model_dump(exclude_unset=True), **fields})
        where = endpoint(
            ANTHROPIC, config.model, config.base_url, config.api_key, gateway=config.gateway
        )
        model = ClaudeModel(
            config.model,
            where,
            thinking=config.thinking,
            effort=config.effort,
            hosted_tools=config.hosted_tools,
            citations=config.citations_enabled,
            betas=config.betas,
            stream=config.stream,
            timeout_seconds=config.request_timeout_seconds,
        )
        super().__init__(model, config, SamplingParams(max_tokens=config.max_tokens))

    async def aclose(self) -> None:
        """Close the connections to the server."""
        if isinstance(self.model, ClaudeModel):
            await self.model.aclose()
