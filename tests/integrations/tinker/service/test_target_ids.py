"""Token ids that Tinker's sampling requests name for scoring: read densely or sparsely, and answered in the same layout."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hud.errors import UsageError
from hud_integrations.shared.protobuf import fields, integers
from hud_integrations.tinker.service.wire.target_ids import TargetIds

matrices = arrays.arrays(
    np.int64,
    st.tuples(st.integers(1, 6), st.integers(1, 5)),
    elements=st.integers(-1, 50),
).filter(lambda matrix: (matrix >= 0).any())


def sparse(matrix):
    """A matrix in compressed rows, without its cells of -1."""
    named = matrix >= 0
    return TargetIds(
        data=matrix[named].tolist(),
        shape=list(matrix.shape),
        sparse_crow_indices=[0, *np.cumsum(named.sum(1)).tolist()],
        sparse_col_indices=np.nonzero(named)[1].tolist(),
    )


def dense(matrix):
    return TargetIds(data=matrix.reshape(-1).tolist(), shape=list(matrix.shape))


@pytest.mark.slow
@given(matrices)
def test_both_layouts_name_the_same_cells_in_order(matrix):
    rows, tokens = dense(matrix).cells(len(matrix))
    assert rows == np.nonzero(matrix >= 0)[0].tolist()
    assert tokens == matrix[matrix >= 0].tolist()
    assert sparse(matrix).cells(len(matrix)) == (rows, tokens)


@pytest.mark.slow
@given(matrices)
def test_a_dense_answer_has_zeros_where_nothing_was_named(matrix):
    _, tokens = dense(matrix).cells(len(matrix))
    written = [*fields(dense(matrix).tensor([-float(one) for one in tokens]))]
    assert [integers(value)[0] for number, value in written if number == 4] == [*matrix.shape]
    values = np.frombuffer(dict(written)[1], np.float32).reshape(matrix.shape)
    np.testing.assert_array_equal(values, np.where(matrix >= 0, -matrix, 0))


@given(matrices)
def test_a_sparse_answer_has_the_indices_of_the_request(matrix):
    ids = sparse(matrix)
    _, tokens = ids.cells(len(matrix))
    parts = dict(fields(dict(fields(ids.tensor([-float(one) for one in tokens])))[2]))
    assert np.frombuffer(parts[1], np.float32).tolist() == [-one for one in tokens]
    assert np.frombuffer(parts[2], np.int64).tolist() == ids.sparse_crow_indices
    assert np.frombuffer(parts[3], np.int64).tolist() == ids.sparse_col_indices


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ({"data": [1, 2], "shape": [2, 1]}, "takes 3 rows"),
        ({"data": [1, 2], "shape": [3, 1]}, "holds 2 ids"),
        ({"data": [1, 2, 3], "shape": [3]}, "takes 3 rows"),
        ({"data": [], "shape": [3, 0]}, "takes 3 rows"),
        ({"data": [-1] * 3, "shape": [3, 1]}, "names no token"),
        ({"data": [1] * 3, "shape": [3, 1], "sparse_crow_indices": [0, 1, 2, 3]}, "sparse"),
        (
            {
                "data": [1],
                "shape": [3, 2],
                "sparse_crow_indices": [0, 1, 0, 1],
                "sparse_col_indices": [0],
            },
            "sparse",
        ),
        (
            {
                "data": [1],
                "shape": [3, 2],
                "sparse_crow_indices": [0, 0, 0, 1],
                "sparse_col_indices": [2],
            },
            "sparse",
        ),
        (
            {
                "data": [1],
                "shape": [3, 2**40],
                "sparse_crow_indices": [0, 0, 0, 2],
                "sparse_col_indices": [0],
            },
            "sparse",
        ),
    ],
)
def test_ids_that_fit_no_prompt_are_refused(ids, said):
    with pytest.raises(UsageError, match=said):
        TargetIds(**ids).cells(3)
