"""Two ranks train as one would: the same updates, the same metrics, the same checkpoints."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from tests.engine.learn import ranks_at_work
from tests.engine.learn.ranks_at_work import CASES, trained

from hud.engine.learn.local_trainer import LocalTrainer

pytestmark = pytest.mark.slow

RANKS = 2
MEASURED = ("trainer_seconds:sum", "trainer_tokens_per_second:mean", "peak_memory_bytes:max")
LAID_OUT = (
    "passes:sum",
    "tokens:sum",
    "shared_tokens:sum",
    "flops:sum",
    "model_flops_utilization:mean",
)
"""They depend on the machine, and on how a batch is split: prompts are computed once on each rank that needs them."""


@pytest.fixture(scope="module")
def alone():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield {case: trained(case) for case in CASES}
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def together(alone, tmp_path_factory):
    """What two processes found that torchrun started; they are given what one process left to go on from."""
    folder = tmp_path_factory.mktemp("ranks")
    for case, found in alone.items():
        torch.save(found, folder / f"{case}.pt")
    return started(RANKS, folder)


def started(count, folder, *arguments, threads="1"):
    """Return what the ranks found that torchrun starts; without `threads` torch takes as many as there are cores."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--log-dir", str(folder / "log")]  # Else it leaves a folder of its own.
    command += ["--nproc-per-node", str(count), ranks_at_work.__file__, str(folder), *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    if threads:
        environment["OMP_NUM_THREADS"] = threads
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return torch.load(folder / "found.pt", weights_only=False)


def assert_near(mine, theirs, tolerance=1e-6):
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert tensor.dtype == theirs[name].dtype, name
        assert torch.allclose(tensor, theirs[name], rtol=0, atol=tolerance), name


EXACT = [case for case in CASES if "bfloat16" not in case and case != "8bit"]


@pytest.mark.parametrize("case", EXACT)
def test_two_ranks_make_the_same_updates_as_one(alone, together, case):
    assert_near(together[case]["weights"], alone[case]["weights"])
    for mine, theirs in zip(together[case]["logprobs"], alone[case]["logprobs"], strict=True):
        assert np.allclose(mine, theirs, atol=2e-5)
    began = trained_from()
    moved = max(
        float((tensor - began[name]).abs().max())
        for name, tensor in alone[case]["weights"].items()
        if name in began
    )
    if "lora" not in case:
        assert moved > ranks_at_work.RATE  # Else being equal would mean nothing.


def trained_from():
    return ranks_at_work.whole_weights(ranks_at_work.decoder())


@pytest.mark.slow
def test_ranks_that_hold_nothing_of_a_tensor_take_part_all_the_same(alone, tmp_path):
    """Of three ranks the last has no row of an adapter of rank four, nor any sequence of a small batch."""
    found, expected = started(3, tmp_path, "lora ppo")["lora ppo"], alone["lora ppo"]
    assert_near(found["weights"], expected["weights"])
    moments, wanted = (
        {name: tensor for name, tensor in one["state"].items() if name != "rng"}
        for one in (found, expected)
    )
    assert_near(moments, wanted, 1e-3)


def test_one_rank_on_all_cores_computes_one_pass_at_a_time(alone, tmp_path):
    """Shards of one rank are gathered and freed by a pass, too; torchrun bounds the threads of several ranks alone."""
    found = started(1, tmp_path, "full ppo", threads=None)["full ppo"]
    assert_near(found["weights"], alone["full ppo"]["weights"])


@pytest.mark.parametrize("case", ["bfloat16", "bfloat16 lora", "8bit"])
def test_low_precision_stays_as_near_as_its_rounding(alone, together, case):
    assert_near(together[case]["weights"], alone[case]["weights"], 2e-2)


@pytest.mark.parametrize("case", EXACT)
def test_metrics_are_those_of_all_ranks(alone, together, case):
    for mine, theirs in zip(together[case]["metrics"], alone[case]["metrics"], strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine:
            kind = name.removeprefix("alone/")
            if kind not in MEASURED + LAID_OUT:
                assert mine[name] == pytest.approx(theirs[name], rel=1e-3, abs=2e-5), name
        assert mine["passes:sum"] == RANKS


@pytest.mark.parametrize("case", ["full ppo", "lora ppo", "bfloat16"])
def test_what_one_rank_wrote_two_go_on_from(alone, together, case):
    onward = trained(case, resume=alone[case])
    assert onward["state"]["step"] == 2 * ranks_at_work.STEPS
    tolerance = 2e-2 if case == "bfloat16" else 1e-6
    assert_near(together[f"{case} resumed"]["weights"], onward["weights"], tolerance)


@pytest.mark.parametrize("case", ["full ppo", "lora ppo", "bfloat16", "8bit"])
def test_what_two_ranks_wrote_one_goes_on_from(alone, together, case):
    state, expected = together[case]["state"], alone[case]["state"]
    assert {name: tensor.shape for name, tensor in state.items()} == {
        name: tensor.shape for name, tensor in expected.items()
    }
    onward = trained(case, resume=together[case])
    reference = trained(case, resume=alone[case])
    low = case in ("bfloat16", "8bit")
    assert_near(onward["weights"], reference["weights"], 2e-2 if low else 2e-6)


def test_a_callers_own_loss_reaches_every_rank(together):
    # Gradients of a sum, as large as 9: what is rounded in them is too.
    assert_near(together["custom"], ranks_at_work.custom(), 3e-5)


def test_what_is_refused_is_refused_by_all_and_training_goes_on(together):
    assert together["refused"] == ranks_at_work.refused()
    assert len(together["refused"][0]) == 4


def test_without_torchrun_a_trainer_is_this_process_alone():
    assert isinstance(ranks_at_work.opened("ppo"), LocalTrainer)
