"""The conformance suite of `hud.engine.sample.runner.Runner`: each implementation inside a sampler."""

import asyncio
import threading

import pytest
import torch
from tests.ports.decoders import DECODERS, packed_logprobs

from hud.engine.sample import sampler as sampling
from hud.engine.sample.hybrid_runner import HybridRunner
from hud.engine.sample.own_states import StateRunner
from hud.engine.sample.plain_runner import PlainRunner
from hud.engine.sample.request import Turn, wait_for_turn
from hud.engine.sample.sampler import Sampler
from hud.trace import SamplingParams
from hud_kernels.cpu.backend import CpuBackend
from hud_kernels.cpu.paged_runner import PagedRunner
from hud_kernels.cuda.backend import CudaBackend

PROMPTS = [[5, 6, 7], [5, 6, 7, 8, 9, 10], [11], [5, 6, 7]]
CLOSE = 2e-4
"""Most difference of a logprob from the packed pass, fp32 or TF32 on a GPU."""


def plain(decoder):
    return PlainRunner


def cpu_kernels(decoder):
    return CpuBackend().runner(decoder, adapters=False)


def own_states(decoder):
    return StateRunner


def hybrid(decoder):
    return HybridRunner


def cpu_pages(decoder):
    return PagedRunner


def cuda_kernels(decoder):
    return CudaBackend().runner(decoder, adapters=False)


IMPLEMENTATIONS = {
    "plain": (plain, "reference", "cpu"),
    "plain over transformers": (plain, "transformers", "cpu"),
    "own states": (own_states, "own state", "cpu"),
    "hybrid": (hybrid, "hybrid", "cpu"),
    "CPU kernels": (cpu_kernels, "reference", "cpu"),
    "CPU kernels of large models": (cpu_pages, "reference", "cpu"),
    "plain on a GPU": (plain, "reference", "cuda"),
    "CUDA kernels": (cuda_kernels, "reference", "cuda"),
}


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request, monkeypatch):
    """Return a decoder, and make samplers compute with the runner."""
    kind, decoder, device = IMPLEMENTATIONS[request.param]
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    made = DECODERS[decoder]().to(device)
    runner = kind(made)
    assert runner is not None
    monkeypatch.setattr(sampling, "runner_type", lambda *_: runner)
    return made


@pytest.fixture
def sampler(implementation):
    made = Sampler(implementation, slots=4, max_context=128)
    yield made
    made.close()


async def turn(sampler, prompt, stop_ids=frozenset(), **options):
    params = SamplingParams(**options)
    return await wait_for_turn(
        lambda listener: sampler.submit(
            Turn(prompt=prompt, params=params, stop_ids=stop_ids), listener
        )
    )


def expected_logprobs(decoder, prompt, drawn, temperature=1.0):
    rows = packed_logprobs(decoder, prompt + drawn)[len(prompt) - 1 : -1] / temperature
    return rows.log_softmax(-1).gather(-1, torch.tensor(drawn, device=rows.device)[:, None])[:, 0]


@pytest.mark.slow
async def test_greedy_tokens_are_the_likeliest_of_the_packed_pass(sampler):
    for prompt in PROMPTS:
        drawn = (await turn(sampler, prompt, max_tokens=12, temperature=0)).token_ids
        rows = packed_logprobs(sampler.decoder, prompt + drawn)[len(prompt) - 1 : -1]
        chosen = rows.gather(-1, torch.tensor(drawn, device=rows.device)[:, None])[:, 0]
        assert (rows.amax(-1) - chosen).max() < CLOSE


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_logprobs_are_those_of_the_distribution_that_was_sampled_from(sampler, temperature):
    for seed, prompt in enumerate(PROMPTS):
        drawn = await turn(sampler, prompt, max_tokens=12, seed=seed, temperature=temperature)
        expected = expected_logprobs(sampler.decoder, prompt, drawn.token_ids, temperature)
        torch.testing.assert_close(torch.tensor(drawn.logprobs), expected.cpu(), atol=CLOSE, rtol=0)


async def test_a_seed_samples_the_same_tokens_whatever_the_batch(sampler):
    alone = [
        await turn(sampler, prompt, max_tokens=16, seed=seed) for seed, prompt in enumerate(PROMPTS)
    ]
    together = await asyncio.gather(
        *(turn(sampler, prompt, max_tokens=16, seed=seed) for seed, prompt in enumerate(PROMPTS))
    )
    assert [drawn.token_ids for drawn in together] == [drawn.token_ids for drawn in alone]


async def test_a_stop_id_ends_a_turn_with_its_first_token(sampler):
    drawn = await turn(sampler, PROMPTS[0], max_tokens=16, temperature=0)
    stop = drawn.token_ids[3]
    first = drawn.token_ids.index(stop)
    stopped = await turn(sampler, PROMPTS[0], frozenset({stop}), max_tokens=16, temperature=0)
    assert stopped.token_ids == drawn.token_ids[: first + 1]
    assert stopped.finish_reason == "stop"


async def test_changed_weights_are_sampled_after_a_refresh(sampler):
    await turn(sampler, PROMPTS[1], max_tokens=4, temperature=0)
    with sampler.exclusive(), torch.no_grad():
        for parameter in sampler.decoder.parameters():
            parameter.mul_(0.7)
        sampler.set_version("next")
    drawn = await turn(sampler, PROMPTS[1], max_tokens=8, seed=1)
    expected = expected_logprobs(sampler.decoder, PROMPTS[1], drawn.token_ids)
    torch.testing.assert_close(torch.tensor(drawn.logprobs), expected.cpu(), atol=CLOSE, rtol=0)
    assert drawn.version == "next"


async def test_truncated_distributions_and_top_logprobs_are_sampled(sampler):
    drawn = await turn(sampler, PROMPTS[0], max_tokens=8, seed=2, top_k=1)
    greedy = await turn(sampler, PROMPTS[0], max_tokens=8, temperature=0)
    assert drawn.token_ids == greedy.token_ids
    params, ended = SamplingParams(max_tokens=4, temperature=0), threading.Event()
    request = sampler.submit(
        Turn(prompt=PROMPTS[0], params=params, stop_ids=frozenset(), top=3), ended.set
    )
    await asyncio.to_thread(ended.wait)
    assert [tokens[0][0] for tokens in request.likeliest] == request.token_ids
    assert all(len(tokens) == 3 for tokens in request.likeliest)
