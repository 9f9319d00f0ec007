"""Tensors of Tinker's requests that no client sends: each is refused in one sentence."""

import numpy as np
import pytest

from hud.errors import UsageError
from hud.platform.tinker.messages import read_forward_backward
from hud.platform.tinker.protobuf import data, integer


def request(values, starts, places, shape):
    """A request of one datum, whose targets are a sparse matrix."""
    sparse = data(1, np.asarray(values, "<i8").tobytes())
    sparse += data(2, np.asarray(starts, "<i8").tobytes())
    sparse += data(3, np.asarray(places, "<i8").tobytes())
    tensor = data(2, sparse) + integer(3, 2) + b"".join(integer(4, size) for size in shape)
    return data(3, data(2, data(1, "target_tokens") + data(2, tensor)))


def test_a_sparse_matrix_is_read_with_zeros():
    (datum,) = read_forward_backward(request([5, 6], [0, 1, 2], [0, 1], [2, 2])).datums
    assert datum.targets_each == 2
    assert np.frombuffer(datum.targets, np.int64).tolist() == [5, 0, 0, 6]


@pytest.mark.parametrize(
    ("values", "starts", "places", "shape"),
    [
        ([1], [0, 1], [0], [2**50, 2]),
        ([], [], [], [0, 2]),
        ([], [], [], [2, 2]),
        ([1], [0, 2, 1], [0], [2, 2]),
        ([1], [0, 1, 1], [5], [2, 2]),
        ([1], [0, 1, 1], [0], [2, 2, 2]),
        ([1], [0, 1, 1], [0], [2]),
        ([1], [0, 1, 1], [0], [2, 4096]),
    ],
)
def test_a_damaged_one_is_refused(values, starts, places, shape):
    with pytest.raises(UsageError, match="shape"):
        read_forward_backward(request(values, starts, places, shape))
