"""Datums as one packed pass: sequences laid end to end without padding.

Datums with a common beginning form a tree: the runs of a group share its prompt, some of them their first turns, groups their
system prompt. A pass holds each shared part once, as a row that others continue; it computes only tokens that lead up to a
sampled one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hud.engine.models.routing import Experts
from hud.engine.pictures.placement import check_placed
from hud.errors import UsageError
from hud.learning.datums import Datum, Floats, Ids
from hud.learning.losses.action_tokens import ActionTokens
from hud.learning.packing import Place, packing_order
from hud.trace.sampled.pictures import Picture, pictures_within


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
    """(R,) int64: the row that each row continues, or -1, in depth-first order; None if no row does."""
    shared_tokens: int
    """Tokens of the datums that other datums' rows compute."""
    predicts: Tensor
    """(M,) int64: positions in (L,) that predict a sampled token."""
    targets: Tensor
    """(M,) int64: that token."""
    temperatures: Tensor | None
    """(M,) fp32; None if all are 1."""
    prediction: Tensor | None
    """(N,) int64: index into (M,) of each sampled token; equal for a shared token that several datums have as an action. None:
    N is M, in the same order."""
    sequence: Tensor
    """(N,) int64: which of `datums` each sampled token belongs to, counted from 0 here."""
    sampling_logprobs: Tensor
    advantages: Tensor
    weights: Tensor
    reference: Tensor | None = None
    """(N,): logprobs under a teacher; None: the datums have none."""
    reference_tokens: Tensor | None = None
    """(M, k) int64: the reference's k likeliest tokens at each prediction; None: the loss does not compare distributions."""
    reference_top: Tensor | None = None
    """(M, k + 1): their logprobs under the reference and, last, that of all other tokens together."""
    shares: Tensor | None = None
    """Share of each of `datums` in its run; None: all are 1."""
    pictures: tuple[tuple[Picture, ...], ...] = ()
    """Pictures of each row; empty: no row has one."""
    experts: Tensor | None = None
    """(L, routers, k) int64: router choices that are replayed; -1: the router's own. None: none is."""

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
        self,
        logprobs: Tensor,
        entropy: Tensor | None = None,
        reference: Tensor | None = None,
        reference_kl: Tensor | None = None,
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
            reference_kl=reference_kl,
            entropy=entropy,
            shares=self.shares,
        )


@dataclass(frozen=True)
class _Row:
    """Some tokens of a datum, from position `first`; they continue the row `prefix`, if it is not -1."""

    number: int
    """That of the datum."""
    tokens: Ids
    first: int
    prefix: int


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


def check_pictures(
    datums: Sequence[Datum], which: Sequence[int], picture_tokens: frozenset[int]
) -> None:
    """Raise `UsageError` if a pass of one of these datums would compute a picture token without its picture."""
    for number in which:
        datum, last = datums[number], len(_computed(datums[number]))
        if not datum.pictures and not picture_tokens:
            continue
        try:
            pictures = pictures_within(datum.pictures, last)
            check_placed(datum.tokens[:last].tolist(), pictures, picture_tokens)
        except UsageError as error:
            raise UsageError(f"Datum {number} cannot be trained on. {error}") from None


def places_of(datums: Sequence[Datum], which: Sequence[int], *, share: bool) -> list[Place]:
    """Return the packing order of the datums of `which`, each with at least one sampled token that follows another.

    A datum makes a pass compute the tokens before its last sampled one; with `share`, common beginnings once.
    """
    order = packing_order([_computed(datums[number]) for number in which], share=share)
    return [replace(place, number=which[place.number]) for place in order]


def _computed(datum: Datum) -> Ids:
    """Return the tokens before the last action of a datum."""
    return datum.tokens[: np.flatnonzero(datum.mask)[-1]]


