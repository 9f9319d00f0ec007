"""`OpenAIChatAgent`: the tool loop over a chat-completions server."""

from __future__ import annotations

from typing import Any

from hud import settings
from hud.agents.tool_loop import ToolLoopAgent, sampling_params, split_completion_kwargs
from hud.agents.types import OpenAIChatConfig
from hud.errors import UsageError
from hud.inference.endpoints import gateway_url
from hud.inference.served_model import OpenAIChatModel

LONGEST_TURN = 16_384
"""Default of the most tokens of a turn, as of providers' agents."""


class OpenAIChatAgent(ToolLoopAgent):
    """Agent with a model served over HTTP.

    Connections are reused between runs; `aclose()` closes them.
    """

    def __init__(self, config: OpenAIChatConfig | None = None, **fields: Any) -> None:
        if config is None:
            config = OpenAIChatConfig(**fields)
        elif fields:
            config = OpenAIChatConfig(**{**config.model_dump(exclude_unset=True), **fields})
        if not config.model:
            raise UsageError("OpenAIChatConfig needs a model: OpenAIChatConfig(model='...').")
        hud_settings = settings.load()
        base_url = config.base_url or (
            gateway_url() if config.gateway else hud_settings.gateway_url
        )
        if base_url is None:
            raise UsageError(
                f"No server is known for the model {config.model!r}: give base_url=, or set "
                "HUD_GATEWAY_URL or HUD_API_URL."
            )
        sampling, extra = split_completion_kwargs(config.completion_kwargs)
        model = OpenAIChatModel(
            config.model,
            base_url=base_url,
            api_key=config.api_key or hud_settings.api_key,
            checkpoint=config.checkpoint,
            extra=extra,
            stream=config.stream,
            timeout_seconds=config.request_timeout_seconds,
        )
        if sampling.get("max_tokens") is None and "max_completion_tokens" not in extra:
            sampling["max_tokens"] = model.default_tokens = LONGEST_TURN
        super().__init__(model, config, sampling_params(sampling))
