"""Loading, sampling and training on a CUDA GPU give what the CPU gives. Skipped by name where there is no GPU."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.engine.learn.test_trainer_decoder import decoder, gradients, grouped_batch
from tests.engine.random_decoder import CONFIG
from tests.engine.tiny_policy import lesson, tiny_folder

from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.lora import LoraConfig
from hud.engine.models.reference_decoder import ReferenceDecoder
from hud.engine.policy import Policy
from hud.engine.pretrained import load_weights, save_decoder
from hud.engine.sample.plain_runner import runner_type
from hud.engine.sample.sampler import Sampler
from hud.trace import SamplingParams
from hud_kernels.cuda.runner import CudaRunner

DEVICE = "cuda"

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def sample_all(sampler, prompts, params):
    async def play():
        turns = [sampler.sample(prompt, params, frozenset()) for prompt in prompts]
        return await asyncio.gather(*turns)

    return asyncio.run(play())


def random_prompts(count, vocabulary):
    rng = np.random.default_rng(0)
    return [rng.integers(0, vocabulary, 5 + 40 * number).tolist() for number in range(count)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_folder_loads_samples_learns_and_is_saved(tmp_path, dtype):
    policy = Policy.load(tiny_folder(), dtype=dtype, device=DEVICE)
    try:
        everything = [*policy.decoder.parameters(), *policy.decoder.buffers()]
        assert {one.device.type for one in everything} == {DEVICE}
        cache = policy.sampler.cache
        assert {one.device.type for one in (cache.keys, cache.values)} == {DEVICE}
        prompt = [9, 10, 11, 12]
        before = asyncio.run(policy.sample(prompt, SamplingParams(max_tokens=8, temperature=0)))
        trainer = LocalTrainer(policy.decoder)
        trainer.forward_backward([lesson([*prompt, 20, 21], 2)], "cross_entropy")
        with policy.exclusive():
            trainer.optim_step(0.05)
            policy.checkpoint = "one"
        after = asyncio.run(policy.sample(prompt, SamplingParams(max_tokens=8, temperature=0)))
        assert after.version == "one"
        assert after.logprobs != before.logprobs
        save_decoder(policy.decoder, tmp_path)
        load_weights(policy.decoder, tmp_path)
    finally:
        policy.close()


@pytest.mark.parametrize("params", [SamplingParams(temperature=0), SamplingParams(seed=3)])
def test_the_gpu_samples_the_tokens_of_the_cpu(params):
    here = decoder()
    there = decoder().to(DEVICE)
    found = []
    for model in (here, there):
        sampler = Sampler(model.eval(), slots=4, max_context=512)
        turns = sample_all(sampler, random_prompts(6, 61), replace(params, max_tokens=40))
        sampler.close()
        found.append(turns)
    for mine, theirs in zip(*found, strict=True):
        assert mine.token_ids == theirs.token_ids
        np.testing.assert_allclose(mine.logprobs, theirs.logprobs, atol=1e-4)


def test_recorded_steps_sample_the_tokens_of_the_reference(monkeypatch):
    pytest.importorskip("triton")
    torch.manual_seed(0)
    model = ReferenceDecoder(replace(CONFIG, head_dim=16)).to(DEVICE).eval()
    assert runner_type(model) is CudaRunner
    found = []
    for kernels in ("1", "0"):
        monkeypatch.setenv("HUD_CUDA_KERNELS", kernels)
        sampler = Sampler(model, slots=4, max_context=1024)
        found.append(
            sample_all(sampler, random_prompts(9, 64), SamplingParams(max_tokens=90, seed=1))
        )
        sampler.close()
    for mine, theirs in zip(*found, strict=True):
        assert mine.token_ids == theirs.token_ids
        np.testing.assert_allclose(mine.logprobs, theirs.logprobs, atol=1e-4)


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4)])
def test_the_gpu_computes_the_gradient_of_the_cpu(lora):
    here, there = (LocalTrainer(decoder().to(device), lora=lora) for device in ("cpu", DEVICE))
    datums = grouped_batch()
    one, other = (trainer.forward_backward(datums, "ppo")["loss:sum"] for trainer in (here, there))
    assert one == pytest.approx(other, rel=1e-4)
    expected = gradients(here)
    for name, tensor in gradients(there).items():
        torch.testing.assert_close(tensor.cpu(), expected[name], rtol=1e-3, atol=1e-4)
    for trainer in (here, there):
        trainer.optim_step(1e-3)
    for mine, theirs in zip(here.decoder.parameters(), there.decoder.parameters(), strict=True):
        torch.testing.assert_close(theirs.cpu(), mine, rtol=1e-3, atol=1e-4)
