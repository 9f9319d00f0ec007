"""`hud models` and `hud train` on a CUDA GPU: the run (skipped by name without one), its memory plan and its memory errors."""

import json

import pytest
import torch
from tests.cli.test_models_command import CREATE, TRAIN, home, hud  # noqa: F401

from hud_platform.models.loaded_policies import training_device


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_model_is_created_trained_and_sampled_on_the_gpu(hud):  # noqa: F811
    assert training_device() == "cuda"
    hud(CREATE)
    before = torch.cuda.max_memory_allocated()
    report = json.loads(hud(f"{TRAIN} --json"))
    assert report["finished"]
    assert torch.cuda.max_memory_allocated() > before


def no_memory(*arguments, **named):
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.slow
def test_training_without_memory_ends_with_what_to_lower(hud, monkeypatch):  # noqa: F811
    hud(CREATE)
    monkeypatch.setattr("hud.engine.learn.local_trainer.LocalTrainer._one_pass", no_memory)
    said = hud(TRAIN, code=2)
    assert "no memory left for a training pass" in said
    assert "--recompute-layers" in said
    assert "Traceback" not in said
    assert "OutOfMemoryError" not in said


@pytest.mark.slow
def test_the_memory_plan_is_printed_before_a_run_on_a_gpu(hud, monkeypatch):  # noqa: F811
    hud(CREATE)
    monkeypatch.setattr("hud.cli.training.memory_table.cuda_device", lambda: ("NVIDIA H100", 79.1))
    said = hud(TRAIN)
    assert said.index("on one NVIDIA H100 of 79 GiB") < said.index("Finished at step 2")
    assert "key-value cache" in said
    assert json.loads(hud(f"{TRAIN.replace('--steps 2', '--steps 3')} --json"))["finished"]


def test_the_plan_of_a_registered_model_is_that_of_its_settings(hud):  # noqa: F811
    hud(CREATE)
    hud("models fork tiny --name adapter --lora-rank 4")
    assert "full fine-tuning, on one H100" in hud("plan tiny --gpu h100")
    assert "LoRA, on one H200" in hud("plan adapter")
    found = json.loads(hud("plan tiny --gpu h100 --training 8bit --json"))
    assert (found["training"], found["gpu"]) == ("8bit", "H100")
    assert found["trainer"]["optimizer"] == 2 * found["parameters"]  # Its weights are fp32.
    assert "There is no model 'other'" in hud("plan other --gpu h100", code=2)
