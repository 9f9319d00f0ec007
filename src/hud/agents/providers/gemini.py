"""`GeminiAgent` and `GeminiCUAAgent`, and how their settings become a model."""

from __future__ import annotations

from typing import Any, ClassVar

from hud.agents.tool_loop import ToolLoopAgent
from hud.agents.types import GeminiConfig, GeminiCUAConfig
from hud.inference.dialects.gemini.model import GeminiModel
from hud.inference.dialects.gemini.tools import knows_computers
from hud.inference.endpoints import GEMINI, endpoint
from hud.trace import SamplingParams


class GeminiAgent(ToolLoopAgent):
    """Plays runs with a Gemini model; a computer is Gemini's own where the model has one.

    The connections stay open between runs; `aclose()` closes them.
    """

    settings: ClassVar[type[GeminiConfig]] = GeminiConfig

    def __init__(self, config: GeminiConfig | None = None, **fields: Any) -> None:
        if config is None:
            config = self.settings(**fields)
        elif fields:
            config = self.settings(**{**config.model_dump(exclude_unset=True), **fields})
        model = GeminiModel(
            config.model,
            endpoint(GEMINI, config.model, config.base_url, config.api_key, gateway=config.gateway),
            generation=_generation(config),
            hosted_tools=config.hosted_tools,
            computer=self._has_computer(config.model),
            safety=config.safety_checks,
            stream=config.stream,
            timeout_seconds=config.request_timeout_seconds,
        )
        super().__init__(model, config, SamplingParams(max_tokens=config.max_output_tokens))

    def _has_computer(self, model: str) -> bool:
        return knows_computers(model)

    async def aclose(self) -> None:
        """Close the connections to the server."""
        if isinstance(self.model, GeminiModel):
            await self.model.aclose()


class GeminiCUAAgent(GeminiAgent):
    """Uses a computer with Gemini's own computer tool, whatever the model is called."""

    settings = GeminiCUAConfig

    def _has_computer(self, model: str) -> bool:
        return True


def _generation(config: GeminiConfig) -> dict[str, Any]:
    """Return the settings that go to the API as they are; what is None is the provider's choice."""
    thinking: dict[str, Any] = {}
    if config.include_thoughts:
        thinking["include_thoughts"] = True
    if config.thinking_level is not None:
        thinking["thinking_level"] = config.thinking_level.upper()
    found = {name: getattr(config, name) for name in ("temperature", "top_p", "top_k")}
    found["thinking_config"] = thinking or None
    return {name: value for name, value in found.items() if value is not None}
