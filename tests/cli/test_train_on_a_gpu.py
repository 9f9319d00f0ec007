"""`hud models` and `hud train` compute on a CUDA GPU. Skipped by name where there is no GPU."""

import json

import pytest
import torch
from test_models_command import CREATE, TRAIN, home, hud  # noqa: F401

from hud.platform.models.loaded_policies import training_device


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_model_is_created_trained_and_sampled_on_the_gpu(hud):  # noqa: F811
    assert training_device() == "cuda"
    hud(CREATE)
    before = torch.cuda.max_memory_allocated()
    report = json.loads(hud(f"{TRAIN} --json"))
    assert report["finished"]
    assert torch.cuda.max_memory_allocated() > before
