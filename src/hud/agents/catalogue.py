"""`create_agent`: an agent from a model, or from the slug of one.

A slug is looked up through `hud.client` when the agent first needs its model: a model of this machine is
then the engine in this process, a served one is reached over HTTP.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

from pydantic import ValidationError

from hud.agents.tool_loop import ToolLoopAgent
from hud.agents.types import OpenAIChatConfig
from hud.errors import UsageError
from hud.trace import (
    ChatMessage,
    ChatModel,
    Completion,
    Continuation,
    SamplingParams,
    ToolSpec,
)


def create_agent(model: str | ChatModel, **config: Any) -> ToolLoopAgent:
    """Return an agent that plays with `model`.

    `config` holds the settings of `OpenAIChatConfig`; where a server is, and its key, are not among them
    (use `OpenAIChatAgent` for a server of your own).
    """
    refused = sorted({"api_key", "base_url"} & config.keys())
    if refused:
        raise UsageError(
            f"create_agent takes no {' or '.join(refused)}: use OpenAIChatAgent(OpenAIChatConfig("
            "model=..., base_url=..., api_key=...)) for a server of your own."
        )
    slug = model if isinstance(model, str) else model.name
    try:
        settings = OpenAIChatConfig(**{"model": slug, **config})
    except ValidationError as error:
        raise UsageError(f"create_agent({slug!r}): {_first_problem(error)}") from None
    if isinstance(model, str):
        return CatalogueAgent(slug, settings)
    return ToolLoopAgent(model, settings)


class CatalogueAgent(ToolLoopAgent):
    """An agent whose model is looked up by its slug, once, when it is first needed."""

    def __init__(self, slug: str, config: OpenAIChatConfig) -> None:
        self.lookup = _LookedUpModel(slug, config.checkpoint)
        super().__init__(self.lookup, config)

    async def prepare(self) -> None:
        await self.lookup.resolve()


class _LookedUpModel:
    """A `ChatModel` that finds out what it is when first asked."""

    def __init__(self, slug: str, checkpoint: str | None) -> None:
        self.name = slug
        self.checkpoint = checkpoint
        self.found: ChatModel | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    async def resolve(self) -> ChatModel:
        """Return the model behind the slug; raises `UsageError`, with near matches, if there is none."""
        loop = asyncio.get_running_loop()
        if self.found is None or self.loop is not loop:
            # By name: agents may not import upwards, and the client costs nothing until a slug is used.
            client = importlib.import_module("hud.client")
            self.found = await client.chat_model(self.name, checkpoint=self.checkpoint)
            self.loop = loop
        assert self.found is not None
        return self.found

    async def complete(
        self,
        messages: list[ChatMessage],
        tools: list[ToolSpec],
        params: SamplingParams,
        *,
        continuation: Continuation | None = None,
        trace_id: str | None = None,
    ) -> Completion:
        model = self.found if self.found is not None else await self.resolve()
        return await model.complete(
            messages, tools, params, continuation=continuation, trace_id=trace_id
        )


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        known = ", ".join(sorted(OpenAIChatConfig.model_fields.keys() - {"api_key", "base_url"}))
        return f"there is no setting {name!r}; the settings are {known}."
    return f"{name}: {problem['msg']}."
