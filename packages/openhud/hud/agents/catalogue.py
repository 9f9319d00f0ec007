"""`create_agent`: an agent for a model, or for a model's slug.

A slug is looked up through `hud.client` at the agent's first use. The catalogue determines the agent type: a local model
is the engine in this process, a provider's model is called in its dialect.
"""

from __future__ import annotations

import asyncio
import logging
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hud import settings
from hud.agents.agent import RunView
from hud.agents.agent_kinds import SERVED, agent_of, kind_of_model, settings_of
from hud.agents.providers.agent_kind import agent_kinds, model_kinds
from hud.agents.tool_loop import ToolLoopAgent
from hud.agents.types import AgentConfig, OpenAIChatConfig
from hud.errors import NotFoundError, UsageError
from hud.inference.endpoints import gateway_url
from hud.inference.prices import Rates
from hud.trace import (
    ChatModel,
    Completion,
)

_log = logging.getLogger("hud.eval")
TURN_TOKENS = 1024
"""Default of the most tokens in a turn of a local policy, or of one of the platform."""
_PRIVATE = frozenset({"api_key", "base_url"})
_CHAT_ALONE = frozenset({"checkpoint", "completion_kwargs"})
"""Settings of chat-completions agents only; they select that type."""


def create_agent(model: str | ChatModel, **config: Any) -> ToolLoopAgent:
    """Return an agent that plays runs with `model`.

    `config` holds the settings of the model's agent type (`hud.agents.types`), except a server's address and key (for your
    own server, create the agent directly). Raises `UsageError` for settings that the type does not have.
    """
    refused = sorted(_PRIVATE & config.keys())
    if refused:
        raise UsageError(
            f"create_agent takes no {' or '.join(refused)}: use OpenAIChatAgent(OpenAIChatConfig("
            "model=..., base_url=..., api_key=...)) for a server of your own."
        )
    if isinstance(model, str):
        return CatalogueAgent(model, config)
    return ToolLoopAgent(model, _settings(model.name, SERVED, config))


class CatalogueAgent(ToolLoopAgent):
    """An agent whose model is looked up by its slug, once, at first use."""

    def __init__(self, slug: str, options: dict[str, Any]) -> None:
        self.slug, self.options = slug, options
        chat = bool(_CHAT_ALONE & options.keys())
        self.kind = SERVED if chat else kind_of_model(slug) or SERVED
        self.chosen = chat
        config = _settings(slug, self.kind, options)
        checkpoint = config.checkpoint if isinstance(config, OpenAIChatConfig) else None
        self.lookup = _LookedUpModel(slug, checkpoint)
        self.player: ToolLoopAgent | None = None
        super().__init__(self.lookup, config)

    async def prepare(self) -> None:
        """Look the model up. Raises `UsageError`, with near matches, for an unknown one."""
        if self.player is None:
            row = await self._row(needed=kind_of_model(self.slug) is None)
            self.player = self._made(row)
            self.config = self.player.config
            steps = 0 if row is None else row.get("unsaved_steps", 0)
            if steps and self.lookup.checkpoint is None:
                _log.warning(
                    "note: The head of %s plays, without %d newer steps of a training that runs or was stopped. The training's "
                    "command makes a checkpoint of them.",
                    self.slug,
                    steps,
                )
            price = _price_in(row)
            if price is not None:
                self.player.model = _PricedModel(self.player.model, price)
        await self.player.prepare()
        if self.config.gateway:
            gateway_url()
        if self.kind == SERVED:
            await self.lookup.resolve()

    async def __call__(self, run: RunView) -> None:
        if self.player is None:
            await self.prepare()
        assert self.player is not None
        await self.player(run)

    async def aclose(self) -> None:
        """Close the connections to the model's server, if any."""
        if self.player is not None and self.kind != SERVED:
            await self.player.aclose()

    def _made(self, row: dict[str, Any] | None) -> ToolLoopAgent:
        """Return the agent of the catalogue's type, else of the type by the model's name."""
        by_name = kind_of_model(self.slug)
        registered = row.get("sdk_agent_type") if row is not None else by_name
        narrower = by_name is not None and agent_kinds()[by_name].narrows == registered
        kind = by_name if narrower else registered
        fields: dict[str, Any] = {}
        if row is not None and row.get("kind") == "provider":
            # Registered under another name, which only the gateway resolves.
            hud_settings = settings.load()
            fields = {
                "base_url": hud_settings.gateway_url,
                "api_key": hud_settings.api_key or "none",
            }
            if hud_settings.gateway_url is None:
                kind = SERVED
        if kind not in model_kinds():
            raise UsageError(
                f"{self.slug!r} is played by {kind!r}, an agent that is not known here."
            )
        if self.chosen or kind == SERVED:
            self.kind = SERVED
            config = _settings(self.slug, SERVED, self.options)
            if row is not None and row.get("kind") != "provider":
                config = _bounded(config)
            return ToolLoopAgent(self.lookup, config)
        self.kind = str(kind)
        made = agent_of(self.kind, _settings(self.slug, self.kind, self.options), **fields)
        assert isinstance(made, ToolLoopAgent)
        return made

    async def _row(self, *, needed: bool) -> dict[str, Any] | None:
        """Return the catalogue's entry of the model; None if it is missing and not required."""
        from hud.client import connect  # Imports an HTTP client, for slugs only.

        client = connect()
        try:
            row: dict[str, Any] = await client.get(
                "/v2/models/resolve", params={"model": self.slug}
            )
        except NotFoundError as error:
            if not needed:
                return None
            meant = _meant(self.slug)
            if meant is None:
                raise
            raise NotFoundError(f"{error} Did you mean the {meant}?") from error
        return row


