"""Router choices: sampled sequences keep theirs, their training pass replays them, and a step tells the load of experts."""

import asyncio
import copy

import pytest
import torch
from tests.engine.foreign.test_state_decoder import as_datum, sample
from transformers import AutoConfig, AutoModelForCausalLM

from hud.engine.exactness.small_configs import small_configs
from hud.engine.exactness.small_model import randomized
from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.learn.options import TrainerOptions
from hud.engine.models.routing import SampledRoutes, routed, routers_of
from hud.engine.pretrained import load_decoder
from hud.engine.sample.sampler import Sampler
from hud.trace import SamplingParams

FAST = ("glm4_moe",)
SLOW = ("gpt_oss", "qwen3_moe", "llama4_text", "deepseek_v3", "mixtral", "qwen3_5_moe_text")
FLIPPING = ("gpt_oss", "glm4_moe", "llama4_text", "deepseek_v3")
"""Types whose chosen experts have gates of like size, so that a flipped choice shows."""
KINDS = (*FAST, *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW))
PROMPT = list(range(3, 43))


@pytest.fixture
def folder(tmp_path, request):
    config = next(small_configs(AutoConfig.for_model(request.param)))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model = randomized(model.float().eval())
    with torch.no_grad():
        for router in routers_of(model):  # So that gates differ, and choices matter.
            router.weight.normal_()
        for name, parameter in model.named_parameters():
            if "experts" in name and parameter.ndim == 3:
                parameter.mul_(3)
    model.save_pretrained(tmp_path)
    return tmp_path


def sampled(decoder, *prompts, tokens=20):
    sampler = Sampler(decoder, slots=4)

    async def turns():
        return await asyncio.gather(
            *(
                sampler.sample(prompt, SamplingParams(max_tokens=tokens, seed=seed), frozenset())
                for seed, prompt in enumerate(prompts)
            )
        )

    try:
        return asyncio.run(turns())
    finally:
        sampler.close()


@pytest.mark.parametrize("folder", KINDS, indirect=True)
def test_replayed_routes_bring_the_trainer_nearer_to_a_sampler_in_bfloat16(folder):
    half, decoder = (load_decoder(folder, dtype=kind) for kind in (torch.bfloat16, torch.float32))
    routes = half.sampled_routes = SampledRoutes()
    prompts = [PROMPT, [*PROMPT[:20], *range(60, 70)], list(range(10, 60))]
    turns = sampled(half, *prompts, tokens=40)
    datums = [as_datum(*pair) for pair in zip(prompts, turns, strict=True)]
    trainer = LocalTrainer(decoder)
    own = trainer.forward_backward(datums)
    trainer.zero_grad()
    decoder.sampled_routes = routes
    replayed = trainer.forward_backward(datums)
    assert own["replayed_tokens:mean"] == 0
    assert replayed["replayed_tokens:mean"] == 1
    assert replayed["sampler_gap:mean"] < own["sampler_gap:mean"]
    if decoder.config.model_type in FLIPPING:
        assert replayed["sampler_gap:max"] < 0.5 * own["sampler_gap:max"]
    assert 0 < own["expert_load_entropy:mean"] <= 1 <= own["expert_load:max"]


@pytest.mark.parametrize("folder", KINDS, indirect=True)
@pytest.mark.parametrize("recomputed", [False, True])
def test_at_the_weights_that_sampled_replay_changes_nothing(folder, recomputed):
    decoder = load_decoder(folder, dtype=torch.float32)
    decoder.sampled_routes = SampledRoutes()
    turns = sampled(decoder, PROMPT, PROMPT[:9])
    datums = [as_datum(*one) for one in zip((PROMPT, PROMPT[:9]), turns, strict=True)]
    trainer = LocalTrainer(decoder, options=TrainerOptions(recompute_layers=recomputed))
    gradients = []
    for routes in (decoder.sampled_routes, None):
        decoder.sampled_routes = routes
        metrics = trainer.forward_backward(datums)
        assert metrics["sampler_gap:max"] < 1e-4
        gradients.append({name: g.clone() for name, g in trainer.gradients().items()})
        trainer.zero_grad()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("folder", FAST, indirect=True)
def test_the_choices_of_cached_tokens_are_those_that_were_sampled_with(folder):
    decoder = load_decoder(folder, dtype=torch.float32)
    decoder.sampled_routes = SampledRoutes()
    sampler = Sampler(decoder, slots=3)
    (first,) = sample(sampler, PROMPT)
    prompt = [*PROMPT, *first.token_ids, 50, 51]
    second, branched = sample(sampler, prompt, [*PROMPT[:30], 70, 71])
    sampler.close()
    assert second.cached_tokens > 30
    ids = [*prompt, *second.token_ids]
    with torch.no_grad(), routed() as routing:
        decoder.hidden_packed(
            torch.tensor(ids[:-1]), torch.arange(len(ids) - 1), torch.tensor([0, len(ids) - 1])
        )
    experts = decoder.sampled_routes.of(ids)
    assert (torch.tensor(experts).sort(-1)[0] == routing.chosen().sort(-1)[0]).all()
    assert branched.cached_tokens >= 16
    assert decoder.sampled_routes.of([*PROMPT[:30], 70, 71, *branched.token_ids]) is not None


def test_the_least_recently_used_routes_are_dropped():
    routes = SampledRoutes(most_bytes=300)
    for number in range(3):
        routes.put([number], torch.zeros(10, 2, 3))
        routes.of([0])
    assert routes.of([0]) is not None
    assert routes.of([1]) is None
    assert copy.deepcopy(routes) is routes
