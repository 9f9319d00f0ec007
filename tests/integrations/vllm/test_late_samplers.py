"""Samplers that join late, by every path of the weights: they have the current ones before their first token."""

import asyncio
import contextlib

import numpy as np
import pytest
from tests.engine.tiny_policy import tiny_folder
from tests.engine.waiting import until
from tests.integrations.vllm.test_vllm_sampling import LONG, PROMPT, trained_logprobs
from tests.integrations.vllm.vllm_policy import change, vllm_policy
from tests.integrations.vllm.vllm_stand_in import StandIn
from tests.integrations.vllm.vllm_transfer import SendingHalf

from hud.engine.lora import LoraConfig

PATHS = {
    "folder": ({}, "collective_rpc"),
    "adapter": ({"lora": LoraConfig(rank=4)}, "load_lora_adapter"),
    "transfer": ({"connect": SendingHalf}, "finish_weight_update"),
}


@pytest.fixture
def servers():
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(StandIn(tiny_folder())) for _ in range(2)]


@pytest.mark.parametrize("path", PATHS)
async def test_one_that_joins_after_two_steps_has_the_second_ones_weights_first(
    servers, tmp_path, path
):
    """It was never there before; a turn is under way when the only other server is lost."""
    options, loading = PATHS[path]
    there, late = servers
    late.kill()
    policy = await asyncio.to_thread(vllm_policy, servers, tmp_path, **options)
    for step in ("one", "two"):
        await asyncio.to_thread(change, policy, step)
    there.hold_at(10)
    turn = asyncio.create_task(policy.sample(PROMPT, LONG))
    await until(there.reached.is_set)
    await until(lambda: sum(len(one.token_ids) for one in policy._samplers._requests) == 10)
    weighed = []
    streamed = late._streamed

    async def noting(*given):
        weighed.append(list(late.calls))
        return await streamed(*given)

    late._streamed = noting
    late.start()
    there.kill()
    drawn = await turn
    # Its first stream came after its weights did, and continued from the tokens that the other one had sampled.
    assert loading in weighed[0]
    assert weighed[0].count(loading) == 1
    (asked,) = late.requests
    assert asked.prompt == PROMPT + drawn.token_ids[:10]
    assert asked.cache_salt == "two"
    assert (drawn.version, drawn.swaps, len(drawn.token_ids)) == ("two", [], 40)
    expected = trained_logprobs(policy, PROMPT, drawn)
    np.testing.assert_allclose(drawn.logprobs, expected, atol=1e-3)
    policy.close()


@pytest.mark.slow
async def test_of_servers_that_join_one_after_another_none_samples_with_older_weights(
    servers, tmp_path
):
    """Steps go on while they join: whoever samples a turn, it is with the weights that were newest at its beginning."""
    there, late = servers
    late.kill()
    policy = await asyncio.to_thread(vllm_policy, servers, tmp_path)
    joining = asyncio.create_task(asyncio.to_thread(late.start))
    for step in range(6):
        await asyncio.to_thread(change, policy, f"step-{step}", factor=0.1)
        turns = [policy.sample([number, *PROMPT], LONG) for number in range(4)]
        for drawn in await asyncio.gather(*turns):
            assert drawn.version == f"step-{step}"
    await joining
    await until(lambda: all(one.problem is None for one in policy._samplers._pool.replicas))
    assert late.calls.count("collective_rpc") >= 1
    for number, request in enumerate(late.requests):
        assert request.cache_salt != "base", number
    assert there.requests
    policy.close()


@pytest.mark.slow
async def test_servers_come_and_go_while_turns_are_under_way(servers, tmp_path):
    there, late = servers
    policy = await asyncio.to_thread(vllm_policy, [there], tmp_path)
    await asyncio.to_thread(change, policy, "one")
    there.hold_at(10)
    turn = asyncio.create_task(policy.sample(PROMPT, LONG))
    await until(there.reached.is_set)
    await asyncio.to_thread(policy.turn_sampler.change_servers, (late.url,))
    drawn = await turn  # The tokens that the first had sampled are kept, and the other one continues with its weights.
    (asked,) = late.requests
    assert asked.cache_salt == "one"
    assert (drawn.version, drawn.swaps, len(drawn.token_ids)) == ("one", [], 40)
    expected = trained_logprobs(policy, PROMPT, drawn)
    np.testing.assert_allclose(drawn.logprobs, expected, atol=1e-3)
    there.hold_at(None)
    calls = len(late.calls)
    await asyncio.to_thread(policy.turn_sampler.change_servers, (late.url, there.url))
    await asyncio.to_thread(change, policy, "two")
    pool = policy.turn_sampler._pool
    await until(
        lambda: all(one.problem is None and one.has is pool.current for one in pool.replicas)
    )
    await asyncio.gather(*(policy.sample([number, *PROMPT], LONG) for number in range(8)))
    assert {one.cache_salt for one in there.requests[1:]} == {"two"}
    assert len(late.calls) > calls
    policy.close()
