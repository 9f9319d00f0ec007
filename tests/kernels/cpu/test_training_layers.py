"""Layers with one kernel between two products, against the reference's and its gradients."""

import pytest
import torch
from tests.kernels.cpu.layer_gradients import adapted, computed, drawn_decoder

from hud.engine.lora import DEFAULT_TARGETS, disabled
from hud.engine.models.reference_decoder import REFERENCE, PackedLayers
from hud_kernels.cpu import training_layers


@pytest.fixture(autouse=True, params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


class WithoutChunks(PackedLayers):
    """The layers under test, in fp32 on one thread too."""

    def compute(self, layer, x, cos, sin, packing, rows):
        return training_layers.compute(layer, x, cos, sin, packing, rows)


def errors(found, exact):
    return {
        name: float((found[name].float() - one).norm() / one.norm()) for name, one in exact.items()
    }


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("lora", [False, True])
def test_gradients_in_bfloat16_are_as_near_to_the_exact_ones_as_the_reference(kind, lora):
    decoder = adapted(kind, DEFAULT_TARGETS) if lora else drawn_decoder(model_type=kind)
    exact = computed(decoder, torch.float64)
    theirs, mine = (computed(decoder, torch.bfloat16, layers) for layers in (REFERENCE, None))
    assert mine.keys() == exact.keys()
    usual = errors(theirs, exact)
    for name, error in errors(mine, exact).items():
        assert error <= 1.5 * usual[name] + 5e-3, name


@pytest.mark.parametrize("kind", ["qwen3", "qwen2"])
def test_gradients_in_fp32_are_the_reference_s_up_to_rounding(kind):
    decoder = adapted(kind, ("q_proj", "up_proj", "down_proj"))
    exact = computed(decoder, torch.float64)
    found = computed(decoder, layers=WithoutChunks())
    assert found.keys() == exact.keys()
    assert max(errors(found, exact).values()) < 1e-5


@pytest.mark.parametrize("trained", ["norm", "mlp", "self_attn", "embed"])
def test_what_is_frozen_gets_no_gradient_and_the_rest_the_same(trained):
    decoder = drawn_decoder()
    every = computed(decoder, torch.bfloat16)
    for name, parameter in decoder.named_parameters():
        parameter.requires_grad_(trained in name)
    some = computed(decoder, torch.bfloat16)
    assert {name for name in some if name != "hidden"} == {
        name for name, _ in decoder.named_parameters() if trained in name
    }
    for name, one in some.items():
        assert torch.equal(one, every[name]), name


def test_disabled_adapters_are_not_computed_and_layers_may_be_computed_again():
    decoder, base = adapted("qwen3", DEFAULT_TARGETS), drawn_decoder(model_type="qwen3")
    with disabled(decoder):
        assert torch.equal(
            computed(decoder.requires_grad_(False), torch.bfloat16)["hidden"],
            computed(base, torch.bfloat16)["hidden"],
        )
    once = computed(base, torch.bfloat16)
    base.checkpointed = True
    for name, again in computed(base, torch.bfloat16).items():
        assert torch.equal(once[name], again), name
