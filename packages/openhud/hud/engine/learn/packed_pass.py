"""Datums as one packed pass: sequences laid end to end without padding.

The runs of a group begin with the same prompt. A pass holds it once, as a row that the rest of each run
continues; it computes only tokens that lead up to a sampled one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hud.errors import UsageError
from hud.learning.datums import Datum, Ids
from hud.learning.losses.action_tokens import ActionTokens
from hud.learning.packing import Cost

SHARED_FROM = 16
"""Fewest tokens of a common prompt that are worth a row of their own."""


@dataclass(frozen=True)
class PackedPass:
    """Some datums laid end to end, on the trainer's device."""

    datums: tuple[int, ...]
    """Indices of the packed datums in the batch, in order; none: a pass only for collectives."""
    input_ids: Tensor
    """(L,) int64: the rows, end to end."""
    positions: Tensor
    """(L,) int64: place of each token in its datum."""
    cu_seqlens: Tensor
    """(R + 1,) int64: where each row begins, and L."""
    prefixes: Tensor | None
    """(R,) int64: the row that each row continues, or -1, those with -1 first; None if no row does."""
    predicts: Tensor
    """(N,) int64: positions in (L,) that predict a sampled token."""
    targets: Tensor
    """(N,) int64: that token."""
    temperatures: Tensor | None
    """(N,) fp32; None if all are 1."""
    sequence: Tensor
    """(N,) int64: which of `datums` each sampled token belongs to, counted from 0 here."""
    sampling_logprobs: Tensor
    advantages: Tensor
    weights: Tensor

    def __getstate__(self) -> dict[str, Any]:
        # As arrays: torch would send a file descriptor for each tensor.
        return {
            name: value.numpy() if isinstance(value, Tensor) else value
            for name, value in vars(self).items()
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            restored = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            object.__setattr__(self, name, restored)

    def tokens(
        self, logprobs: Tensor, entropy: Tensor | None = None, reference: Tensor | None = None
    ) -> ActionTokens:
        """Return what a loss is computed from."""
        return ActionTokens(
            logprobs=logprobs,
            sampling_logprobs=self.sampling_logprobs,
            advantages=self.advantages,
            weights=self.weights,
            sequence=self.sequence,
            sequences=len(self.datums),
            reference_logprobs=reference,
            entropy=entropy,
        )


@dataclass(frozen=True)
class _Row:
    """Some tokens of a datum, from position `first`; they continue the row `prefix`, if it is not -1."""

    tokens: Ids
    first: int = 0
    prefix: int = -1


_NOBODY = Datum(
    tokens=np.zeros(2, np.int64),
    mask=np.asarray([0, 1], np.float32),
    logprobs=np.zeros(2, np.float32),
    advantages=np.zeros(2, np.float32),
    weights=np.zeros(2, np.float32),
    temperatures=np.ones(2, np.float32),
    traj_idx=0,
)


def check(datums: Sequence[Datum], which: Sequence[int]) -> None:
    """Raise `UsageError` if one of the datums of `which` cannot be laid out."""
    for number in which:
        if datums[number].mask[0]:
            raise UsageError(
                f"Datum {number} samples its first token from nothing; begin it with a prompt."
            )


def cost_of(datum: Datum, share: bool) -> Cost:
    """Return what a datum makes a pass compute: the tokens before its last sampled one.

    Datums with the same prompt, up to the first sampled token, are a family.
    """
    first, last = _bounds(datum)
    if not share or first < SHARED_FROM:
        return Cost(last)
    return Cost(last - first, first, datum.tokens[:first].tobytes())


def _bounds(datum: Datum) -> tuple[int, int]:
    """Return the length of a datum's prompt, and the position of its last action."""
    actions = np.flatnonzero(datum.mask)
    first = int(actions[0]) if datum.prompt_length is None else datum.prompt_length
    return first, int(actions[-1])


def lay_out(
    datums: Sequence[Datum],
    which: Sequence[int],
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    *,
    share: bool = False,
) -> PackedPass:
    """Return the datums of `which`, each with at least one sampled token that follows another, as one pass.

    With `share`, a prompt that several of them begin with becomes a row that they continue. Of no datums it is a
    pass over one token, for a rank that must take part in what the others compute.
    """
    if not which:
        return replace(lay_out([_NOBODY], [0], device, dtype), datums=())
    rows, places = _rows(datums, which, share)
    # Rows that continue others stand behind all that do not.
    order = sorted(range(len(rows)), key=lambda number: rows[number].prefix >= 0)
    rank = {number: place for place, number in enumerate(order)}
    placed = [rows[number] for number in order]
    starts = np.concatenate(([0], np.cumsum([len(row.tokens) for row in placed])))
    predicts, columns = [], []
    for place, number in enumerate(which):
        datum = datums[number]
        actions = np.flatnonzero(datum.mask)
        own, prefix = places[place]
        row = rows[own]
        positions = actions - 1 - row.first + starts[rank[own]]
        if prefix >= 0:
            positions = np.where(
                actions <= row.first, actions - 1 + starts[rank[prefix]], positions
            )
        predicts.append(positions)
        columns.append(
            (
                (datum.tokens if datum.targets is None else datum.targets)[actions],
                np.full(len(actions), place),
                datum.temperatures[actions],
                datum.logprobs[actions],
                datum.advantages[actions],
                datum.weights[actions],
            )
        )
    targets, sequence, temperatures, *floats = (
        np.concatenate(part) for part in zip(*columns, strict=True)
    )
    tempered = bool((temperatures != 1).any())
    sampling_logprobs, advantages, weights = (_put(part, device, dtype) for part in floats)
    prefixes = np.asarray([rank[row.prefix] if row.prefix >= 0 else -1 for row in placed])
    return PackedPass(
        datums=tuple(which),
        input_ids=_put(np.concatenate([row.tokens for row in placed]), device),
        positions=_put(
            np.concatenate([np.arange(len(row.tokens)) + row.first for row in placed]), device
        ),
        cu_seqlens=_put(starts, device),
        prefixes=_put(prefixes, device) if (prefixes >= 0).any() else None,
        predicts=_put(np.concatenate(predicts), device),
        targets=_put(targets, device),
        temperatures=_put(temperatures, device, dtype) if tempered else None,
        sequence=_put(sequence, device),
        sampling_logprobs=sampling_logprobs,
        advantages=advantages,
        weights=weights,
    )


def _rows(
    datums: Sequence[Datum], which: Sequence[int], share: bool
) -> tuple[list[_Row], list[tuple[int, int]]]:
    """Return the rows of a pass and, for each datum, its own row and its prefix's row or -1."""
    families = Counter(cost_of(datums[number], share).family for number in which)
    rows: list[_Row] = []
    places: list[tuple[int, int]] = []
    prefix_of: dict[Hashable, int] = {}
    for number in which:
        datum = datums[number]
        first, last = _bounds(datum)
        family = cost_of(datum, share).family
        if family is None or families[family] == 1:
            places.append((len(rows), -1))
            rows.append(_Row(datum.tokens[:last]))
            continue
        if family not in prefix_of:
            prefix_of[family] = len(rows)
            rows.append(_Row(datum.tokens[:first]))
        prefix = prefix_of[family]
        if last == first:  # one sampled token: the prompt alone predicts it
            places.append((prefix, -1))
            continue
        places.append((len(rows), prefix))
        rows.append(_Row(datum.tokens[first:last], first, prefix))
    return rows, places


def _put(array: np.ndarray, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device=device, dtype=dtype)
