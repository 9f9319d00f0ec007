"""Agents from what a client wrote of them."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from hud.agents.openai_chat import OpenAIChatAgent
from hud.agents.types import OpenAIChatConfig
from hud.errors import UsageError

KINDS = ("openai_compatible", "openai", "claude", "gemini")
"""Kinds of agent that are played here: all of them through the gateway, which speaks for every model."""


def refuse_unplayable(kind: str, config: dict[str, Any]) -> None:
    """Raise `UsageError` for an agent that no worker can make."""
    if kind not in KINDS:
        raise UsageError(f"Agents of kind {kind!r} are not played here: {', '.join(KINDS)} are.")
    if not isinstance(config.get("model"), str) or not config["model"]:
        raise UsageError("The agent's config names no model; give config.model.")


def player_of(given: dict[str, Any], gateway_url: str) -> OpenAIChatAgent:
    """Return the agent of a rollout. Raises `UsageError` for one that cannot be played here."""
    agent = given["spec"]["agent"]
    refuse_unplayable(agent["type"], agent.get("config") or {})
    known = OpenAIChatConfig.model_fields.keys() - {"api_key", "base_url"}
    config = {
        name: value
        for name, value in (agent.get("config") or {}).items()
        if name in known and value is not None
    }
    extra = config.get("completion_kwargs") or {}
    body = extra.get("extra_body") if isinstance(extra, dict) else None
    if not isinstance(extra, dict) or not isinstance(body or {}, dict):
        raise UsageError("The agent's completion_kwargs, and extra_body in it, must be objects.")
    if given["samples"]:
        # Playing and collecting training data are one thing: the tokens come with the answers.
        extra = {**extra, "extra_body": {**(body or {}), "return_token_ids": True}}
    config |= {"completion_kwargs": extra, "base_url": gateway_url, "api_key": given["pass"]}
    try:
        return OpenAIChatAgent(OpenAIChatConfig(**config))
    except ValidationError as error:
        problem = error.errors()[0]
        raise UsageError(
            f"The agent's config is not right: {'.'.join(map(str, problem['loc']))}: {problem['msg']}."
        ) from None