def _meant(slug: str) -> str | None:
    """Return a script of this folder, or a kind of agent, whose name is nearly that of a missing model."""
    if Path(f"{slug}.py").is_file():
        return f"script {slug}.py"
    near = get_close_matches(slug, agent_kinds(), n=1, cutoff=0.7)
    return f"agent {near[0]!r}" if near else None


class _LookedUpModel(ChatModel):
    """A `ChatModel` that is resolved at its first call."""

    def __init__(self, slug: str, checkpoint: str | None) -> None:
        self.name = slug
        self.checkpoint = checkpoint
        self.model: ChatModel | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    async def resolve(self) -> ChatModel:
        """Return the model behind the slug; raises `UsageError`, with near matches, if there is none."""
        loop = asyncio.get_running_loop()
        if self.model is None or self.loop is not loop:
            from hud.inference.models import chat_model

            self.model = await chat_model(self.name, self.checkpoint)
            self.loop = loop
        assert self.model is not None
        return self.model

    async def complete(self, *arguments: Any, **options: Any) -> Completion:
        model = self.model if self.model is not None else await self.resolve()
        return await model.complete(*arguments, **options)

    async def aclose(self) -> None:
        if self.model is not None:
            await self.model.aclose()


class _PricedModel(ChatModel):
    """A model whose price is in the catalogue only."""

    def __init__(self, model: ChatModel, price: Rates) -> None:
        self.model, self.price = model, price
        self.name = model.name

    async def complete(self, *arguments: Any, **options: Any) -> Completion:
        completion = await self.model.complete(*arguments, **options)
        usage = completion.usage
        if usage.cost_usd is None:
            usage.cost_usd = self.price.cost_usd(
                usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
            )
        return completion

    async def aclose(self) -> None:
        await self.model.aclose()


def _price_in(row: dict[str, Any] | None) -> Rates | None:
    """Return the price of a registered model."""
    if row is None or row.get("kind") != "provider":
        return None
    provider = ((row.get("config") or {}).get("provider")) or {}
    if provider.get("price_in") is None or provider.get("price_out") is None:
        return None
    return Rates(input=provider["price_in"], output=provider["price_out"])


def _bounded(config: AgentConfig) -> AgentConfig:
    """Return the settings of a policy with a limit of its turns: a small one may write to the end of its context."""
    assert isinstance(config, OpenAIChatConfig)
    sampling = {"max_tokens": TURN_TOKENS, **config.completion_kwargs}
    return config.model_copy(update={"completion_kwargs": sampling})


def _settings(slug: str, kind: str, options: dict[str, Any]) -> AgentConfig:
    return settings_of(
        kind, {"model": slug, **options}, whose=f"create_agent({slug!r})", hidden=_PRIVATE
    )
