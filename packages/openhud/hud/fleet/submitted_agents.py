"""Agents from what a client wrote of them."""

from __future__ import annotations

from functools import partial
from typing import Any

from hud.agents import Agent
from hud.agents.agent_kinds import SERVED, agent_of, kind_of_model, settings_of
from hud.agents.programs.own_loop_agent import refusal_by_platform
from hud.agents.providers.agent_kind import agent_kinds, model_kinds
from hud.agents.types import OpenAIChatConfig
from hud.errors import UsageError
from hud.inference.served_model import OpenAIChatModel

_PRIVATE = frozenset({"api_key", "base_url"})


def refuse_unplayable(kind: str, config: dict[str, Any]) -> None:
    """Raise `UsageError` for an agent that no worker can make."""
    agent_kind = agent_kinds().get(kind)
    if agent_kind is None:
        raise UsageError(
            f"There is no kind of agent {kind!r}; the platform plays {', '.join(model_kinds())}."
        )
    if agent_kind.program:
        raise UsageError(refusal_by_platform(kind))
    if not isinstance(config.get("model"), str) or not config["model"]:
        raise UsageError("The agent's config names no model; give config.model.")


def player_of(lease: dict[str, Any], gateway_url: str) -> Agent:
    """Return the agent of a rollout. Raises `UsageError` for one that cannot be played here.

    Each asks the gateway, which speaks every dialect and holds the providers' keys.
    """
    agent = lease["spec"]["agent"]
    refuse_unplayable(agent["type"], agent.get("config") or {})
    if agent.get("sampling") is not None:
        return _seeded(agent, lease, gateway_url)
    # Tokens come with chat completions alone.
    kind = SERVED if lease["samples"] else agent["type"]
    settable = model_kinds()[kind].settings.model_fields.keys() - _PRIVATE
    config = {
        name: value
        for name, value in (agent.get("config") or {}).items()
        if name in settable and value is not None
    }
    if kind == SERVED:
        config["completion_kwargs"] = _with_tokens(config, wanted=lease["samples"])
    if lease["samples"]:
        config.pop("stream", None)
    place = {"base_url": gateway_url, "api_key": lease["pass"]}
    settings = settings_of(kind, config | place, whose="The agent's config is not right")
    made = agent_of(kind, settings)
    made.subagents = dict((agent.get("config") or {}).get("subagents") or {})
    made.make_subagent = partial(_subagent, place, samples=lease["samples"])
    return made


def _seeded(agent: dict[str, Any], lease: dict[str, Any], gateway_url: str) -> Agent:
    """Return the agent of a training's rollout: it draws what the trainer's own process would draw."""
    # Loads the training's settings, which evaluations do not need.
    from hud.train.rollouts.seeds import seeded_agent

    settings = settings_of(SERVED, agent["config"], whose="The agent's config is not right")
    extra = {"return_token_ids": True} if lease["samples"] else {}
    sampling = agent["sampling"]
    model = OpenAIChatModel(
        settings.model,
        base_url=gateway_url,
        api_key=lease["pass"],
        checkpoint=sampling.get("checkpoint"),
        extra=extra,
    )
    assert isinstance(settings, OpenAIChatConfig)
    return seeded_agent(model, settings, sampling)


def _subagent(place: dict[str, Any], model: str, *, samples: bool) -> Agent:
    """Return the agent of a subagent's model, which asks where its caller asks."""
    kind = SERVED if samples else kind_of_model(model) or SERVED
    config: dict[str, Any] = {"model": model, **place}
    if kind == SERVED:
        config["completion_kwargs"] = _with_tokens({}, wanted=samples)
    return agent_of(kind, settings_of(kind, config, whose=f"The subagent's model {model!r}"))


def _with_tokens(config: dict[str, Any], *, wanted: bool) -> dict[str, Any]:
    extra = config.get("completion_kwargs") or {}
    body = extra.get("extra_body") if isinstance(extra, dict) else None
    if not isinstance(extra, dict) or not isinstance(body or {}, dict):
        raise UsageError("The agent's completion_kwargs, and extra_body in it, must be objects.")
    if not wanted:
        return extra
    # Playing and collecting training data are one thing: the tokens come with the answers.
    return {**extra, "extra_body": {**(body or {}), "return_token_ids": True}}
