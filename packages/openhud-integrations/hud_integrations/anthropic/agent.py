"""`ClaudeAgent`, and the conversion of its settings to requests."""

from __future__ import annotations

from hud.agents.providers.provider_agent import ProviderAgent
from hud.trace import SamplingParams
from hud_integrations.anthropic.agent_settings import ClaudeConfig
from hud_integrations.anthropic.codec import AnthropicCodec
from hud_integrations.anthropic.dialect import ANTHROPIC


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
