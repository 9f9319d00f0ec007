"""`OpenAIAgent` and `OperatorAgent`, and the conversion of their settings to requests."""

from __future__ import annotations

from typing import Any, ClassVar

from hud.agents.providers.provider_agent import ProviderAgent
from hud.trace import SamplingParams
from hud_integrations.openai.agent_settings import OpenAIConfig, OperatorConfig
from hud_integrations.openai.codec import ResponsesCodec
from hud_integrations.openai.computer import ComputerTool, known_tool, tool_for
from hud_integrations.openai.dialect import OPENAI

_AS_GIVEN = (
    "reasoning",
    "tool_choice",
    "text",
    "truncation",
    "parallel_tool_calls",
    "prompt_cache_key",
)
OPERATOR_PROMPT = (
    "You use a computer to do the task. Nobody is there to answer questions or to confirm anything: decide by "
    "yourself, act until the task is done, and then say what came of it."
)


class OpenAIAgent(ProviderAgent[OpenAIConfig]):
    """Agent with an OpenAI model, over the Responses API."""

    settings: ClassVar[type[OpenAIConfig]] = OpenAIConfig
    home = OPENAI

    def codec(self, config: OpenAIConfig) -> ResponsesCodec:
        options = {name: getattr(config, name) for name in _AS_GIVEN}
        return ResponsesCodec(
            settings={name: value for name, value in options.items() if value is not None},
            computer=self.computer_of(config.model),
            hosted_tools=config.hosted_tools,
            safety=config.safety_checks,
        )

    def sampling(self, config: OpenAIConfig) -> SamplingParams:
        return SamplingParams(max_tokens=config.max_output_tokens, temperature=config.temperature)

    def computer_of(self, model: str) -> ComputerTool | None:
        """Return the native computer tool of `model`; None: a computer is an ordinary function."""
        return known_tool(model)


class OperatorAgent(OpenAIAgent):
    """Agent for runs with a screen: always OpenAI's native computer tool, and instructions to act alone."""

    settings = OperatorConfig

    def __init__(self, config: OpenAIConfig | None = None, **fields: Any) -> None:
        if config is None:
            config = OperatorConfig(**fields)
        missing: dict[str, Any] = {}
        if config.system_prompt is None:
            missing["system_prompt"] = OPERATOR_PROMPT
        if config.truncation is None and tool_for(config.model) == "computer_use_preview":
            missing["truncation"] = "auto"  # The model rejects every other tool.
        super().__init__(config, **{**missing, **fields})

    def computer_of(self, model: str) -> ComputerTool | None:
        return tool_for(model)
