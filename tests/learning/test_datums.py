"""Trajectories become datums id for id; batches refuse what cannot be trained on."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hud.errors import UsageError
from hud.learning.datums import DatumCounts, datums_of, make_batch, payload_of
from hud.learning.metrics import merge
from hud.learning.packing import SHARED_FROM, deal, pack, packing_order, tokens_of
from hud.learning.schedules import learning_rate
from hud.learning.wire_types import AdvantageOptions, TrajectoryPayload, TrajectorySample
from hud.trace import AgentStep, Sample, Trace

token = st.integers(0, 99)


def sample(prompt, output, logprobs=None, **fields):
    logprobs = [-0.5] * len(output) if logprobs is None else logprobs
    return TrajectorySample(
        prompt_token_ids=prompt, output_token_ids=output, output_logprobs=logprobs, **fields
    )


def payload(*samples, reward=1.0, **fields):
    return TrajectoryPayload(samples=list(samples), reward=reward, **fields)


@st.composite
def conversations(draw):
    """Turns as a sampler makes them: each shows something new, then draws something."""
    turns, so_far = [], []
    for _ in range(draw(st.integers(1, 5))):
        so_far = so_far + draw(st.lists(token, min_size=1, max_size=5))
        drawn = draw(st.lists(token, min_size=1, max_size=5))
        turns.append((list(so_far), drawn))
        so_far = so_far + drawn
    return turns


@pytest.mark.slow
@given(conversations())
def test_trained_ids_are_sampled_ids(turns):
    number = iter(range(1000))
    samples = [sample(p, o, [-float(next(number)) for _ in o]) for p, o in turns]
    (datum,) = datums_of(payload(*samples), advantage=0.5)
    assert datum.tokens.tolist() == turns[-1][0] + turns[-1][1]
    sampled = datum.mask == 1
    assert datum.tokens[sampled].tolist() == [i for _, output in turns for i in output]
    assert datum.logprobs[sampled].tolist() == [x for s in samples for x in s.output_logprobs]
    assert (datum.advantages == 0.5 * datum.mask).all()
    assert not datum.logprobs[~sampled].any()


def test_a_prompt_that_does_not_extend_begins_a_new_datum():
    counts = DatumCounts()
    parts = datums_of(
        payload(
            sample([1, 2], [3]),
            sample([1, 2, 3, 4], [5]),
            sample([1, 2, 9], [6]),
            sample([1, 2, 9, 6], [7]),
        ),
        traj_idx=4,
        counts=counts,
    )
    assert [part.tokens.tolist() for part in parts] == [[1, 2, 3, 4, 5], [1, 2, 9, 6, 7]]
    assert [part.traj_idx for part in parts] == [4, 4]
    assert (counts.splits, counts.samples, counts.datums) == (1, 4, 2)


@pytest.mark.slow
@given(conversations())
def test_a_datum_says_where_the_output_of_each_of_its_turns_lies(turns):
    samples = [sample(prompt, output) for prompt, output in turns]
    apart = sample([100, 101], [102])
    parts = datums_of(payload(*samples, apart))
    assert [number for part in parts for _, number in part.turns] == list(range(len(samples) + 1))
    for part in parts:
        for start, number in part.turns:
            output = [*samples, apart][number].output_token_ids
            assert part.tokens[start : start + len(output)].tolist() == output


def test_tokens_without_a_finite_logprob_are_masked_and_counted():
    counts = DatumCounts()
    (datum,) = datums_of(
        payload(sample([1], [2, 3, 4, 5], [-1.0, None, -math.inf, math.nan])),
        advantage=2.0,
        counts=counts,
    )
    assert datum.mask.tolist() == [0, 1, 0, 0, 0]
    assert np.isfinite(datum.logprobs).all()
    assert datum.advantages.tolist() == [0, 2, 0, 0, 0]
    assert counts.masked_tokens == 3


def test_each_turn_keeps_its_temperature():
    (datum,) = datums_of(
        payload(sample([1], [2], temperature=0.7), sample([1, 2, 3], [4], temperature=0.0))
    )
    assert datum.temperatures.tolist() == pytest.approx([1, 0.7, 1, 1])


def test_supervised_samples_need_no_logprobs_and_may_have_weights():
    given = payload(sample([1], [2, 3], [], weights=[1.0, -0.5]))
    (datum,) = datums_of(given, supervised=True)
    assert datum.mask.tolist() == [0, 1, 1]
    assert datum.weights.tolist() == [0, 1, -0.5]
    with pytest.raises(UsageError, match="has no output_logprobs"):
        datums_of(given)


def test_tokens_that_new_weights_drew_on_the_way_are_as_old_as_those():
    ages = {"old": 3.0, "new": 0.0}
    turn = sample([1], [2, 3, 4], checkpoint="old", swaps=[(1, "new")])
    (datum,) = datums_of(payload(turn), lag=ages.get)
    assert datum.lag == 1.0


def test_the_lag_of_a_datum_is_the_mean_of_its_turns():
    ages = {"old": 3.0, "new": 0.0}
    turns = payload(
        sample([1], [2], checkpoint="old"),
        sample([1, 2], [3], checkpoint="new"),
        sample([1, 2, 3], [4]),
    )
    (datum,) = datums_of(turns, lag=ages.get)
    assert datum.lag == 1.5


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (
            sample([1, 100], [2]),
            "Trajectory 0 .trace t1. holds token id 100, outside this model's",
        ),
        (sample([1], [-1]), "holds token id -1"),
        (sample([], [1]), "has no prompt_token_ids"),
        (sample([1], [2, 3], [-1.0]), "2 output ids and 1 logprobs"),
        (sample([1], [2], weights=[1.0, 1.0]), "1 output ids and 2 weights"),
        (sample([1], [2], temperature=-1.0), "temperature -1.0"),
        (sample(None, [2], prompt_chunks=[{"type": "image"}]), "multimodal prompt"),
    ],
)
def test_samples_that_cannot_be_trained_on_are_refused(bad, says):
    with pytest.raises(UsageError, match=says):
        datums_of(payload(bad, trace_id="t1"), vocab_size=100)


def test_turns_of_two_agents_that_interleave_join_the_datum_that_they_continue():
    main, sub = sample([1], [2, 3]), sample([7, 8], [9])
    run = payload(main, sub, sample([1, 2, 3, 4], [5]), sample([7, 8, 9, 10], [11]))
    counts = DatumCounts()
    datums = datums_of(run, counts=counts)
    assert [datum.tokens.tolist() for datum in datums] == [[1, 2, 3, 4, 5], [7, 8, 9, 10, 11]]
    assert [datum.mask.tolist() for datum in datums] == [[0, 1, 1, 0, 1], [0, 0, 1, 0, 1]]
    assert [datum.turns for datum in datums] == [((1, 0), (4, 2)), ((2, 1), (4, 3))]
    assert counts.splits == 1


def test_of_two_datums_that_a_prompt_continues_the_longer_is_joined():
    run = payload(
        sample([1], [2]), sample([1, 2, 3], [4]), sample([1, 2, 9], [4]), sample([1, 2, 9, 4], [5])
    )
    datums = datums_of(run)
    assert [datum.tokens.tolist() for datum in datums] == [[1, 2, 3, 4], [1, 2, 9, 4, 5]]
    assert sum(float(datum.mask.sum()) for datum in datums) == 4  # Each sampled token once.


def test_a_split_trajectory_counts_once_in_its_group():
    split = payload(sample([1], [2]), sample([7], [8]), sample([9], [10]), reward=1.0)
    whole = payload(sample([1], [3]), reward=0.0)
    batch = make_batch([split, whole])
    assert [datum.advantages.max() or datum.advantages.min() for datum in batch.datums] == [
        0.5,
        0.5,
        0.5,
        -0.5,
    ]
    assert (batch.metrics["reward:mean"], batch.num_traces) == (0.5, 2)


def test_flat_groups_leave_the_batch_before_any_pass():
    runs = [payload(sample([1], [2]), reward=r) for r in (1, 1, 1, 0)]
    batch = make_batch(runs, group_ids=["a", "a", "b", "b"])
    assert [datum.traj_idx for datum in batch.datums] == [2, 3]
    assert [datum.group_idx for datum in batch.datums] == [1, 1]
    kept = make_batch(runs, group_ids=["a", "a", "b", "b"], keep_all=True)
    assert len(kept.datums) == 4
    supervised = make_batch(runs, loss_fn="cross_entropy", group_ids=["a", "a", "b", "b"])
    assert len(supervised.datums) == 4
    flat = make_batch(runs[:2])
    assert flat.datums == []
    assert "nothing to learn" in flat.warnings[0]


def test_a_failed_run_with_no_usable_reward_does_not_stop_a_batch():
    runs = [payload(sample([1], [2]), reward=r) for r in (1, 0)]
    runs.append(payload(sample([1], [2]), reward=0.0, failure="infrastructure"))
    runs.append(TrajectoryPayload(samples=[], reward=math.nan, failure="environment"))
    for keep_all in (False, True):
        batch = make_batch(runs, keep_all=keep_all)
        assert [datum.traj_idx for datum in batch.datums] == [0, 1]
    zero = make_batch(runs, options=AdvantageOptions(failed_runs="zero"))
    assert zero.metrics["reward:mean"] == 0.25, "a failed run without a token counts in the mean"


def agent_trace(**fields):
    trace = Trace(trace_id="t9", **fields)
    trace.record(
        AgentStep(sample=Sample(prompt_token_ids=[1], output_token_ids=[2], output_logprobs=[-1]))
    )
    trace.record(AgentStep(content="no sample"))
    return trace


def test_a_trace_becomes_a_payload():
    made = payload_of(agent_trace(), 0.5)
    assert made.trace_id == "t9"
    assert made.reward == 0.5
    assert [s.output_token_ids for s in made.samples] == [[2]]
    assert payload_of(Trace(), 0.5) is None
    with pytest.raises(UsageError, match="Run t9 has no reward"):
        payload_of(agent_trace(), None)


def test_a_failed_run_is_a_payload_that_says_so():
    made = payload_of(agent_trace(), 0.7, group_id="g", failure="timeout")
    assert (made.reward, made.failure, made.group_id) == (0.0, "timeout", "g")
    assert payload_of(Trace(), None, failure="grader").samples == []


@st.composite
def packing_orders(draw):
    """The order of sequences whose tokens are of two kinds in long stretches, so that they share beginnings."""
    stretches = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 25)), max_size=4)
    sequences = [
        np.concatenate([np.zeros(0, np.int64), *(np.full(length, kind) for kind, length in one)])
        for one in draw(st.lists(stretches, max_size=20))
    ]
    return packing_order(sequences, share=draw(st.booleans()))


def numbers(packs):
    return sorted(place.number for places in packs for place in places)


@pytest.mark.slow
@given(packing_orders(), st.integers(1, 150), st.integers(1, 6))
def test_packs_hold_every_sequence_once_within_the_budget(order, budget, at_least):
    packs = pack(order, budget, at_least=at_least)
    assert numbers(packs) == list(range(len(order)))
    assert all(places for places in packs)
    for places in packs:
        assert len(places) == 1 or tokens_of(places) <= budget
    assert len(packs) >= min(at_least, len(order))


@pytest.mark.slow
@given(packing_orders(), st.integers(1, 150), st.integers(1, 4))
def test_no_pack_is_computed_alone_while_there_are_sequences_for_another(order, budget, at_once):
    packs = deal(lambda count: pack(order, budget, at_least=count), 0, 1, at_once=at_once)
    assert numbers(packs) == list(range(len(order)))
    assert len(packs) % at_once == 0 or all(len(places) == 1 for places in packs)
    assert len(pack(order, budget)) <= len(packs) < len(pack(order, budget)) + at_once


@pytest.mark.slow
@given(packing_orders(), st.integers(20, 400))
def test_a_tree_that_does_not_fit_takes_no_more_passes_than_its_parts_need(order, budget):
    packs = pack(order, budget)
    # Two neighbours that fit into one would be one.
    for places, following in pairwise(packs):
        assert tokens_of([*places, *following]) > budget or len(packs) == 1


def random_sequences(*lengths):
    rng = np.random.default_rng(0)
    return [rng.integers(0, 1000, length) for length in lengths]


def test_packs_are_balanced_and_of_like_length():
    order = packing_order(random_sequences(*[50] * 6, *[100] * 7))
    packs = [[place.length for place in places] for places in pack(order, 500)]
    assert packs == [[100] * 5, [100] * 2 + [50] * 6]


def test_branches_of_a_tree_stay_together_and_long_ones_come_first():
    system, *prompts, turn = random_sequences(40, 30, 20, 25)
    tails = random_sequences(5, 9, 17, 8, 3, 11)
    first, second = (np.concatenate([system, prompt]) for prompt in prompts)
    sequences = [
        np.concatenate(parts)
        for parts in (
            (second, tails[0]),
            (first, turn, tails[1]),
            (second, tails[2]),
            (first, tails[3]),
            (first, turn, tails[5]),
        )
    ]
    order = packing_order(sequences)
    assert [(place.number, place.shared) for place in order] == [
        (4, 0),
        (1, 95),
        (3, 70),
        (2, 40),
        (0, 60),
    ]
    assert tokens_of(order) == 40 + 30 + 25 + 11 + 9 + 8 + 20 + 17 + 5
    assert [place.shared for place in packing_order(sequences, share=False)] == [0] * 5


def test_a_short_beginning_in_common_is_no_row():
    beginning, *tails = random_sequences(SHARED_FROM, 4, 5)
    for length, shared in ((SHARED_FROM - 1, 0), (SHARED_FROM, SHARED_FROM)):
        sequences = [np.concatenate([beginning[:length], tail]) for tail in tails]
        assert packing_order(sequences)[1].shared == shared


def test_a_sequence_within_another_is_computed_with_it():
    [long] = random_sequences(60)
    order = packing_order([long, long[:40], long])
    assert tokens_of(order) == 60


def test_metrics_merge_by_the_reduction_in_their_name():
    merged = merge(
        [
            {
                "loss:sum": 1,
                "entropy:mean": 1,
                "action_tokens:sum": 1,
                "gap:max": 5,
                "reward:min": 2,
                "reward:mean": 0.5,
                "runs:sum": 3,
            },
            {
                "loss:sum": 2,
                "entropy:mean": 4,
                "action_tokens:sum": 2,
                "gap:max": 3,
                "reward:min": 1,
                "reward:mean": 1.0,
                "runs:sum": 1,
            },
        ]
    )
    assert merged == {
        "loss:sum": 3,
        "entropy:mean": 3,
        "action_tokens:sum": 3,
        "gap:max": 5,
        "reward:min": 1,
        "reward:mean": 0.625,
        "runs:sum": 4,
    }


def test_schedules():
    def rates(name, **options):
        return [
            learning_rate(1.0, step, schedule=name, total_steps=5, **options) for step in range(6)
        ]

    assert rates("constant", warmup=1) == [0.5, 1, 1, 1, 1, 1]
    assert rates("linear") == [1, 0.75, 0.5, 0.25, 0, 0]
    assert rates("cosine") == pytest.approx([1, 0.8535534, 0.5, 0.1464466, 0, 0])
    assert rates("linear", floor=0.2)[-1] == 0.2
    assert rates("cosine", warmup=2) == pytest.approx([1 / 3, 2 / 3, 1, 0.5, 0, 0])