def lay_out(
    datums: Sequence[Datum],
    places: Sequence[Place],
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    experts: Mapping[int, Experts] | None = None,
) -> PackedPass:
    """Return the datums of consecutive `places` as one pass; `experts`: the router choices to replay of some of them.

    Of no datums it is a pass over one token, for a rank that must take part in what the others compute.
    """
    if not places:
        taught = any(datum.reference is not None for datum in datums)
        nobody = replace(_NOBODY, reference=_NOBODY.logprobs) if taught else _NOBODY
        alone = places_of([nobody], [0], share=False)
        return replace(lay_out([nobody], alone, device, dtype), datums=())
    rows, paths = _rows(datums, places)
    starts = np.concatenate(([0], np.cumsum([len(row.tokens) for row in rows])))
    columns = []
    for index, (place, path) in enumerate(zip(places, paths, strict=True)):
        datum = datums[place.number]
        actions = np.flatnonzero(datum.mask)
        positions = np.concatenate([np.arange(starts[row], starts[row + 1]) for row in path])
        columns.append(
            (
                positions[actions - 1],
                (datum.tokens if datum.targets is None else datum.targets)[actions],
                datum.temperatures[actions],
                np.full(len(actions), index),
                datum.logprobs[actions],
                datum.advantages[actions],
                datum.weights[actions],
            )
        )
    predicts, targets, temperatures, sequence, *floats = (
        np.concatenate(part) for part in zip(*columns, strict=True)
    )
    scored = _of_actions(datums, places, lambda datum: datum.reference)
    likeliest = _of_actions(datums, places, lambda datum: datum.reference_tokens)
    top = _of_actions(datums, places, lambda datum: datum.reference_top)
    distinct: Ids | slice = slice(None)
    prediction: Ids | None = None
    if likeliest is None:  # A teacher may have read other contexts of equal tokens.
        distinct, prediction = _distinct(predicts, targets, temperatures)
    predicts, targets, temperatures = (
        column[distinct] for column in (predicts, targets, temperatures)
    )
    tempered = bool((temperatures != 1).any())
    sampling_logprobs, advantages, weights = (_put(part, device, dtype) for part in floats)
    prefixes = np.asarray([row.prefix for row in rows])
    shares = np.asarray([datums[place.number].share for place in places])
    return PackedPass(
        datums=tuple(place.number for place in places),
        input_ids=_put(np.concatenate([row.tokens for row in rows]), device),
        positions=_put(
            np.concatenate([np.arange(len(row.tokens)) + row.first for row in rows]), device
        ),
        cu_seqlens=_put(starts, device),
        prefixes=_put(prefixes, device) if (prefixes >= 0).any() else None,
        shared_tokens=sum(place.length for place in places) - int(starts[-1]),
        predicts=_put(predicts, device),
        targets=_put(targets, device),
        temperatures=_put(temperatures, device, dtype) if tempered else None,
        prediction=None if prediction is None else _put(prediction, device),
        sequence=_put(sequence, device),
        sampling_logprobs=sampling_logprobs,
        advantages=advantages,
        weights=weights,
        reference=None if scored is None else _put(scored, device, dtype),
        reference_tokens=None if likeliest is None else _put(likeliest, device),
        reference_top=None if top is None else _put(top, device, dtype),
        shares=None if (shares == 1).all() else _put(shares, device, dtype),
        pictures=_pictures(datums, places),
        experts=_experts(rows, experts or {}, device),
    )


def _of_actions(
    datums: Sequence[Datum],
    places: Sequence[Place],
    column_of: Callable[[Datum], Floats | Ids | None],
) -> Floats | Ids | None:
    """Return (N, ...): a column of the sampled tokens; None where a datum has none."""
    parts: list[Any] = []
    for place in places:
        datum = datums[place.number]
        column = column_of(datum)
        if column is None:
            return None
        parts.append(column[np.flatnonzero(datum.mask)])
    return np.concatenate(parts)


def _experts(
    rows: Sequence[_Row], experts: Mapping[int, Experts], device: torch.device
) -> Tensor | None:
    """Return the router choices of the rows' tokens; a shared row has those of the datum that it was made of."""
    recordings = [experts[row.number] for row in rows if row.number in experts]
    if not recordings:
        return None
    parts = []
    for row in rows:
        part = np.full((len(row.tokens), *recordings[0].shape[1:]), -1, np.int64)
        recorded = experts.get(row.number, part[:0])[row.first : row.first + len(row.tokens)]
        part[: len(recorded)] = recorded
        parts.append(part)
    return _put(np.concatenate(parts), device)


def _pictures(datums: Sequence[Datum], places: Sequence[Place]) -> tuple[tuple[Picture, ...], ...]:
    """Return the pictures of each datum's row; such datums share no beginnings."""
    if not any(datums[place.number].pictures for place in places):
        return ()
    return tuple(pictures_within(datums[place.number].pictures, place.length) for place in places)


def _rows(
    datums: Sequence[Datum], places: Sequence[Place]
) -> tuple[list[_Row], list[tuple[int, ...]]]:
    """Return the rows of a pass, depth first, and the path of each place: the rows of its datum, from the root on."""
    rows: list[_Row] = []
    paths: list[tuple[int, ...]] = []
    path: list[int] = []
    for index, place in enumerate(places):
        shared = place.shared if index else 0
        while path and rows[path[-1]].first >= shared:
            path.pop()
        tokens, first = datums[place.number].tokens, shared
        for end in (*_branchings(places[index + 1 :], shared), place.length):
            if end > first:
                number, prefix = places[index].number, path[-1] if path else -1
                rows.append(_Row(number, tokens[first:end], first, prefix))
                path.append(len(rows) - 1)
                first = end
        paths.append(tuple(path))
    return rows, paths


def _branchings(later: Sequence[Place], shared: int) -> list[int]:
    """Return the ends, ascending, of what a place shares with later ones beyond its first `shared` tokens."""
    ends: list[int] = []
    for place in later:
        if place.shared <= shared:
            break
        if not ends or place.shared < ends[-1]:
            ends.append(place.shared)
    return ends[::-1]


def _distinct(predicts: Ids, targets: Ids, temperatures: Floats) -> tuple[Ids | slice, Ids | None]:
    """Return which predictions are distinct (M,), and the index among them of each action's (N,); or all, and None."""
    keys = predicts * (targets.max() + 1) + targets
    kinds, kind = np.unique(temperatures, return_inverse=True)
    _, first, index = np.unique(keys * len(kinds) + kind, return_index=True, return_inverse=True)
    if len(first) == len(keys):
        return slice(None), None
    return first, index


def _put(array: np.ndarray, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device=device, dtype=dtype)
