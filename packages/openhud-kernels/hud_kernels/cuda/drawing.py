"""Input and output of sampling steps in the memory of recorded graphs: parameters, random numbers, sampled tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hud.trace import SamplingParams

AHEAD = 16
"""Most tokens of a sequence that are sampled before the host reads them; at most a page."""


class Drawing:
    """The random numbers and parameters of sampling steps, and the tokens that they sampled, in the graphs' memory."""

    def __init__(self, most: int, device: torch.device) -> None:
        self.step = torch.zeros((), dtype=torch.long, device=device)
        """() int64: number of steps since `fill`."""
        self._temperatures = torch.ones(most, device=device)
        self._top_p = torch.ones(most, device=device)
        self._top_k = torch.zeros(most, dtype=torch.int32, device=device)
        self._uniforms = torch.zeros(AHEAD, most, dtype=torch.float64, device=device)
        self._sampled = torch.zeros(AHEAD, 2, most, dtype=torch.float64, device=device)
        """Ids, which fp64 holds exactly, and logprobs: one copy to the host for each step."""
        self._read: Tensor | None = None
        """The same on the host, once it is copied; made by the first `fetch`."""

    def fill(
        self, params: Sequence[SamplingParams], uniforms: Sequence[NDArray[np.float64]]
    ) -> bool:
        """Begin with the parameters and the next random numbers of each row, in one transfer to the device.

        Returns whether a distribution is truncated.
        """
        count, ahead = len(params), len(uniforms[0])
        keys = [(row.temperature, row.top_p, row.top_k) for row in params]
        # Most rows have the same parameters.
        distinct = dict(zip(keys, params, strict=True))
        numbers = {
            key: (row.effective_temperature, row.effective_top_p, row.effective_top_k)
            for key, row in distinct.items()
        }
        rows = np.empty((3 + ahead, count))
        rows[:3] = np.array([numbers[key] for key in keys], dtype=np.float64).T
        rows[3:] = np.concatenate(uniforms).reshape(count, ahead).T
        staged = to_device(torch.from_numpy(rows), self._uniforms.device)
        self._temperatures[:count].copy_(staged[0])
        self._top_p[:count].copy_(staged[1])
        self._top_k[:count].copy_(staged[2])
        self._uniforms[:ahead, :count].copy_(staged[3:])
        self.step.zero_()
        return any(row.truncates for row in distinct.values())

    def draw(self, logits: Tensor, *, cut: bool) -> Tensor:
        """Sample a token for each row of logits (B, V) and keep it with its logprob; return the ids (B,)."""
        from hud_kernels.cuda.fused_sampling import RowParams, sample_rows  # Needs triton.

        count = len(logits)
        params = RowParams(self._temperatures[:count], self._top_p[:count], self._top_k[:count])
        uniforms = self._uniforms[:, :count].index_select(0, self.step[None])[0]
        ids, logprobs = sample_rows(logits, params, uniforms, cut=cut)
        self.keep(ids, logprobs)
        return ids

    def keep(self, ids: Tensor, logprobs: Tensor) -> None:
        """Store the ids and logprobs (B,) of a step for `fetch`, and count the step."""
        both = torch.stack((ids.double(), logprobs.double()))
        self._sampled[:, :, : len(ids)].index_copy_(0, self.step[None], both[None])
        self.step.add_(1)

    def fetch(self, step: int) -> torch.cuda.Event | None:
        """Begin to copy a launched step's tokens to the host; return the event of its end. None: they are there."""
        if self._read is None:
            pinned = self._sampled.device.type == "cuda"
            self._read = torch.empty(self._sampled.shape, dtype=torch.float64, pin_memory=pinned)
        self._read[step].copy_(self._sampled[step], non_blocking=True)
        if self._sampled.device.type != "cuda":
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event

    def read(self, step: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return ids and logprobs (count,) of the first rows of a step that was fetched."""
        assert self._read is not None
        ids, logprobs = self._read[step, :, :count].numpy()
        return ids.astype(np.int64), logprobs


def to_device(rows: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the host to the device, without waiting for it."""
    if device.type != "cuda":
        return rows.to(device)
    return rows.pin_memory().to(device, non_blocking=True)
