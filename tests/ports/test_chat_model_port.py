"""The conformance suite of `ChatModel`: a policy in this process, in an engine's, behind the gateway, and without token ids."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.platform.gateway.gateway_server import serving

from hud.client import connect, disconnect
from hud.engine.policy import PolicyChatModel
from hud.errors import UsageError
from hud.inference.models import chat_model
from hud.inference.served_model import OpenAIChatModel
from hud.trace import SamplingParams, ToolSpec
from hud.trace.chat_model import ChatModel, Completion, Continuation
from hud_platform.serving.engine_policy import EnginePolicy
from hud_platform.serving.pool import EnginePool
from hud_platform.store.tables import LOCAL_TEAM

ASKED = [{"role": "user", "content": "two three four"}]
TOOL = ToolSpec(name="look", parameters={"type": "object", "properties": {}})
SIZES = {
    "vocab_size": 330,
    "hidden": 32,
    "layers": 1,
    "heads": 2,
    "kv_heads": 1,
    "max_context": 256,
}
SEEDED = SamplingParams(max_tokens=12, seed=3)
IMPLEMENTATIONS = ("in process", "over HTTP", "over HTTP, without token ids")
WITH_TOKENS = IMPLEMENTATIONS[:2]
IN_AN_ENGINE = pytest.param("in an engine's process", marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """The address of a gateway with a policy `m`, which is also the policy of this process."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HUD_HOME", str(folder))
        patch.delenv("HUD_API_URL", raising=False)
        texts = ["one two three four five six"] * 10
        body = {"name": "m", "texts": texts, "sizes": SIZES}
        asyncio.run(connect().post("/v2/models/create", body))
        with serving(connect().embedded.app) as address:
            yield address
        disconnect(folder)


async def opened(name: str, url: str) -> ChatModel:
    if name == "in process":
        return await chat_model("m", client=connect())
    extra = {"return_token_ids": True} if name in WITH_TOKENS else {}
    return OpenAIChatModel("m", base_url=url, api_key="k", extra=extra)


@asynccontextmanager
async def opening(name: str, url: str) -> AsyncIterator[ChatModel]:
    if name != IN_AN_ENGINE.values[0]:
        model = await opened(name, url)
        yield model
        await model.aclose()
        return
    parts = connect().embedded.parts
    engine = EnginePool(parts.config)
    target = await parts.gateway.catalogue.find(LOCAL_TEAM, "m")
    policy = EnginePolicy(engine, target.record, None, target.format.chat, target.system_prompt)
    yield PolicyChatModel("m", policy)
    await engine.stop()


@pytest.fixture(params=[*IMPLEMENTATIONS, IN_AN_ENGINE])
async def model(request, url):
    async with opening(request.param, url) as model:
        yield model


@pytest.fixture(params=[*WITH_TOKENS, IN_AN_ENGINE])
async def policy(request, url):
    async with opening(request.param, url) as model:
        yield model


def text(turn: Completion) -> str:
    return f"{turn.reasoning or ''}{turn.content or ''}"


async def test_a_seed_repeats_a_turn(model):
    first, again = [await model.complete(ASKED, [TOOL], SEEDED) for _ in range(2)]
    assert (text(first), first.finish_reason) == (text(again), again.finish_reason)
    assert first.usage.completion_tokens > 0


async def test_every_implementation_samples_the_same(url):
    turns = [
        await (await opened(name, url)).complete(ASKED, [], SEEDED) for name in IMPLEMENTATIONS
    ]
    assert len({text(turn) for turn in turns}) == 1
    here, there = (turn.sample for turn in turns[:2])
    assert here.output_token_ids == there.output_token_ids
    assert here.output_logprobs == pytest.approx(there.output_logprobs, abs=1e-5)
    assert turns[2].sample is None


async def test_a_bound_ends_a_turn_and_is_named(model):
    turn = await model.complete(ASKED, [], SamplingParams(max_tokens=1, temperature=0.0))
    assert (turn.finish_reason, turn.usage.completion_tokens) == ("length", 1)


async def test_a_sample_has_a_log_probability_for_each_token(policy):
    sample = (await policy.complete(ASKED, [TOOL], SEEDED)).sample
    assert 0 < len(sample.output_token_ids) == len(sample.output_logprobs) <= SEEDED.max_tokens
    assert all(logprob <= 0 for logprob in sample.output_logprobs)


async def test_a_continuation_extends_the_ids_of_the_turn_before(policy):
    first = await policy.complete(ASKED, [], SEEDED)
    so_far = [*first.sample.prompt_token_ids, *first.sample.output_token_ids]
    messages = [
        *ASKED,
        {"role": "assistant", "content": text(first)},
        {"role": "user", "content": "six"},
    ]
    continuation = Continuation(so_far, covered=2)
    turn = await policy.complete(messages, [], SEEDED, continuation=continuation)
    assert turn.extended
    assert turn.sample.prompt_token_ids[: len(so_far)] == so_far
    assert len(turn.sample.prompt_token_ids) > len(so_far)


async def test_a_conversation_that_is_too_long_is_refused_for_good(model):
    endless = [{"role": "user", "content": "one two three four " * 500}]
    with pytest.raises(UsageError, match="256"):
        await model.complete(endless, [], SEEDED)


async def test_a_cancelled_turn_leaves_the_model_usable(model):
    long = SamplingParams(max_tokens=200, seed=1)
    asked = [asyncio.ensure_future(model.complete(ASKED, [], long)) for _ in range(8)]
    await asyncio.sleep(0.05)
    for turn in asked:
        turn.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    assert (await model.complete(ASKED, [], SEEDED)).usage.completion_tokens > 0


async def test_a_closed_model_opens_again(model):
    await model.complete(ASKED, [], SEEDED)
    await model.aclose()
    assert (await model.complete(ASKED, [], SEEDED)).usage.completion_tokens > 0
