"""Several processes of the real vLLM behind one policy: they share turns, come late, and die."""

import asyncio

import numpy as np
import pytest
from tests.engine.waiting import until
from tests.integrations.vllm.real_vllm import ABSENT, PYTHON, real_policy
from tests.integrations.vllm.test_real_sampling import LARGEST_GAP, TEXT
from tests.integrations.vllm.test_real_weights import LORA
from tests.integrations.vllm.test_vllm_sampling import trained_logprobs
from tests.integrations.vllm.vllm_policy import change

from hud.trace import SamplingParams

pytestmark = [
    pytest.mark.skipif(PYTHON is None, reason=ABSENT),
    pytest.mark.timeout(1200),  # The first test of a file may wait for the servers.
]

TURN = SamplingParams(max_tokens=32)


async def gaps_of(policy, prompt, turn):
    """Return the differences between a turn's logprobs and the trainer's, in nats."""
    expected = await asyncio.to_thread(trained_logprobs, policy, prompt, turn)
    return np.abs(np.array(turn.logprobs) - expected)


async def test_two_servers_share_the_turns(server, tied_server, tied_folder, tmp_path):
    servers = [server, tied_server]
    policy = await asyncio.to_thread(real_policy, servers, tmp_path, tied_folder, lora=LORA)
    before = [await asyncio.to_thread(one.generated) for one in servers]
    prompts = [policy.chat.encode(f"{number}: {TEXT}") for number in range(8)]
    turns = await asyncio.gather(*(policy.sample(prompt, TURN) for prompt in prompts))
    after = [await asyncio.to_thread(one.generated) for one in servers]
    shares = [now - then for now, then in zip(after, before, strict=True)]
    assert sum(shares) == sum(len(turn.token_ids) for turn in turns)
    assert min(shares) >= 2 * TURN.max_tokens
    for prompt, turn in zip(prompts, turns, strict=True):
        assert (await gaps_of(policy, prompt, turn)).max() < LARGEST_GAP
    await asyncio.to_thread(policy.close)


async def test_one_that_joins_after_a_step_samples_with_it_from_its_first_token(
    server, tied_server, tied_folder, tmp_path
):
    there, late = tied_server, server
    await asyncio.to_thread(late.kill)
    policy = await asyncio.to_thread(real_policy, [there, late], tmp_path, tied_folder, lora=LORA)
    await asyncio.to_thread(change, policy, "one", factor=0.02)
    await asyncio.to_thread(late.start)
    await asyncio.to_thread(late.wait)
    pool = policy.turn_sampler._pool
    await until(lambda: all(one.problem is None for one in pool.replicas))
    loading = await asyncio.to_thread(late.generated)  # What verified the adapter.
    prompts = [policy.chat.encode(f"{number}: {TEXT}") for number in range(8)]
    turns = await asyncio.gather(*(policy.sample(prompt, TURN) for prompt in prompts))
    assert await asyncio.to_thread(late.generated) - loading >= 2 * TURN.max_tokens
    assert "hud-test-one" in await asyncio.to_thread(late.adapters)
    for prompt, turn in zip(prompts, turns, strict=True):
        assert (turn.version, turn.swaps) == ("one", [])
        assert (await gaps_of(policy, prompt, turn)).max() < LARGEST_GAP
    await asyncio.to_thread(policy.close)


async def test_the_only_server_is_killed_in_a_turn_and_the_turn_goes_on_when_it_is_back(
    tied_server, tied_folder, tmp_path
):
    policy = await asyncio.to_thread(real_policy, [tied_server], tmp_path, tied_folder, lora=LORA)
    await asyncio.to_thread(change, policy, "one", factor=0.02)
    prompt = policy.chat.encode(TEXT)
    turn = asyncio.create_task(policy.sample(prompt, SamplingParams(max_tokens=64)))
    await until(lambda: any(len(one.token_ids) > 8 for one in policy._samplers._requests))
    await asyncio.to_thread(tied_server.kill)
    (request,) = policy._samplers._requests
    kept = list(request.token_ids)
    await asyncio.to_thread(tied_server.start)
    sampled = await turn
    assert 8 < len(kept) < 64
    assert sampled.token_ids[: len(kept)] == kept
    assert (sampled.version, sampled.swaps, len(sampled.token_ids)) == ("one", [], 64)
    assert (await gaps_of(policy, prompt, sampled)).max() < LARGEST_GAP
    await asyncio.to_thread(policy.close)
