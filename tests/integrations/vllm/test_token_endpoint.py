"""Sampling by `/inference/v1/generate` where a server offers it: the same turns as by `/v1/completions`."""

import asyncio
import contextlib

import numpy as np
import pytest
from tests.engine.tiny_policy import tiny_folder
from tests.engine.waiting import until
from tests.integrations.vllm.test_vllm_sampling import LONG, PROMPT, trained_logprobs
from tests.integrations.vllm.vllm_policy import change, vllm_policy
from tests.integrations.vllm.vllm_stand_in import StandIn

from hud.engine.lora import LoraConfig
from hud.engine.sample.request import Turn
from hud.trace import SamplingParams

GENERATE, COMPLETIONS = "/inference/v1/generate", "/v1/completions"


@pytest.fixture
def servers():
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(StandIn(tiny_folder(), scale_out=True)) for _ in range(2)]


@pytest.fixture
def policy(servers, tmp_path):
    made = vllm_policy(servers, tmp_path, look=60.0)
    yield made
    made.close()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
async def test_logprobs_are_those_of_the_trainer(policy, servers, temperature):
    drawn = await policy.sample(PROMPT, SamplingParams(max_tokens=40, temperature=temperature))
    expected = trained_logprobs(policy, PROMPT, drawn, temperature)
    np.testing.assert_allclose(drawn.logprobs, expected, atol=1e-5)
    assert all(server.sampled_by == {GENERATE} for server in servers)


async def test_a_turn_has_the_tokens_and_the_likeliest_ones_of_a_completion(policy, tmp_path):
    with StandIn(tiny_folder()) as usual:
        other = await asyncio.to_thread(vllm_policy, [usual], tmp_path / "usual")
        mine, theirs = [
            await until_ended(one, Turn(prompt=PROMPT, params=LONG, stop_ids=frozenset(), top=3))
            for one in (policy, other)
        ]
        assert usual.sampled_by == {COMPLETIONS}
        await asyncio.to_thread(other.close)
    assert mine.token_ids == theirs.token_ids
    for rows in zip(mine.likeliest, theirs.likeliest, strict=True):
        assert [token for token, _ in rows[0]] == [token for token, _ in rows[1]]


async def until_ended(policy, turn):
    request = policy.turn_sampler.submit(turn, lambda: None)
    await until(lambda: request.outcome is not None)
    return request


async def test_settings_of_a_turn_are_sampling_parameters(policy, servers):
    policy.chat.stop_ids = frozenset({7, 9})
    await policy.sample(PROMPT, SamplingParams(max_tokens=2, temperature=0.7, top_k=3, seed=3))
    (asked,) = [one for server in servers for one in server.requests]
    assert (asked.temperature, asked.top_k, asked.top_p, asked.seed) == (0.7, 3, 1.0, 3)
    assert (asked.prompt, asked.stop_token_ids, asked.ignore_eos) == (PROMPT, [7, 9], True)
    assert asked.cache_salt == "base"


async def test_prefixes_that_the_server_had_are_counted(policy):
    turns = [await policy.sample(PROMPT, LONG) for _ in range(2)]
    assert [turn.cached_tokens for turn in turns] == [0, 32]


async def test_a_server_with_other_weights_than_believed_adds_no_token(policy, servers):
    await asyncio.to_thread(change, policy, "one")
    servers[0].kill()
    servers[0].start()
    turns = [policy.sample([number, *PROMPT], LONG) for number in range(4)]
    for number, drawn in enumerate(await asyncio.gather(*turns)):
        assert (drawn.version, len(drawn.token_ids)) == ("one", 40)
        expected = trained_logprobs(policy, [number, *PROMPT], drawn)
        np.testing.assert_allclose(drawn.logprobs, expected, atol=1e-4)


async def test_adapters_are_sampled_by_it_too(servers, tmp_path):
    policy = await asyncio.to_thread(vllm_policy, servers, tmp_path, lora=LoraConfig(rank=4))
    await asyncio.to_thread(change, policy, "one")
    drawn = await policy.sample(PROMPT, LONG)
    assert drawn.version == "one"
    np.testing.assert_allclose(drawn.logprobs, trained_logprobs(policy, PROMPT, drawn), atol=1e-4)
    assert all(server.sampled_by == {GENERATE} for server in servers)
    await asyncio.to_thread(policy.close)


async def test_a_cancelled_turn_is_aborted_there_with_its_connection(policy, servers):
    for server in servers:
        server.hold_at(5)
    turn = asyncio.create_task(policy.sample(PROMPT, LONG))
    await until(lambda: any(server.reached.is_set() for server in servers))
    turn.cancel()
    await until(lambda: not any(server.sequences for server in servers))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"version": "0.32.0", "scale_out": True}], ids=["disabled", "older"]
)
async def test_servers_that_do_not_offer_it_are_sampled_by_completions(tmp_path, options):
    with StandIn(tiny_folder(), **options) as server:
        policy = await asyncio.to_thread(vllm_policy, [server], tmp_path)
        assert len((await policy.sample(PROMPT, LONG)).token_ids) == 40
        assert server.sampled_by == {COMPLETIONS}
        await asyncio.to_thread(policy.close)
