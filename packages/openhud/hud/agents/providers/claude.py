"""`ClaudeAgent`, and the conversion of its settings to requests."""

from __future__ import annotations

from hud.agents.providers.provider_agent import ProviderAgent
from hud.agents.types import ClaudeConfig
from hud.inference.dialects.anthropic.codec import AnthropicCodec
from hud.inference.dialects.anthropic.dialect import ANTHROPIC
from hud.trace import SamplingParams


class ClaudeAgent(ProviderAgent[ClaudeConfig]):
    """Agent with a Claude model, over Anthropic's Messages API."""

    settings = ClaudeConfig
    home = ANTHROPIC

    def codec(self, config: ClaudeConfig) -> AnthropicCodec:
        return AnthropicCodec(
            thinking=config.thinking,
            effort=config.effort,
            hosted_tools=config.hosted_tools,
            betas=config.betas,
            citations=config.citations_enabled,
            resumed=True,
        )

    def sampling(self, config: ClaudeConfig) -> SamplingParams:
        return SamplingParams(max_tokens=config.max_tokens)
