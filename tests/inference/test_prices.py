"""What model calls cost."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hud.errors import UsageError
from hud.inference.prices import TokenCounts, cost_usd, price_of


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))

    def write(content, at=None):
        path = tmp_path / "prices.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        if at is not None:
            os.utime(path, ns=(at, at))

    return write


def cost(model, prompt=0, completion=0, **more):
    return cost_usd(model, TokenCounts(prompt, completion, **more))


def test_tokens_of_each_kind_have_their_own_price(own):
    found = cost("claude-sonnet-4-6", 1_000_000, 100_000, cached=600_000, written=200_000)
    assert found == pytest.approx(0.2 * 3.0 + 0.6 * 0.3 + 0.2 * 3.75 + 0.1 * 15.0)


@pytest.mark.parametrize(
    "name", ["gpt-5", "gpt-5-2025-08-07", "openai/gpt-5", "openai/gpt-5-20250807", "gpt-5-latest"]
)
def test_a_provider_before_the_name_or_a_date_behind_it_changes_nothing(own, name):
    assert cost(name, 1_000_000) == 1.25


def test_other_models_of_the_family_are_not_taken_for_it(own):
    assert price_of("gpt-5-something-else") is None
    assert cost("gpt-5-something-else", 1_000_000) is None
    assert cost("my-model", 5) is None


def test_long_prompts_have_their_own_prices_for_the_whole_call(own):
    assert cost("gemini-2.5-pro", 200_000) == pytest.approx(0.2 * 1.25)
    assert cost("gemini-2.5-pro", 200_001) == pytest.approx(0.200001 * 2.5)


def test_ones_own_prices_go_first_and_are_read_when_they_change(own):
    own({"gpt-5": {"input": 100.0, "output": 0.0}, "mine": {"input": 1.0, "output": 2.0}}, at=1)
    assert cost("gpt-5", 1_000_000) == 100.0
    assert cost("mine", 1_000_000, 1_000_000, cached=500_000) == 3.0
    own({"gpt-5": {"input": 7.0, "output": 0.0}}, at=2)
    assert cost("gpt-5", 1_000_000) == 7.0
    assert cost("mine", 1_000_000) is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{oops", "Invalid JSON"),
        ({"mine": {"input": 1.0}}, "mine.output: Field required"),
        ({"mine": {"input": 1.0, "output": 1.0, "per_call": 3}}, "mine.per_call"),
    ],
)
def test_a_table_that_cannot_be_read_is_said_with_its_place(own, content, said):
    own(content)
    with pytest.raises(UsageError, match=said) as raised:
        cost("gpt-5", 1)
    assert "prices.json" in str(raised.value)


TOKENS = st.integers(0, 10**7)
MODELS = st.sampled_from(
    [
        "claude-opus-4-8",
        "claude-haiku-4-5",
        "gpt-5.6-sol",
        "gpt-5",
        "gemini-2.5-pro",
        "computer-use-preview",
    ]
)


@pytest.mark.slow
@given(MODELS, TOKENS, TOKENS, TOKENS, TOKENS)
def test_more_tokens_never_cost_less_and_the_cache_never_costs_more_than_fresh_writes(
    model, prompt, completion, cached, more
):
    cached = min(cached, prompt)
    whole = cost(model, prompt, completion)
    assert 0 <= cost(model, prompt, completion, cached=cached) <= whole
    assert cost(model, prompt, completion + more) >= whole
