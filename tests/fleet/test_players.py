"""Which agent a worker makes of what a client wrote."""

from __future__ import annotations

import pytest

from hud.agents.types import OpenAIChatConfig
from hud.errors import UsageError
from hud.fleet.submitted_agents import player_of, refuse_unplayable


def made(kind, *, samples=False, **config):
    config = {"model": "some-model", **config}
    given = {"spec": {"agent": {"type": kind, "config": config}}, "samples": samples, "pass": "p"}
    return player_of(given, "http://gateway")


@pytest.mark.parametrize(
    ("kind", "agent"),
    [
        ("claude", "ClaudeAgent"),
        ("openai", "OpenAIAgent"),
        ("operator", "OperatorAgent"),
        ("gemini", "GeminiAgent"),
        ("gemini_cua", "GeminiCUAAgent"),
        ("openai_compatible", "OpenAIChatAgent"),
    ],
)
def test_each_kind_is_itself_and_asks_the_gateway_with_the_rollouts_pass(kind, agent):
    found = made(kind, max_steps=7, stream=True, unheard_of=1, base_url="http://evil", api_key="k")
    assert type(found).__name__ == agent
    assert (found.config.base_url, found.config.api_key) == ("http://gateway", "p")
    assert (found.config.model, found.config.max_steps) == ("some-model", 7)


def test_a_model_whose_tokens_are_kept_is_asked_for_them_whatever_kind_was_named():
    found = made("claude", samples=True, stream=True, max_steps=7)
    assert isinstance(found.config, OpenAIChatConfig)
    assert found.config.completion_kwargs["extra_body"] == {"return_token_ids": True}
    assert found.config.max_steps == 7


def test_what_cannot_be_made_is_said_in_a_sentence():
    with pytest.raises(UsageError, match="config is not right: max_steps: Input should be"):
        made("openai", max_steps=0)
    with pytest.raises(UsageError, match="must be objects"):
        made("openai_compatible", completion_kwargs={"extra_body": 3})


@pytest.mark.parametrize("kind", ["harness", "claude-code", "http"])
def test_a_program_is_refused_with_the_reason_and_the_cure(kind):
    with pytest.raises(UsageError, match="installed on their own machine.*without --remote"):
        refuse_unplayable(kind, {"model": "some-model"})


def test_a_kind_that_there_is_not_is_refused_by_its_name():
    with pytest.raises(UsageError, match="There is no kind of agent 'clude'.*claude"):
        refuse_unplayable("clude", {"model": "some-model"})


def test_subagents_are_asked_where_their_caller_is():
    found = made("claude", subagents={"ask": "other-model"})
    assert found.subagents == {"ask": "other-model"}
    below = found.make_subagent("claude-sonnet-4-6")
    assert type(below).__name__ == "ClaudeAgent"
    assert (below.config.base_url, below.config.api_key) == ("http://gateway", "p")
    kept = made("claude", samples=True).make_subagent("other-model")
    assert isinstance(kept.config, OpenAIChatConfig)
    assert kept.config.completion_kwargs["extra_body"] == {"return_token_ids": True}
