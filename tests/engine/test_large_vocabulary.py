"""Sampler and trainer agree on a vocabulary of published size: 151,936 tokens, in fp32."""

import asyncio
import copy
from types import SimpleNamespace

import pytest
import torch
from tests.engine.random_decoder import random_decoder

from hud.engine.learn.packed_pass import PackedPass
from hud.engine.learn.training_pass import PlainPasses
from hud.engine.sample.request import Turn, wait_for_turn
from hud.engine.sample.sampler import Sampler
from hud.engine.sample.token_sampling import sample_tokens
from hud.trace import SamplingParams

VOCABULARY = 151_936


class Given:
    """A decoder whose logits are given."""

    def __init__(self, logits):
        self.given = logits
        self.config = SimpleNamespace(vocab_size=logits.shape[-1], ours=False)

    def hidden_packed(self, *_):
        return self.given

    def logits(self, hidden):
        return hidden


def batch_of(prompt, drawn):
    ids = torch.tensor([*prompt, *drawn])
    count = len(ids) - 1
    nothing = torch.zeros(len(drawn))
    return PackedPass(
        datums=(0,),
        prefixes=None,
        shared_tokens=0,
        prediction=None,
        temperatures=None,
        sequence=torch.zeros(len(drawn), dtype=torch.int64),
        sampling_logprobs=nothing,
        advantages=nothing,
        weights=nothing,
        input_ids=ids[:-1],
        positions=torch.arange(count),
        cu_seqlens=torch.tensor([0, count]),
        predicts=torch.arange(len(prompt) - 1, count),
        targets=torch.tensor(drawn),
    )


def logits_of(rows, spread):
    """Return logits as tokenizers order them: frequent tokens first."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, VOCABULARY, generator=generator) * spread
    return logits.sort(-1, descending=True).values


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_the_trainers_sum_keeps_the_tail_of_the_vocabulary(spread, entropy):
    logits = logits_of(4, spread).requires_grad_()
    targets = torch.tensor([0, 9, 3_000, VOCABULARY - 1])
    batch = batch_of([1], targets.tolist())
    mine, found, *_ = PlainPasses(Given(logits)).token_scores(batch, entropy=entropy)
    exact = logits.detach().double().requires_grad_()
    everything = exact.log_softmax(-1)
    expected = everything.gather(-1, targets[:, None]).squeeze(-1)
    assert (mine - expected).abs().max() < 4e-6
    weights = torch.tensor([1.0, -2.0, 0.5, 3.0])
    (mine * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(logits.grad.double(), exact.grad, atol=1e-7, rtol=1e-5)
    if entropy:
        own = -(everything.exp() * everything).sum(-1)
        torch.testing.assert_close(found.double(), own, atol=1e-4, rtol=1e-5)


def test_a_drawn_tokens_logprob_keeps_the_tail_too():
    logits = logits_of(4, 4.0)
    exact = logits.double().log_softmax(-1)
    for params in (
        SamplingParams(),
        SamplingParams(top_k=VOCABULARY),
        SamplingParams(temperature=0.0),
    ):
        ids, logprobs = sample_tokens(logits.clone(), [params] * 4, [0.1, 0.5, 0.9, 0.999])
        for row, (token, logprob) in enumerate(zip(ids, logprobs, strict=True)):
            assert logprob == pytest.approx(exact[row, token].item(), abs=4e-6)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.25, 1.0], ids=["even", "peaked"])
async def test_sampler_and_trainer_agree_within_the_promised_bound(scale):
    decoder = random_decoder(vocab_size=VOCABULARY)
    with torch.no_grad():
        decoder.model.embed_tokens.weight.mul_(scale / 0.25)
    exact = copy.deepcopy(decoder).double()
    sampler = Sampler(decoder, slots=4, max_context=64)
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, VOCABULARY, (4, 8), generator=generator).tolist()

    def turn(prompt, seed):
        params = SamplingParams(max_tokens=12, seed=seed)
        asked = Turn(prompt=prompt, params=params, stop_ids=frozenset())
        return wait_for_turn(lambda listener: sampler.submit(asked, listener))

    try:
        turns = await asyncio.gather(*(turn(prompt, seed) for seed, prompt in enumerate(prompts)))
    finally:
        sampler.close()
    for prompt, drawn in zip(prompts, turns, strict=True):
        batch = batch_of(prompt, drawn.token_ids)
        with torch.no_grad():
            mine, reference = (
                PlainPasses(one).token_scores(batch).logprobs for one in (decoder, exact)
            )
        sampled = torch.tensor(drawn.logprobs, dtype=torch.float64)
        assert (sampled - mine).abs().max() < 5e-5
        assert (mine - reference).abs().max() < 5e-5
