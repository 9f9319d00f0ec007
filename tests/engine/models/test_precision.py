"""Weights are computed in the type that the machine is fast in."""

import shutil

import pytest
import torch
from tests.engine.tiny_policy import tiny_folder

from hud.engine.models import precision
from hud.engine.policy import Policy
from hud.errors import StoreError


@pytest.fixture(params=[True, False])
def slow(request, monkeypatch):
    """A CPU that is slow in bfloat16, or is not."""
    monkeypatch.setattr(precision, "slower_than_fp32", lambda dtype: request.param)
    return request.param


@pytest.fixture
def not_small(monkeypatch):
    """A model counts as small only where it has no parameters."""
    monkeypatch.setattr(precision, "SMALL_PARAMETERS", 0)


def test_small_models_are_computed_in_fp32_by_every_cpu(slow):
    policy = Policy.load(tiny_folder(), dtype=torch.bfloat16)
    assert policy.decoder.dtype == torch.float32
    policy.close()


def test_a_damaged_file_is_named_whatever_it_is_computed_in(tmp_path, slow):
    shutil.copytree(tiny_folder(), tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:200])
    with pytest.raises(StoreError, match=r"model\.safetensors is damaged"):
        Policy.load(tmp_path / "model", dtype=torch.bfloat16)


def test_models_with_adapters_of_their_own_have_no_compiled_passes(slow):
    found = precision.computing_type(torch.bfloat16, "cpu", tiny_folder(), adapters=True)
    assert found == (torch.float32 if slow else torch.bfloat16)


def test_others_are_widened_where_the_cpu_is_slow_in_bfloat16(slow, not_small):
    policy = Policy.load(tiny_folder(), dtype=torch.bfloat16)
    assert policy.decoder.dtype == (torch.float32 if slow else torch.bfloat16)
    policy.close()


def test_large_weights_keep_their_type(slow, monkeypatch):
    monkeypatch.setattr(precision, "WIDEST_BYTES", 1000)
    policy = Policy.load(tiny_folder(), dtype=torch.bfloat16)
    assert policy.decoder.dtype == torch.bfloat16
    policy.close()


def test_other_devices_compute_in_what_they_are_told(slow):
    assert precision.computing_type(torch.bfloat16, "cuda") == torch.bfloat16


def test_the_measurement_says_one_or_the_other_and_stays_with_it():
    assert precision.slower_than_fp32(torch.bfloat16) is precision.slower_than_fp32(torch.bfloat16)
