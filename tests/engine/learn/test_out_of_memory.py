"""A GPU without memory left: one sentence that names what to lower, and a trainer that can go on."""

import asyncio
import errno

import pytest
import torch
from tests.engine.tiny_policy import lesson, tiny_folder, tiny_policy

from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.learn.optimizer_state import OptimizerOptions
from hud.engine.learn.options import TrainerOptions
from hud.engine.lora import LoraConfig
from hud.engine.policy import Policy
from hud.engine.pretrained import load_decoder
from hud.errors import DeviceMemoryError, InfrastructureFault
from hud.trace import SamplingParams

SAID = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB."


def no_memory(*arguments, **named):
    raise torch.cuda.OutOfMemoryError(SAID)


def batch():
    return [lesson([5, 6, 7, 8, 9], 2)]


def test_a_pass_without_memory_leaves_no_gradient_and_training_goes_on(monkeypatch):
    trainer = LocalTrainer(load_decoder(tiny_folder()))
    trainer.forward_backward(batch(), "cross_entropy")
    with monkeypatch.context() as patched:
        patched.setattr("hud.engine.learn.training_pass.PlainPasses.gradient", no_memory)
        with pytest.raises(DeviceMemoryError) as raised:
            trainer.forward_backward(batch(), "cross_entropy")
    said = str(raised.value)
    assert "no memory left for a training pass" in said
    assert "2.50 GiB more" in said
    for option in (
        "--recompute-layers",
        "--optimizer-states 8bit",
        "--offload-optimizer",
        "--lora-rank",
    ):
        assert option in said
    assert "--max-tokens" in said
    assert not trainer.pending
    assert trainer.gradients() == {}
    trainer.forward_backward(batch(), "cross_entropy")
    assert trainer.optim_step(1e-3)["grad_norm:mean"] > 0


def test_options_in_use_are_not_advised(monkeypatch):
    options = TrainerOptions(OptimizerOptions("8bit", offload=True), recompute_layers=True)
    full = LocalTrainer(load_decoder(tiny_folder()), options=options)
    adapter = LocalTrainer(load_decoder(tiny_folder()), lora=LoraConfig(rank=2))
    monkeypatch.setattr("hud.engine.learn.training_pass.PlainPasses.gradient", no_memory)
    said = []
    for trainer in (full, adapter):
        with pytest.raises(DeviceMemoryError) as raised:
            trainer.forward_backward(batch(), "cross_entropy")
        said.append(str(raised.value))
    assert "with --lora-rank 16, or" not in said[1]
    assert "(hud models fork) with --lora-rank 16, or shorter runs" in said[0]
    assert "(hud models fork) with --recompute-layers, or shorter runs" in said[1]


def test_a_step_without_memory_is_an_error_of_the_device(monkeypatch):
    trainer = LocalTrainer(load_decoder(tiny_folder()))
    trainer.forward_backward(batch(), "cross_entropy")
    monkeypatch.setattr("hud.engine.learn.optimizer.adamw", no_memory)
    with pytest.raises(DeviceMemoryError, match="an optimizer step"):
        trainer.optim_step(1e-3)
    assert not trainer.pending


def test_weights_that_do_not_fit_are_an_error_of_the_device(monkeypatch):
    monkeypatch.setattr("hud.engine.pretrained.read_weights", no_memory)
    with pytest.raises(DeviceMemoryError, match="the weights of a model"):
        load_decoder(tiny_folder())


def test_a_cache_that_does_not_fit_is_an_error_of_the_device(monkeypatch):
    def refused(*arguments, **options):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("hud.engine.sample.kv_cache.mmap.mmap", refused)
    with pytest.raises(DeviceMemoryError, match=r"no [\d,]+ MiB of memory for the key-value cache"):
        Policy.load(tiny_folder())


async def test_sampling_without_memory_fails_as_infrastructure(monkeypatch):
    policy = tiny_policy()
    monkeypatch.setattr(policy.sampler._runner, "step", no_memory)
    with pytest.raises(InfrastructureFault, match="no memory left for sampling"):
        await asyncio.wait_for(policy.sample([1, 2, 3], SamplingParams(max_tokens=4)), 60)
    policy.close()
