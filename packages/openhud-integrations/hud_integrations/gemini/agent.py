"""`GeminiAgent` and `GeminiCUAAgent`, and the conversion of their settings to requests."""

from __future__ import annotations

from typing import Any, ClassVar

from hud.agents.providers.provider_agent import ProviderAgent
from hud.trace import SamplingParams
from hud_integrations.gemini.agent_settings import GeminiConfig, GeminiCUAConfig
from hud_integrations.gemini.codec import GeminiCodec
from hud_integrations.gemini.dialect import GEMINI
from hud_integrations.gemini.tools import knows_computers


class GeminiAgent(ProviderAgent[GeminiConfig]):
    """Agent with a Gemini model; a computer is Gemini's native tool if the model has one."""

    settings: ClassVar[type[GeminiConfig]] = GeminiConfig
    home = GEMINI

    def codec(self, config: GeminiConfig) -> GeminiCodec:
        thinking: dict[str, Any] = {}
        if config.include_thoughts:
            thinking["includeThoughts"] = True
        if config.thinking_level is not None:
            thinking["thinkingLevel"] = config.thinking_level.upper()
        return GeminiCodec(
            thinking=thinking,
            hosted_tools=config.hosted_tools,
            computer=self.has_computer(config.model),
            safety=config.safety_checks,
        )

    def sampling(self, config: GeminiConfig) -> SamplingParams:
        return SamplingParams(
            max_tokens=config.max_output_tokens,
            temperature=config.temperature,
            top_p=config.top_p,
            top_k=config.top_k,
        )

    def has_computer(self, model: str) -> bool:
        """Return True if `model` has a native computer tool; otherwise a computer is a function."""
        return knows_computers(model)


class GeminiCUAAgent(GeminiAgent):
    """Agent with Gemini's native computer tool, for any model name."""

    settings = GeminiCUAConfig

    def has_computer(self, model: str) -> bool:
        return True
