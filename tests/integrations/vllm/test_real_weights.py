"""Weights that reach the real vLLM after a step: as a folder, as an adapter; and what a CPU refuses."""

import asyncio

import numpy as np
import pytest
from tests.engine.waiting import until
from tests.integrations.vllm.real_vllm import ABSENT, PYTHON, real_policy
from tests.integrations.vllm.test_real_sampling import LARGEST_GAP, TEXT
from tests.integrations.vllm.test_vllm_sampling import trained_logprobs
from tests.integrations.vllm.vllm_policy import change

from hud.engine.lora import LoraConfig
from hud.errors import HudError, UsageError
from hud.trace import SamplingParams

pytestmark = [
    pytest.mark.skipif(PYTHON is None, reason=ABSENT),
    pytest.mark.timeout(1200),  # The first test of a file may wait for the servers.
]

GREEDY = SamplingParams(max_tokens=16, temperature=0)
LORA = LoraConfig(rank=8)


async def trained(policy, name, *, factor=1e-3, in_flight=False):
    """Take a step's place."""
    await asyncio.to_thread(change, policy, name, in_flight=in_flight, factor=factor)


async def probed(policy, version):
    """Sample a turn with a version and compare its logprobs with the trainer's; return them."""
    prompt = policy.chat.encode(TEXT)
    turn = await policy.sample(prompt, GREEDY)
    assert (turn.version, turn.swaps) == (version, [])
    expected = await asyncio.to_thread(trained_logprobs, policy, prompt, turn)
    gaps = np.abs(np.array(turn.logprobs) - expected)
    print(f"gap with {version}: {gaps.mean():.2g}, {gaps.max():.2g} at most")
    assert gaps.max() < LARGEST_GAP
    return np.array(turn.logprobs)


async def test_a_step_of_all_weights_is_loaded_from_its_folder(server, untied_folder, tmp_path):
    policy = await asyncio.to_thread(real_policy, [server], tmp_path, untied_folder)
    base = {name: tensor.clone() for name, tensor in policy.decoder.state_dict().items()}
    before, sums = await probed(policy, None), await asyncio.to_thread(server.checksums)
    assert sums
    await trained(policy, "one")
    after = await probed(policy, "one")
    assert np.abs(after - before).max() > 10 * LARGEST_GAP
    changed = await asyncio.to_thread(server.checksums)
    assert changed.keys() == sums.keys()
    assert all(changed[name] != sums[name] for name in sums)
    policy.decoder.load_state_dict(base)
    await asyncio.to_thread(change, policy, None, factor=0.0)
    assert await asyncio.to_thread(server.checksums) == sums
    np.testing.assert_allclose(await probed(policy, None), before, atol=1e-4)
    await asyncio.to_thread(policy.close)


async def test_in_flight_a_turn_continues_with_the_loaded_folder(server, untied_folder, tmp_path):
    policy = await asyncio.to_thread(real_policy, [server], tmp_path, untied_folder)
    base = {name: tensor.clone() for name, tensor in policy.decoder.state_dict().items()}
    prompt = policy.chat.encode(TEXT)
    turn = asyncio.create_task(policy.sample(prompt, SamplingParams(max_tokens=64)))
    await until(lambda: any(len(one.token_ids) > 3 for one in policy._samplers._requests))
    await trained(policy, "one", in_flight=True)
    sampled = await turn
    ((place, version),) = sampled.swaps
    assert (sampled.version, version, len(sampled.token_ids)) == (None, "one", 64)
    assert 3 < place < 64
    policy.decoder.load_state_dict(base)
    await asyncio.to_thread(change, policy, None, factor=0.0)
    expected = await asyncio.to_thread(trained_logprobs, policy, prompt, sampled)
    gaps = np.abs(np.array(sampled.logprobs) - expected)
    assert gaps[:place].max() < LARGEST_GAP
    assert gaps[place:].max() > LARGEST_GAP
    await asyncio.to_thread(policy.close)


async def test_a_step_of_lora_is_an_adapter_that_is_loaded_at_run_time(
    tied_server, tied_folder, tmp_path
):
    policy = await asyncio.to_thread(real_policy, [tied_server], tmp_path, tied_folder, lora=LORA)
    sums = await asyncio.to_thread(tied_server.checksums)
    before = await probed(policy, None)
    await trained(policy, "one", factor=0.02)
    first = await probed(policy, "one")
    assert np.abs(first - before).max() > 10 * LARGEST_GAP
    await trained(policy, "two", factor=0.02)
    second = await probed(policy, "two")
    assert np.abs(second - first).max() > 10 * LARGEST_GAP
    loaded = await asyncio.to_thread(tied_server.adapters)
    assert {"hud-test-two"} <= loaded <= {"hud-test-one", "hud-test-two"}
    # The model's own weights are as they were.
    assert await asyncio.to_thread(tied_server.checksums) == sums
    await asyncio.to_thread(policy.close)


async def test_in_flight_a_turn_continues_with_the_next_adapter(tied_server, tied_folder, tmp_path):
    policy = await asyncio.to_thread(real_policy, [tied_server], tmp_path, tied_folder, lora=LORA)
    prompt = policy.chat.encode(TEXT)
    turn = asyncio.create_task(policy.sample(prompt, SamplingParams(max_tokens=64)))
    await until(lambda: any(len(one.token_ids) > 3 for one in policy._samplers._requests))
    await trained(policy, "one", factor=0.02, in_flight=True)
    sampled = await turn
    ((place, version),) = sampled.swaps
    assert (sampled.version, version, len(sampled.token_ids)) == (None, "one", 64)
    expected = await asyncio.to_thread(trained_logprobs, policy, prompt, sampled)
    assert np.abs(np.array(sampled.logprobs) - expected)[place:].max() < LARGEST_GAP
    await asyncio.to_thread(policy.close)


async def test_all_weights_of_a_tied_model_arrive_or_are_refused_in_our_words(
    tied_server, tied_folder, tmp_path
):
    """A CPU that packs the vocabulary projection, as for bf16, never renews it: nothing is sampled with half of a step."""
    policy = await asyncio.to_thread(real_policy, [tied_server], tmp_path, tied_folder, server=5.0)
    base = {name: tensor.clone() for name, tensor in policy.decoder.state_dict().items()}
    await trained(policy, "one")
    try:
        await probed(policy, "one")
    except HudError as error:
        assert "never renews it: train such a model by LoRA" in str(error)  # noqa: PT017
    policy.decoder.load_state_dict(base)
    await asyncio.to_thread(change, policy, None, factor=0.0)
    await asyncio.to_thread(policy.close)


async def test_a_server_without_weight_transfer_refuses_tensors_in_a_sentence(
    server, untied_folder, tmp_path
):
    """In place a CPU takes no tensors: every engine of vLLM's weight transfer copies between GPUs."""

    def join(module, client):
        group = {"master_address": "127.0.0.1", "master_port": 1}
        client.init_weight_transfer_engine({**group, "rank_offset": 1, "world_size": 2})

    with pytest.raises(UsageError, match="without --weight-transfer-config"):
        await asyncio.to_thread(real_policy, [server], tmp_path, untied_folder, connect=join)
    policy = await asyncio.to_thread(real_policy, [server], tmp_path, untied_folder)
    await probed(policy, None)
    await asyncio.to_thread(policy.close)
