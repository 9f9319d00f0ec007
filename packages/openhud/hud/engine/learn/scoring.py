"""Logprobs of datums under a policy that is not trained: the reference policy of a loss."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from hud.engine.decoder import Decoder
from hud.engine.learn.local_trainer import default_pass_tokens
from hud.engine.learn.packed_pass import PackedPass, check, check_pictures, lay_out, places_of
from hud.engine.learn.pass_computer import PassResult
from hud.engine.learn.pass_metrics import Measured
from hud.engine.learn.training_pass import pass_computer
from hud.errors import UsageError
from hud.learning.datums import Datum, Floats, Ids
from hud.learning.packing import pack

_LEAST_OTHERS = 1e-6
"""Least probability of all tokens that a server does not list: the rounding of those that it lists."""


def scored_by(decoder: Decoder, datums: Sequence[Datum], top: int = 0) -> list[Datum]:
    """Return the datums with their reference's columns: logprobs under a decoder and, with `top`, its likeliest tokens.

    Raises `UsageError` for a datum that it cannot compute.
    """
    results = list(_passes(decoder, datums, top))
    rows = _logprobs(results, datums)
    scored = [replace(datum, reference=row) for datum, row in zip(datums, rows, strict=True)]
    for batch, result in results if top else ():
        assert result.top_tokens is not None
        assert result.top_logprobs is not None
        tokens, logprobs = result.top_tokens, result.top_logprobs
        if batch.prediction is not None:
            tokens, logprobs = tokens[batch.prediction], logprobs[batch.prediction]
        columns = tokens.cpu().numpy(), logprobs.float().cpu().numpy()
        ends = np.cumsum([datums[number].actions for number in batch.datums])[:-1]
        for number, likeliest, own in zip(
            batch.datums, *(np.split(column, ends) for column in columns), strict=True
        ):
            scored[number] = with_top(scored[number], likeliest, own)
    return scored


def with_listed(datum: Datum, listed: Sequence[Mapping[int, float] | None], top: int) -> Datum:
    """Return a datum with its reference's columns, from the logprobs that a server lists for each of its tokens.

    A list has the sampled token and at least the `top` likeliest. Raises `KeyError`, `ValueError` or `TypeError` where it has not.
    """
    row = np.zeros(datum.length, np.float32)
    likeliest: list[list[tuple[float, int]]] = []
    for place in np.flatnonzero(datum.mask).tolist():
        logprobs = listed[place]
        if logprobs is None:
            raise ValueError(f"no logprobs at {place}")
        row[place] = logprobs[int(datum.tokens[place])]
        ranked = sorted(((logprob, token) for token, logprob in logprobs.items()), reverse=True)
        likeliest.append(ranked[:top])
    datum = replace(datum, reference=row)
    if not top:
        return datum
    pairs = np.asarray(likeliest, np.float64).reshape(len(likeliest), top, 2)
    others = np.log(np.maximum(1 - np.exp(pairs[:, :, 0]).sum(1), _LEAST_OTHERS))
    columns = np.concatenate((pairs[:, :, 0], others[:, None]), 1)
    return with_top(datum, pairs[:, :, 1].astype(np.int64), columns.astype(np.float32))


def check_servable(datums: Sequence[Datum], teacher: str) -> None:
    """Raise `UsageError` for datums that a server of prompt logprobs cannot score: with pictures, or a temperature other than 1."""
    for datum in datums:
        if datum.pictures or (datum.temperatures[datum.mask > 0] != 1).any():
            raise UsageError(
                f"The teacher {teacher!r} scores texts that were sampled at temperature 1; set the temperature to 1, or load the "
                "teacher on this platform."
            )


def with_top(datum: Datum, tokens: Ids, logprobs: Floats) -> Datum:
    """Return a datum with its reference's likeliest tokens (N, k), and logprobs (N, k + 1), of its N sampled tokens."""
    actions, length = np.flatnonzero(datum.mask), datum.length
    every = np.zeros((length, tokens.shape[1]), np.int64)
    own = np.zeros((length, logprobs.shape[1]), np.float32)
    every[actions], own[actions] = tokens, logprobs
    return replace(datum, reference_tokens=every, reference_top=own)


def logprobs_under(decoder: Decoder, datums: Sequence[Datum]) -> list[Floats]:
    """Return, for each datum, (T,) fp32 logprobs of its tokens at their temperatures; 0 if the mask is 0.

    The decoder needs no trainer. Raises `UsageError` for a datum that it cannot compute.
    """
    return _logprobs(_passes(decoder, datums, 0), datums)


def _passes(
    decoder: Decoder, datums: Sequence[Datum], top: int
) -> Iterator[tuple[PackedPass, PassResult]]:
    used = [number for number, datum in enumerate(datums) if datum.actions]
    check(datums, used)
    check_pictures(datums, used, decoder.picture_tokens)
    alone = any(datums[number].pictures for number in used)
    order = places_of(datums, used, share=decoder.shares_prefixes and not alone)
    computer = pass_computer(decoder)
    for places in pack(order, default_pass_tokens(decoder), at_least=1):
        batch = lay_out(datums, places, decoder.device)
        yield batch, computer.logprobs(batch, top)


def _logprobs(
    results: Iterable[tuple[PackedPass, PassResult]], datums: Sequence[Datum]
) -> list[Floats]:
    measured = Measured()
    for batch, result in results:
        measured.add(batch, {}, result.logprobs)
    return measured.logprobs_of(datums)
