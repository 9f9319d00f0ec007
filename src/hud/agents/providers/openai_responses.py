"""`OpenAIAgent` and `OperatorAgent`, and how their settings become requests."""

from __future__ import annotations

from typing import Any, ClassVar

from hud.agents.tool_loop import ToolLoopAgent
from hud.agents.types import OpenAIConfig, OperatorConfig
from hud.inference.dialects.responses.computer import ComputerTool, known_tool, tool_for
from hud.inference.dialects.responses.model import ResponsesModel
from hud.inference.endpoints import OPENAI, endpoint
from hud.trace import SamplingParams

_AS_GIVEN = (
    "temperature",
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


class OpenAIAgent(ToolLoopAgent):
    """Plays runs with a model of OpenAI's, over its responses.

    The connections stay open between runs; `aclose()` closes them.
    """

    config_type: ClassVar[type[OpenAIConfig]] = OpenAIConfig

    def __init__(self, config: OpenAIConfig | None = None, **fields: Any) -> None:
        if config is None:
            config = self.config_type(**fields)
        elif fields:
            config = type(config)(**{**config.model_dump(exclude_unset=True), **fields})
        given = {name: getattr(config, name) for name in _AS_GIVEN}
        model = ResponsesModel(
            config.model,
            endpoint(OPENAI, config.model, config.base_url, config.api_key, gateway=config.gateway),
            request={name: value for name, value in given.items() if value is not None},
            computer=self.computer_of(config.model),
            hosted_tools=config.hosted_tools,
            safety=config.safety_checks,
            stream=config.stream,
            timeout_seconds=config.request_timeout_seconds,
        )
        super().__init__(model, config, SamplingParams(max_tokens=config.max_output_tokens))

    def computer_of(self, model: str) -> ComputerTool | None:
        """Return the computer tool that `model` knows; None has it as a function like any other."""
        return known_tool(model)


class OperatorAgent(OpenAIAgent):
    """Plays runs that have a screen: the computer is always OpenAI's own tool, and the model is told to act alone."""

    config_type = OperatorConfig

    def __init__(self, config: OpenAIConfig | None = None, **fields: Any) -> None:
        if config is None:
            config = OperatorConfig(**fields)
        missing: dict[str, Any] = {}
        if config.system_prompt is None:
            missing["system_prompt"] = OPERATOR_PROMPT
        if config.truncation is None and tool_for(config.model) == "computer_use_preview":
            missing["truncation"] = "auto"  # That model refuses every other way.
        super().__init__(config, **{**missing, **fields})

    def computer_of(self, model: str) -> ComputerTool | None:
        return tool_for(model)
