"""Token ids whose log-probabilities at positions of its prompt a sampling request asks for."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import BaseModel, Field

from hud.errors import UsageError
from hud.learning.datum_calls import packed
from hud_integrations.shared.protobuf import data, integer
from hud_integrations.tinker.service.wire.tensors import FLOAT32, cell_rows

TokenId = Annotated[int, Field(ge=-1, lt=1 << 31)]
Index = Annotated[int, Field(ge=0, lt=1 << 31)]


class TargetIds(BaseModel):
    """An (N - 1, K) matrix of ids for a prompt of N tokens, dense or in compressed rows; -1 asks for nothing.

    Row i is of the prompt's token i + 1, in the context of those before it.
    """

    data: list[TokenId]
    shape: list[int]
    sparse_crow_indices: list[Index] | None = None
    sparse_col_indices: list[Index] | None = None

    def cells(self, rows: int) -> tuple[list[int], list[int]]:
        """Return the row and the id of each cell that asks for something, in order.

        Raises `UsageError` for another number of rows, indices that are no matrix, and a matrix without any id.
        """
        if len(self.shape) != 2 or self.shape[0] != rows or self.shape[1] < 1:
            raise UsageError(
                f"target_prompt_logprobs takes {rows} rows for this prompt, one for each token but the first, of one or more "
                f"ids; its shape is {self.shape}."
            )
        ids, named = np.asarray(self.data, np.int64), self._named
        row_of_cell = self._rows()[named]
        if not len(row_of_cell):
            raise UsageError("target_prompt_logprobs names no token; leave it out.")
        return row_of_cell.tolist(), ids[named].tolist()

    def tensor(self, logprobs: list[float]) -> bytes:
        """Encode the logprobs of `cells` in the layout of the ids, as float32 with 0 where nothing was asked for."""
        values = np.zeros(len(self.data), np.float32)
        values[self._named] = logprobs
        shape = b"".join(integer(4, size) for size in self.shape)
        column = packed(values, np.float32)
        if self.sparse_crow_indices is None:
            return data(1, column) + integer(3, FLOAT32) + shape
        indices = data(2, packed(self.sparse_crow_indices, np.int64))
        indices += data(3, packed(self.sparse_col_indices or [], np.int64))
        return data(2, data(1, column) + indices) + integer(3, FLOAT32) + shape

    @property
    def _named(self) -> np.ndarray:
        """(len(data),) booleans: True where a cell asks for something."""
        return np.asarray(self.data, np.int64) >= 0

    def _rows(self) -> np.ndarray:
        """Return the (len(data),) row of each cell of `data`."""
        rows, width = self.shape
        if self.sparse_crow_indices is None:
            if len(self.data) != rows * width:
                raise UsageError(
                    f"target_prompt_logprobs of shape {self.shape} holds {len(self.data)} ids."
                )
            return np.repeat(np.arange(rows), width)
        starts = np.asarray(self.sparse_crow_indices, np.int64)
        places = np.asarray(self.sparse_col_indices or [], np.int64)
        row_of_cell = cell_rows(starts, places, len(self.data), self.shape)
        if row_of_cell is None:
            raise UsageError(f"target_prompt_logprobs is no sparse matrix of shape {self.shape}.")
        return row_of_cell
