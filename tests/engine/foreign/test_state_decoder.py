"""Classes whose layers keep their own state sample and train as plain `transformers` computes them."""

import asyncio

import numpy as np
import pytest
import torch
from tests.engine.foreign.gradients import compare
from transformers import AutoConfig, AutoModelForCausalLM

from hud.engine.exactness.small_configs import small_configs
from hud.engine.exactness.small_model import randomized
from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.lora import LoraConfig, lora_layers, lora_parameters
from hud.engine.pretrained import load_decoder, load_weights, save_decoder
from hud.engine.sample.sampler import Sampler
from hud.learning.datums import Datum
from hud.trace import SamplingParams

FAST = ("mamba",)
SLOW = (
    "deepseek_v3",
    "gemma2",
    "gemma3_text",
    "glm4_moe",
    "gpt_oss",
    "llama4_text",
    "nemotron_h",
    "qwen3_next",
)
KINDS = (*FAST, *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW))


def write(folder, kind):
    """Write a small random model of a class, as published ones are written; return it."""
    config = next(small_configs(AutoConfig.for_model(kind)))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model = randomized(model.float().eval())
    model.save_pretrained(folder)
    return model


def plain_logprobs(model, ids):
    logits = model(input_ids=torch.tensor([ids[:-1]]), use_cache=False).logits[0]
    return logits.log_softmax(-1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]


def sample(sampler, *prompts):
    async def turns():
        return await asyncio.gather(
            *(
                sampler.sample(prompt, SamplingParams(max_tokens=6, seed=seed), frozenset())
                for seed, prompt in enumerate(prompts)
            )
        )

    return asyncio.run(turns())


def as_datum(prompt, turn):
    mask = np.array([0.0] * len(prompt) + [1.0] * len(turn.token_ids), np.float32)
    return Datum(
        tokens=np.array(prompt + turn.token_ids),
        mask=mask,
        logprobs=np.array([0.0] * len(prompt) + turn.logprobs, np.float32),
        advantages=mask,
        weights=mask,
        temperatures=np.ones_like(mask),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_it_samples_as_transformers_computes_and_the_next_turn_takes_over_the_state(tmp_path, kind):
    model = write(tmp_path, kind)
    decoder = load_decoder(tmp_path)
    sampler = Sampler(decoder, slots=3)
    prompts = [list(range(3, 23)), [*range(3, 12), *range(30, 38)]]
    turns = sample(sampler, *prompts)
    prompts.append([*prompts[0], *turns[0].token_ids, 40, 41])
    turns += sample(sampler, prompts[2])
    sampler.close()
    assert turns[2].cached_tokens >= len(prompts[0])
    for prompt, turn in zip(prompts, turns, strict=True):
        with torch.no_grad():
            theirs = plain_logprobs(model, prompt + turn.token_ids)[len(prompt) - 1 :]
        torch.testing.assert_close(torch.tensor(turn.logprobs), theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("adapter", [False, True])
def test_a_training_step_has_the_gradient_of_transformers(tmp_path, kind, adapter):
    model = write(tmp_path / "base", kind)
    decoder = load_decoder(tmp_path / "base")
    lora = LoraConfig(rank=2, targets=("q_proj", "in_proj", "o_proj", "up_proj"))
    lora = LoraConfig(rank=2, targets=tuple(_present(decoder, lora.targets))) if adapter else None
    trainer = LocalTrainer(decoder, lora=lora)
    sampler = Sampler(decoder, slots=2)
    prompts = [list(range(3, 23)), list(range(5, 12))]
    datums = [
        as_datum(prompt, turn)
        for prompt, turn in zip(prompts, sample(sampler, *prompts), strict=True)
    ]
    sampler.close()
    for datum, logprobs in zip(datums, trainer.forward(datums), strict=True):
        np.testing.assert_allclose(logprobs, datum.logprobs * datum.mask, atol=1e-4)
    trainer.forward_backward(datums)
    model.requires_grad_(True).zero_grad()
    for datum in datums:
        logprobs = plain_logprobs(model, datum.tokens.tolist())
        # At the policy that sampled, the ratio's gradient is that of the logprob.
        (-(logprobs * torch.tensor(datum.mask[1:])).sum()).backward()
    theirs = {name: parameter.grad for name, parameter in model.named_parameters()}
    if not adapter:
        for name, parameter in decoder.named_parameters():
            compare(parameter.grad, theirs[name.removeprefix("causal.")])
    for name, layer in lora_layers(decoder).items():
        weight = theirs[f"{name.removeprefix('causal.')}.weight"]
        compare(layer.lora_B.grad, layer.scale * weight @ layer.lora_A.detach().T)
    before = decoder.logits(decoder.hidden_packed(*single(prompts[0]))).detach()
    trainer.optim_step(1e-2)
    after = decoder.logits(decoder.hidden_packed(*single(prompts[0]))).detach()
    assert (after - before).abs().max() > 1e-3
    if adapter:
        assert lora_parameters(decoder)
        return
    save_decoder(decoder, tmp_path / "trained")
    fresh = load_decoder(tmp_path / "base")
    load_weights(fresh, tmp_path / "trained")
    with torch.no_grad():
        again = fresh.logits(fresh.hidden_packed(*single(prompts[0])))
    torch.testing.assert_close(again, after, atol=1e-5, rtol=0)


def single(ids):
    return torch.tensor(ids), torch.arange(len(ids)), torch.tensor([0, len(ids)])


def _present(decoder, names):
    present = {
        name.rpartition(".")[2]
        for name, module in decoder.named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    return [name for name in names if name in present]
