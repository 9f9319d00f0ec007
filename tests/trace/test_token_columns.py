"""Token columns give back exactly what was sampled."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from hud.trace.sampled.token_columns import (
    pack_ids,
    pack_logprobs,
    unpack_ids,
    unpack_logprobs,
)

ids = st.lists(st.integers(0, 2**31 - 1))
sampled = st.floats(max_value=0, width=32, allow_nan=False)


@given(ids)
def test_ids_come_back(values):
    assert unpack_ids(pack_ids(values)) == values
    assert pack_ids(values) == struct.pack(f"<{len(values)}i", *values)


@given(st.lists(sampled))
def test_logprobs_come_back_bit_for_bit(values):
    assert unpack_logprobs(pack_logprobs(values)) == values
    assert len(pack_logprobs(values)) == 4 * len(values)
