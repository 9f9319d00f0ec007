"""Tokens of several steps reach their requests together, and those that end a turn or are watched at once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hud.engine.sample.prefix_cache import Slot
from hud.engine.sample.request import Request
from hud.engine.sample.token_sampling import Uniforms
from hud.trace import SamplingParams
from hud_kernels.cuda.untaken_tokens import UntakenTokens

STEPS = 8
STOP = 3


def request(most, *, followed=False, stops=frozenset({STOP})):
    uniforms = Uniforms(1)
    uniforms.coming(STEPS)
    return Request(
        prompt=[1, 2],
        params=SamplingParams(seed=1),
        stop_ids=stops,
        followed=followed,
        uniforms=uniforms,
        most=most,
        listener=lambda: None,
        slot=Slot(tokens=[1]),
    )


def take(sampled):
    """Do what the sampler does with sampled tokens."""
    for row, ids, logprobs in sampled:
        row.token_ids += ids
        row.logprobs += logprobs
        if ids[-1] in row.stop_ids or len(row.token_ids) >= row.most:
            row.end("stop")


def run(untaken, ids):
    for step in ids:
        take(untaken.add(step, -step.astype(float)))
        untaken.note_ends()
        if untaken.over:
            break
    take(untaken.rest())


def test_tokens_of_a_quiet_sequence_come_together_and_of_a_followed_one_each_by_itself():
    rows = [request(20), request(20, followed=True)]
    untaken = UntakenTokens(rows, STEPS)
    for number in range(3):
        sampled = untaken.add(np.array([5, 6]), np.array([-1.0, -2.0]))
        assert [(row, ids) for row, ids, _ in sampled] == [(rows[1], [6])], number
        take(sampled)
    assert untaken.rest() == [(rows[0], [5, 5, 5], [-1.0, -1.0, -1.0])]


@given(
    st.lists(st.tuples(st.integers(1, 10), st.booleans()), min_size=1, max_size=5),
    st.data(),
)
def test_each_request_gets_its_tokens_up_to_its_end(kinds, data):
    ids = np.array(
        data.draw(
            st.lists(
                st.lists(st.integers(0, 6), min_size=len(kinds), max_size=len(kinds)),
                min_size=1,
                max_size=STEPS,
            )
        )
    )
    rows = [request(most, followed=followed) for most, followed in kinds]
    run(UntakenTokens(rows, STEPS), ids)
    for column, row in enumerate(rows):
        column_ids = ids[:, column].tolist()
        end = column_ids.index(STOP) + 1 if STOP in column_ids else len(column_ids)
        expected = column_ids[: min(end, row.most)]
        assert row.token_ids == expected
        assert row.logprobs == [-float(token) for token in expected]
        assert row.place.tokens == [1, 2, *expected[:-1]]
        fresh = Uniforms(1)
        fresh.coming(STEPS)
        fresh.skip(len(expected))
        assert row.uniforms.next() == fresh.next()


def test_sequences_without_stop_ids_end_by_their_length():
    rows = [request(2, stops=frozenset())]
    run(UntakenTokens(rows, STEPS), np.full((STEPS, 1), STOP))
    assert rows[0].token_ids == [STOP, STOP]
