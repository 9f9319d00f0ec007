"""What each step reports: what its passes took, what the device could have done, and how near the sampler was."""

import numpy as np
import pytest
import torch
from tests.engine.learn.small_decoder import SmallDecoder, random_datum
from tests.engine.learn.test_trainer_decoder import decoder, grouped_batch
from torch.utils.flop_counter import FlopCounterMode

from hud.engine.learn import local_trainer
from hud.engine.learn.flops import ceiling, pass_flops
from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.learn.packed_pass import lay_out, places_of
from hud.engine.lora import LoraConfig
from hud.learning.metrics import merge

CPU = torch.device("cpu")
EVERY_STEP = {
    "trainer_tokens_per_second:mean",
    "trainer_seconds:sum",
    "flops:sum",
    "model_flops_utilization:mean",
    "peak_memory_bytes:max",
}


def counted(it, datums):
    """What torch counts in a pass, attention left out: it counts keys that causality hides."""
    in_place = {torch.ops.aten.addmm_: lambda _, a, b, **__: 2 * a[0] * a[1] * b[1]}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        it.forward_backward(datums, "ppo")
    found = counter.get_flop_counts()["Global"]
    return sum(count for kind, count in found.items() if "attention" not in str(kind))


def attention_flops(datums):
    """12 for each query, key that it sees, head and dimension of it, in each of the two layers."""
    pairs = 0
    for datum in datums:
        predicting = int(np.flatnonzero(datum.mask)[-1])
        pairs += predicting * (predicting + 1) // 2
    return 12 * pairs * 4 * 8 * 2


@pytest.fixture
def in_this_thread(monkeypatch):
    """Torch counts what its own thread computes; one that is bound to a number of threads computes where it is asked to."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def laid_out(datums, share=False):
    return lay_out(datums, places_of(datums, range(len(datums)), share=share), CPU)


@pytest.mark.usefixtures("in_this_thread")
def test_flops_are_those_that_torch_counts():
    datums = grouped_batch(groups=1, size=1)
    it = LocalTrainer(decoder())
    config = it.decoder.config
    batch = laid_out(datums)
    assert pass_flops(config, batch) == counted(it, datums) + attention_flops(datums)


@pytest.mark.usefixtures("in_this_thread")
def test_frozen_weights_have_no_gradient_to_compute():
    datums = grouped_batch(groups=1, size=1)
    lora = LoraConfig(rank=4)
    it = LocalTrainer(decoder(), lora=lora)
    config = it.decoder.config
    batch = laid_out(datums)
    found = pass_flops(config, batch, lora) - attention_flops(datums)
    # Nothing below the first layer learns, so torch stops at its adapters.
    tokens, width = len(batch.input_ids), config.hidden_size
    queries, keys = 32, 2 * 16
    spared = 2 * tokens * (width * (queries + keys) + 3 * width * lora.rank)
    assert found == counted(it, datums) + spared


def test_a_shared_prompt_is_counted_once():
    config = decoder().config
    datums = grouped_batch(groups=1, size=4)
    alone, shared = laid_out(datums), laid_out(datums, share=True)
    assert len(shared.input_ids) < len(alone.input_ids)
    assert pass_flops(config, shared) < pass_flops(config, alone)


def test_every_step_tells_speed_utilization_and_memory():
    it = LocalTrainer(decoder())
    for _ in range(2):
        passes = [it.forward_backward(grouped_batch(seed), "ppo") for seed in range(2)]
        metrics = it.optim_step(1e-3)
        assert set(metrics) >= EVERY_STEP
        tokens = merge(passes)["tokens:sum"]
        seconds = metrics["trainer_seconds:sum"]
        assert metrics["trainer_tokens_per_second:mean"] == pytest.approx(tokens / seconds)
        achieved = metrics["flops:sum"] / seconds / ceiling(CPU, torch.float32)
        assert metrics["model_flops_utilization:mean"] == pytest.approx(achieved)
        assert metrics["peak_memory_bytes:max"] > 1e7


def test_what_was_thrown_away_is_not_counted():
    it = LocalTrainer(decoder())
    it.forward_backward(grouped_batch(0), "ppo")
    it.zero_grad()
    once = it.forward_backward(grouped_batch(1), "ppo")
    metrics = it.optim_step(1e-3)
    tokens = metrics["trainer_tokens_per_second:mean"] * metrics["trainer_seconds:sum"]
    assert tokens == pytest.approx(once["tokens:sum"])


def test_a_decoder_whose_work_is_not_known_has_no_utilization():
    it = LocalTrainer(SmallDecoder())
    it.forward_backward([random_datum(np.random.default_rng(0))])
    assert "model_flops_utilization:mean" not in it.optim_step(1e-3)


@pytest.mark.parametrize("loss", ["ppo", "cross_entropy"])
def test_the_logprobs_of_a_training_pass_are_those_of_the_trainers_own_forward(loss):
    it = LocalTrainer(decoder(), pass_tokens=60)
    datums = grouped_batch()
    assert it.forward_backward(datums, loss, num_substeps=2)["passes:sum"] > 1
    for datum, mine, expected in zip(datums, it.last_logprobs, it.forward(datums), strict=True):
        assert mine.shape == datum.tokens.shape
        assert mine.dtype == np.float32
        np.testing.assert_allclose(mine, expected, atol=1e-6)
    it.forward_backward(datums[1:2], loss)
    assert len(it.last_logprobs) == 1


def test_a_large_decoder_on_a_cpu_is_trained_in_smaller_passes():
    rng = np.random.default_rng(0)
    datums = [random_datum(rng, length=60) for _ in range(30)]
    small, large = (
        LocalTrainer(SmallDecoder(width=width, dtype=torch.float32)) for width in (8, 2600)
    )
    assert small.forward_backward(datums)["passes:sum"] == 1
    assert large.forward_backward(datums)["passes:sum"] == 2


def test_a_common_beginning_that_fills_a_pass_is_computed_once(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # One pass at a time, with all cores.
    monkeypatch.setattr(local_trainer, "SMALL_PARAMETERS", 0)
    monkeypatch.setattr(local_trainer, "PASS_TOKENS_ON_CPU", 40)
    datums = grouped_batch(groups=1, prompt=100)
    metrics = LocalTrainer(decoder()).forward_backward(datums, "ppo")
    assert metrics["passes:sum"] == 1
    assert metrics["shared_tokens:sum"] == (len(datums) - 1) * 100
    metrics = LocalTrainer(decoder(), pass_tokens=40).forward_backward(datums, "ppo")
    assert metrics["passes:sum"] == len(datums)  # A limit that is set holds.


def test_the_gap_to_the_sampler_is_told_by_mean_p99_and_maximum():
    it = LocalTrainer(decoder(), pass_tokens=60)
    datums = grouped_batch()
    metrics = it.forward_backward(datums, "ppo")
    gaps = np.concatenate(
        [
            np.abs(found - datum.logprobs)[datum.mask > 0]
            for datum, found in zip(datums, it.forward(datums), strict=True)
        ]
    )
    assert metrics["passes:sum"] > 1
    assert metrics["sampler_gap:mean"] == pytest.approx(gaps.mean(), rel=1e-4)
    assert metrics["sampler_gap_p99:max"] == pytest.approx(np.quantile(gaps, 0.99), rel=1e-4)
    assert metrics["sampler_gap:max"] == pytest.approx(gaps.max(), rel=1e-4)
    assert "sampler_gap:mean" not in it.forward_backward(datums, "cross_entropy")
