"""Sizes of fleets: the arithmetic by hand, its monotonicity, and the published table."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hud.engine.memory.model_shapes import GIB, MACHINES, SHAPES, Machine
from hud.engine.memory.trainer_memory import (
    TRAININGS,
    activation_bytes,
    bytes_a_parameter,
    trainer_gpus,
    trainer_memory,
)
from hud.errors import UsageError
from hud.train.planning.preemption import (
    Preemption,
    environments_lost,
    moments,
    samplers_lost,
    time_away,
    trainer_lost,
    work_repeated,
)
from hud.train.planning.published_fleet import PUBLISHED, comparison
from hud.train.planning.sizing import CpuNode, Fleet, plan_for
from hud.train.planning.speed import Work, decode_step, sampling, training_seconds
from hud.train.planning.transfers import (
    broadcast_bytes,
    broadcast_seconds,
    checkpoint_bytes,
    folder_seconds,
    overhead,
)

SEVEN, THIRTY_TWO, SEVENTY = SHAPES
H200 = MACHINES["H200"]
shapes = st.sampled_from(SHAPES)
trainings = st.sampled_from(TRAININGS)
rates = st.floats(0, 20)
factors = st.floats(1, 50)


def scaled(shape, factor):
    return replace(shape, parameters=shape.parameters * factor)


# -- by hand ----------------------------------------------------------------------------------------


def test_a_trainers_memory_is_the_sum_of_its_parts():
    memory = trainer_memory(SEVEN, "full", gpus=2, longest=12_000, rank=32)
    assert (memory.weights, memory.gradients, memory.optimizer) == (15.2e9, 6 * 7.6e9, 12 * 7.6e9)
    layer = 6 * 3584 + 2 * 4 * 128 + 3 * 18944
    assert memory.activations == 2 * 12_000 * 2 * (28 * 3584 + layer)
    assert memory.total == 20 * 7.6e9 + memory.activations
    assert trainer_memory(SEVEN, "8bit", gpus=1, longest=1, rank=0).optimizer == 6 * 7.6e9
    assert trainer_memory(SEVEN, "offload", gpus=1, longest=1, rank=0).optimizer == 0


def test_an_adapter_of_rank_32_has_the_parameters_that_peft_counts():
    # q, k, v, o, gate, up and down of Qwen2.5-7B: 80.7 million at rank 32.
    assert SEVEN.adapter_parameters(32) == 80_740_352
    memory = trainer_memory(SEVEN, "lora", gpus=1, longest=1, rank=32)
    assert memory.total - memory.activations == 15.2e9 + 16 * 80_740_352


def test_weights_of_32b_reach_samplers_within_the_published_bounds():
    size = broadcast_bytes(THIRTY_TWO, "full", 0)
    assert size == 65.6e9
    assert broadcast_seconds(64e9, 100) == pytest.approx(5.12)
    assert broadcast_seconds(size, 100) == pytest.approx(5.248)
    assert overhead(broadcast_seconds(size, 100), 5.25, 25) == pytest.approx(0.04, rel=1e-3)
    assert folder_seconds(size, 2, 2) == pytest.approx(3 * 32.8)
    assert checkpoint_bytes(THIRTY_TWO, "8bit", 0) == 14 * 32.8e9


def test_a_decode_step_takes_the_longer_of_reading_and_computing():
    machine = Machine(bandwidth_tb=1.0, tflops=1.0, decode_fraction=1.0, compute_fraction=1.0)
    read = (15.2e9 + 2 * 1000 * 57_344) / 1e12
    computed = 2 * 7.6e9 * 2 / 1e12
    found = decode_step(SEVEN, machine, gpus=1, sequences=2, context=1000)
    assert found == pytest.approx(max(read, computed)) == computed
    slower = replace(machine, bandwidth_tb=0.1)
    assert decode_step(SEVEN, slower, gpus=1, sequences=2, context=1000) == pytest.approx(10 * read)


def test_losses_by_hand():
    assert time_away(10, 180) == pytest.approx(0.5 / 1.5)
    assert work_repeated(1, 3600) == pytest.approx(1 - 1 / (math.e - 1))
    # To first order half of the work that is under way is lost.
    assert work_repeated(0.01, 360) == pytest.approx(0.01 * 0.1 / 2, rel=1e-2)
    assert samplers_lost(10, 180, 0) == pytest.approx(time_away(10, 180))
    assert trainer_lost(0, 180, 50, 950) == pytest.approx(0.05)
    first_order = 10 / 1000 + 0.01 / 3600 * (500 + 180)
    assert trainer_lost(0.01, 180, 10, 1000) == pytest.approx(first_order, rel=1e-2)


def test_what_is_lost_is_what_a_simulated_machine_loses():
    per_hour, away, work = 20.0, 60.0, 45.0
    times = moments(per_hour, "a seed")
    now = useful = 0.0
    following = next(times)
    while now < 3e6:
        if now + work <= following:
            now, useful = now + work, useful + work
            continue
        now = following + away
        following = next(times)
        while following < now:  # Lost again while away.
            now, following = following + away, next(times)
    assert 1 - useful / now == pytest.approx(environments_lost(per_hour, away, work), abs=0.04)


def test_a_node_carries_what_its_cores_and_its_memory_allow():
    node = CpuNode(cores=64, memory_gib=256, environment_gib=1, busy=0.8)
    assert node.environments(0.4) == 128
    assert node.environments(0.1) == node.environments(0.0) == 256
    assert CpuNode(cores=1).environments(1.0) == 1


# -- the published table ----------------------------------------------------------------------------


def test_the_arithmetic_arrives_at_the_published_table_or_says_why_not():
    plans = [plan_for(shape, Work(), Fleet(), "8bit") for shape in SHAPES]
    for plan in plans:
        published = PUBLISHED[plan.model]
        assert plan.sampler_gpus == published.sampler_gpus
        assert published.gpus_per_sampler in (None, plan.gpus_per_sampler)
        assert 128 <= plan.environments_per_node <= 256
    assert [plan.trainer_gpus for plan in plans] == [1, 4, 16]
    said = comparison(plans, Work(), Fleet())
    assert said[0].startswith("70B trains on 16 GPUs, not 8: with 14.0 bytes a parameter")
    assert "Trainings that fit: offload, lora" in said[0]
    assert any("second one continues its turns" in one for one in said)
    assert any("reach the samplers in 5.2 s" in one and "(published" in one for one in said)
    offloaded = plan_for(SEVENTY, Work(), Fleet(), "offload")
    assert offloaded.trainer_gpus == 8


def test_a_table_without_differences_says_so_in_one_sentence():
    plans = [
        plan_for(shape, Work(), Fleet(), "offload" if shape is SEVENTY else "8bit")
        for shape in SHAPES
    ]
    assert comparison(plans, Work(), Fleet())[0].startswith("GPUs to train and to sample are")


def test_other_inputs_are_explained():
    fleet = Fleet(machine=MACHINES["H100"], network_gbit=1.0)
    work = Work(rollouts=64, environment_seconds_per_turn=60.0)
    said = comparison([plan_for(shape, work, fleet) for shape in SHAPES], work, fleet)
    assert any("7B trains on 2 GPUs, not 1" in one for one in said)
    assert any("not as published" in one for one in said)
    assert "each computes on a core for up to" in said[-1]
    heavy = Fleet(node=CpuNode(environment_gib=4.0))
    said = comparison([plan_for(shape, Work(), heavy) for shape in SHAPES], Work(), heavy)
    assert "carries 64 environments, not 128 to 256" in said[-1]
    assert said[-1].endswith("each has 4 GiB of its memory.")


# -- properties -------------------------------------------------------------------------------------


@given(shapes, trainings, factors)
def test_a_larger_model_needs_no_less_and_is_no_faster(shape, training, factor):
    larger = scaled(shape, factor)
    for gpus in (1, 8):
        small, large = (
            trainer_memory(one, training, gpus=gpus, longest=8000, rank=16)
            for one in (shape, larger)
        )
        assert large.total >= small.total
    assert trainer_gpus(larger, training, H200, longest=8000, rank=16) >= trainer_gpus(
        shape, training, H200, longest=8000, rank=16
    )
    work = Work()
    assert training_seconds(larger, work, H200, training, 8) >= training_seconds(
        shape, work, H200, training, 8
    )
    assert broadcast_bytes(larger, "full", 0) >= broadcast_bytes(shape, "full", 0)
    steps = [decode_step(one, H200, gpus=8, sequences=16, context=500) for one in (shape, larger)]
    assert steps[0] <= steps[1]


@given(shapes, trainings, st.integers(1, 2**20), st.integers(1, 2**20))
def test_longer_sequences_need_no_less(shape, training, one, other):
    short, long = sorted((one, other))
    assert activation_bytes(shape, short) <= activation_bytes(shape, long)
    found = []
    for longest in (short, long):
        try:
            found.append(trainer_gpus(shape, training, H200, longest=longest, rank=8))
        except UsageError:
            found.append(math.inf)
    assert found[0] <= found[1]


@given(shapes, factors, st.integers(1, 300))
def test_more_bandwidth_is_no_slower(shape, factor, at_once):
    faster = replace(H200, bandwidth_tb=H200.bandwidth_tb * factor)
    slow, fast = (
        sampling(shape, Work(), machine, gpus=8, at_once=at_once, rollouts=512)
        for machine in (H200, faster)
    )
    assert fast.seconds <= slow.seconds * (1 + 1e-6)
    size = shape.weight_bytes
    assert broadcast_seconds(size, 10 * factor) <= broadcast_seconds(size, 10)
    assert folder_seconds(size, factor, 3) <= folder_seconds(size, 1, 3)


@given(shapes, st.floats(0.1, 1000))
def test_units_of_networks_and_disks(shape, rate):
    """A network of 8 Gb/s is as fast as a disk of 1 GB/s that nobody reads from."""
    size = shape.weight_bytes
    assert broadcast_seconds(size, 8 * rate) == pytest.approx(folder_seconds(size, rate, 0))
    assert broadcast_seconds(size, rate) * rate == pytest.approx(broadcast_seconds(size, 1.0))


@given(rates, rates, st.floats(0, 3600), st.floats(0, 7200))
def test_a_higher_rate_loses_no_less_and_shares_are_shares(one, other, away, seconds):
    low, high = sorted((one, other))
    for lost in (
        lambda rate: time_away(rate, away),
        lambda rate: work_repeated(rate, seconds),
        lambda rate: environments_lost(rate, away, seconds),
        lambda rate: samplers_lost(rate, away, seconds),
        lambda rate: trainer_lost(rate, away, seconds, 100.0),
    ):
        assert 0 <= lost(low) <= lost(high) + 1e-9 <= 1 + 1e-9
    assert time_away(low, away) <= time_away(low, away + 1)
    assert work_repeated(low, seconds) <= work_repeated(low, seconds + 1) + 1e-9


@pytest.mark.slow
@given(shapes, trainings, st.integers(1, 4096), st.floats(0, 60), rates)
def test_everything_fits_and_samplers_are_never_alone(shape, training, rollouts, seconds, rate):
    work = Work(rollouts=rollouts, environment_seconds_per_turn=seconds)
    fleet = Fleet(preemption=Preemption(rate, rate))
    plan = plan_for(shape, work, fleet, training)
    room = fleet.machine.usable_bytes
    assert plan.trainer.total <= plan.trainer_gpus * room
    assert plan.weights + plan.kv_cache <= plan.gpus_per_sampler * room
    assert plan.samplers >= max(2, plan.samplers_by_speed)
    assert 1 <= plan.environments <= rollouts
    assert plan.nodes * plan.environments_per_node >= plan.environments
    assert plan.preemption_share >= -1e-9
    assert plan.disturbed_seconds >= plan.step_seconds - 1e-9
    assert plan.run_seconds >= plan.steps * plan.step_seconds - 1e-6
    assert plan.bottleneck in ("trainer", "samplers", "environments")
    assert plan.bottleneck == "trainer" or plan.sampling.seconds > plan.training_seconds


@given(shapes, trainings, st.integers(1, 64))
def test_bytes_a_parameter_are_those_that_fit(shape, training, gpus):
    allowed = bytes_a_parameter(shape, H200, gpus=gpus, longest=12_000)
    memory = trainer_memory(shape, training, gpus=1, longest=12_000, rank=0)
    needed = (memory.total - memory.activations) / shape.parameters
    fits = trainer_gpus(shape, training, H200, longest=12_000, rank=0) <= gpus
    assert not fits or needed <= allowed * (1 + 1e-9)


def test_the_slowest_plane_is_the_bottleneck():
    slow_tools = plan_for(SEVEN, Work(rollouts=64, environment_seconds_per_turn=600), Fleet())
    assert slow_tools.bottleneck == "environments"
    talkative = Work(rollouts=16, tokens_per_turn=4000, observed_per_turn=0, prompt=1)
    assert plan_for(SEVEN, talkative, Fleet(), "lora").bottleneck == "samplers"
    assert plan_for(SEVEN, Work(), Fleet()).bottleneck == "trainer"


def test_what_does_not_fit_is_said():
    small = Fleet(machine=Machine(memory_gib=4.0))
    with pytest.raises(UsageError, match="activations"):
        plan_for(SEVENTY, Work(), small)
    with pytest.raises(UsageError, match="cannot be sampled"):
        plan_for(SEVENTY, Work(prompt=1, turns=1), Fleet(machine=Machine(memory_gib=12.0)))
    with pytest.raises(UsageError, match="nodes_per_hour must be a finite number"):
        Preemption(-1.0)
    assert GIB == 2**30
