"""The calls of a run form a forest: every sampled token is trained on exactly once, and a run counts once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hud.learning.datums import DatumCounts, datums_of, make_batch
from hud.learning.metrics import merge
from hud.learning.wire_types import TrajectoryPayload, TrajectorySample

SYSTEM = [1, 2, 3]


class Program:
    """Calls of a program, each with tokens of its own: outputs count up from 100, contexts from 10,000."""

    def __init__(self):
        self.samples = []
        self.children = []
        self.outputs, self.contexts = 100, 10_000

    def call(self, before, length=2, **fields):
        """Sample a turn after `before` and a message; returns its prompt and output."""
        self.contexts += 1
        return self.ask([*before, self.contexts], length, **fields)

    def ask(self, prompt, length=2, **fields):
        output = list(range(self.outputs, self.outputs + length))
        self.outputs += length
        self.samples.append(
            TrajectorySample(
                prompt_token_ids=prompt,
                output_token_ids=output,
                output_logprobs=[-float(token) for token in output],
                **fields,
            )
        )
        return [*prompt, *output]

    def run(self, reward=1.0):
        return TrajectoryPayload(samples=self.samples, reward=reward)


@st.composite
def forests(draw):
    """Calls that begin with the system prompt, or go on from any earlier turn; returns them with the number of leaves."""
    program, ends, continued = Program(), [], set()
    for _ in range(draw(st.integers(1, 12))):
        parent = draw(st.sampled_from([None, *range(len(ends))]))
        before = SYSTEM if parent is None else ends[parent]
        length = draw(st.integers(1, 3))
        if draw(st.booleans()) and parent is not None:
            ends.append(program.ask(list(before), length))  # Without a message in between.
        else:
            ends.append(program.call(before, length))
        continued.add(parent)
    return program.run(), len(ends) - len(continued - {None})


@given(forests())
def test_every_sampled_token_of_a_forest_is_trained_once(forest):
    run, leaves = forest
    datums = datums_of(run, advantage=0.5)
    actions = [token for datum in datums for token in datum.tokens[datum.mask > 0].tolist()]
    assert sorted(actions) == sorted(t for s in run.samples for t in s.output_token_ids)
    assert len(datums) == leaves
    for datum in datums:
        assert (datum.logprobs == -datum.tokens * datum.mask).all()
        for start, number in datum.turns:
            sample = run.samples[number]
            assert datum.tokens[:start].tolist() == sample.prompt_token_ids
            output = datum.tokens[start : start + len(sample.output_token_ids)]
            assert output.tolist() == sample.output_token_ids
    assert sum(datum.share for datum in datums) == pytest.approx(1.0)


def interleaved():
    """A main agent with two subagents whose calls interleave; then its conversation is shortened to a summary."""
    program = Program()
    main = program.call(SYSTEM)
    main = program.call(main)
    first, second = program.call([4, 5]), program.call([4, 6])
    first = program.call(first)
    second = program.call(second)
    main = program.call(main)
    second = program.call(second)
    program.call(main)  # The summary.
    short = program.call([*SYSTEM, 7])
    program.call(short)
    return program


def test_two_interleaved_subagents_and_a_compaction_are_four_datums():
    program, counts = interleaved(), DatumCounts()
    datums = datums_of(program.run(), counts=counts)
    actions = [token for datum in datums for token in datum.tokens[datum.mask > 0].tolist()]
    assert sorted(actions) == list(range(100, program.outputs))
    assert [[number for _, number in datum.turns] for datum in datums] == [
        [0, 1, 6, 8],
        [2, 4],
        [3, 5, 7],
        [9, 10],
    ]
    assert counts.metrics()["trained_tokens:mean"] == 1.0


def test_a_turn_within_two_branches_is_an_action_in_one():
    program = Program()
    shared = program.call(SYSTEM)
    program.call(shared)
    program.call(shared)
    first, second = datums_of(program.run())
    assert first.tokens[:6].tolist() == second.tokens[:6].tolist()
    assert (first.mask[4:6] == 1).all()
    assert (second.mask[4:6] == 0).all()


def test_a_run_counts_once_in_its_group_however_many_branches_it_has():
    linear = Program()
    linear.call(linear.call(SYSTEM))
    batch = make_batch([interleaved().run(1.0), linear.run(0.0), linear.run(0.0)])
    advantages = {}
    for datum in batch.datums:
        advantages.setdefault(datum.traj_idx, set()).update(datum.advantages[datum.mask > 0])
    assert advantages == {
        0: {np.float32(2 / 3)},
        1: {np.float32(-1 / 3)},
        2: {np.float32(-1 / 3)},
    }
    assert batch.metrics["reward:mean"] == pytest.approx(1 / 3)
    assert batch.num_traces == 3
    shares = [sum(d.share for d in batch.datums if d.traj_idx == run) for run in range(3)]
    assert shares == pytest.approx([1, 1, 1])
    assert [d.share for d in batch.datums if d.traj_idx == 1] == [1.0]
    assert batch.metrics["datums_per_run:mean"] == 2.0
    assert batch.metrics["datums_per_run:max"] == 4.0


def test_of_too_many_branches_those_with_the_most_actions_are_kept_and_the_rest_counted():
    program = Program()
    for length in (1, 4, 2, 3):
        program.call(SYSTEM, length)
    batch = make_batch([program.run(), TrajectoryPayload(samples=[], reward=0.0, failure="grader")])
    assert batch.metrics["dropped_datums:sum"] == 0
    counts = DatumCounts()
    datums = datums_of(program.run(), max_datums=2, counts=counts)
    assert [datum.actions for datum in datums] == [4, 3]
    assert [datum.share for datum in datums] == pytest.approx([4 / 7, 3 / 7])
    metrics = counts.metrics()
    assert metrics["dropped_datums:sum"] == 2
    assert metrics["dropped_tokens:sum"] == 3
    assert metrics["trained_tokens:mean"] == pytest.approx(0.7)


def test_side_calls_and_superseded_answers_are_not_trained_on():
    program, counts = Program(), DatumCounts()
    main = program.call(SYSTEM)
    program.call([8, 9], excluded="side_call")
    prompt = [*main, 11]
    program.ask(prompt, excluded="superseded")
    program.call(program.ask(prompt))
    (datum,) = datums_of(program.run(), counts=counts)
    assert [number for _, number in datum.turns] == [0, 3, 4]
    assert counts.metrics()["excluded_tokens:sum"] == 4
    assert counts.metrics()["trained_tokens:mean"] == pytest.approx(0.6)


def test_mean_datums_of_several_passes_are_over_runs():
    passes = [
        {"datums_per_run:mean": 4.0, "runs:sum": 1},
        {"datums_per_run:mean": 1.0, "runs:sum": 3},
    ]
    assert merge(passes)["datums_per_run:mean"] == 1.75
