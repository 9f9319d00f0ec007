"""Tensors of Tinker's requests that no client sends: each is refused in one sentence."""

import numpy as np
import pytest

from hud_integrations.shared.protobuf import data, integer
from hud_integrations.tinker.service.wire import messages, tensors
from hud_integrations.tinker.service.wire.messages import read_forward_backward


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
        ([], [], [], [-1, 2]),
    ],
)
def test_a_damaged_one_is_refused(values, starts, places, shape):
    found = read_forward_backward(request(values, starts, places, shape))
    assert "shape" in str(found.fault)
    assert not found.datums


@pytest.mark.parametrize("datums", [1, 8])
def test_rows_that_hold_nothing_fill_no_memory(datums, monkeypatch):
    """A row of 128 targets costs 8 bytes of a body, and 1 KiB once it is read."""
    for module in (messages, tensors):
        monkeypatch.setattr(module, "MOST_COLUMN_BYTES", 1 << 20)
    rows = 1025 // datums + 1
    empty = request([], np.zeros(rows + 1, np.int64), [], [rows, 128])
    found = read_forward_backward(empty * datums)
    assert "larger than" in str(found.fault)
    assert not found.datums


def test_tokens_that_end_in_the_middle_of_a_number_are_refused():
    chunk = data(1, data(1, data(1, b"abcde")))
    found = read_forward_backward(data(3, chunk))
    assert "Datum 0" in str(found.fault)
    assert not found.datums
