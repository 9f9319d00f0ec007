"""Calls of a training session over single datums (`hud.learning.datum_calls`). Run on the session's thread."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from hud.errors import UsageError
from hud.learning.datum_calls import (
    DatumColumns,
    DatumPassRequest,
    DatumPassResult,
    SavedState,
    StepMetrics,
    StepRequest,
    packed,
)
from hud.learning.datums import Datum, Floats, check_length
from hud.learning.losses.action_tokens import ActionTokens
from hud.learning.losses.config import LossConfig, parse_loss
from hud.learning.losses.formulas import compute_loss
from hud.learning.losses.sequence_ratio import sequence_ratio_weights
from hud_platform.training.trained_texts import digests_of_datums

if TYPE_CHECKING:
    from hud.client.contributor import Contributor
    from hud_platform.training.session import Session


def datum_pass(session: Session, body: DatumPassRequest, client: Contributor) -> DatumPassResult:
    """Compute logprobs and the loss of datums, and accumulate its gradient if the request says so."""
    loss = parse_loss(body.loss_fn, body.loss_fn_config)
    shape = session.trained.serving.policy.decoder.config
    for number, columns in enumerate(body.datums):
        length = len(columns.tokens) // np.dtype(np.int64).itemsize
        check_length(length, f"Datum {number}", shape.max_position_embeddings)
    datums_by_input = [
        _datums(columns, loss, f"Datum {number}", shape.vocab_size)
        for number, columns in enumerate(body.datums)
    ]
    datums = [datum for datums_of_input in datums_by_input for datum in datums_of_input]
    counts = [len(datums_of_input) for datums_of_input in datums_by_input]
    session.begin_pass(client)
    if loss.needs_reference:
        session.trained.load_reference()
    trainer = session.trained.trainer
    if body.forward_only:
        logprobs = trainer.forward(datums)
        return _result(counts, logprobs, {"loss:sum": _loss(datums, logprobs, loss, body)})
    with session.accumulating(client) as total:
        if loss.loss_fn == "gspo":
            logprobs = trainer.forward(datums)
            value, weights = _sequence_ratios(datums, logprobs, loss, body)
            measured = {**trainer.backward(datums, weights), "loss:sum": value}
        else:
            measured = trainer.forward_backward(datums, body.loss_fn, body.loss_fn_config)
            logprobs = trainer.last_logprobs
        metrics = {"loss:sum": measured["loss:sum"], "tokens:sum": measured["tokens:sum"]}
        metrics |= _gap(datums, logprobs, loss)
        total.add(metrics, datums, len(body.datums), body.loss_fn)
        total.prompts = digests_of_datums(session.trained.serving.policy.chat.tokenizer, datums)
    return _result(counts, logprobs, metrics)


def datum_step(session: Session, body: StepRequest, client: Contributor) -> StepMetrics:
    """Apply the accumulated gradient, without a checkpoint."""
    session.take_step(body.optimizer(), client)
    return StepMetrics(step=session.trained.step, metrics=session.trained.measured)


def save(session: Session) -> SavedState:
    """Save the current weights as a checkpoint, unless the head holds them."""
    session.registry.leases.acquire(session.model_id, session.slug)
    head = session.trained.save(session.pending.unsaved)
    session.pending.saved()
    return SavedState(checkpoint_id=head, step=session.trained.step)


def _datums(columns: DatumColumns, loss: LossConfig, where: str, vocabulary: int) -> list[Datum]:
    """Return the datum of some columns: with K targets for each position K datums of the same tokens. Raises `UsageError`."""
    per_position = columns.targets_each
    if per_position is None:
        return [_datum(columns, loss, where, vocabulary)]
    if not loss.supervised:
        raise UsageError(
            f"{where} has several targets for each position, which only cross_entropy takes; the loss is {loss.loss_fn!r}."
        )
    count = len(columns.tokens) // np.dtype(np.int64).itemsize
    targets = _column(columns.targets, np.int64, count * per_position, f"target_tokens of {where}")
    weights = np.ones(count * per_position, np.float32)
    if columns.weights is not None:
        weights = _column(columns.weights, np.float32, count * per_position, f"weights of {where}")
    datums = []
    for target, weight in zip(
        targets.reshape(-1, per_position).T, weights.reshape(-1, per_position).T, strict=True
    ):
        alternative = columns.model_copy(
            update={"targets": packed(target, np.int64), "weights": packed(weight, np.float32)}
        )
        # Their hidden states are the same at every position: a pass that shares prompts computes them once.
        datums.append(replace(_datum(alternative, loss, where, vocabulary), prompt_length=count))
    return datums


def _datum(columns: DatumColumns, loss: LossConfig, where: str, vocabulary: int) -> Datum:
    """Return a datum whose position i + 1 predicts what position i of the columns does. Raises `UsageError`."""
    inputs = np.frombuffer(columns.tokens, np.int64)
    count = len(inputs)
    targets = _column(columns.targets, np.int64, count, f"target_tokens of {where}")
    if not count:
        raise UsageError(f"{where} has no tokens.")
    for name, ids in (("model_input", inputs), ("target_tokens", targets)):
        if ids.min() < 0 or ids.max() >= vocabulary:
            wrong = next(int(token) for token in ids if not 0 <= token < vocabulary)
            raise UsageError(
                f"{name} of {where} holds token id {wrong}; the model knows {vocabulary} tokens."
            )
    floats = {}
    for name in ("weights", "logprobs", "advantages", "ratio_mask"):
        data = getattr(columns, name)
        column = _column(data, np.float32, count, f"{name} of {where}") if data else None
        if column is not None and not np.isfinite(column).all():
            raise UsageError(f"{name} of {where} are not all finite.")
        floats[name] = column
    needed = ("weights",) if loss.supervised else ("logprobs", "advantages")
    if loss.supervised and floats["weights"] is None:
        floats["weights"] = np.ones(count, np.float32)
    for name in needed:
        if floats[name] is None:
            raise UsageError(f"{where} has no {name}, which the loss {loss.loss_fn!r} takes.")
    filled = {
        name: np.zeros(count, np.float32) if column is None else column
        for name, column in floats.items()
    }
    counted = np.flatnonzero(np.any([filled[name] != 0 for name in needed], axis=0))
    return Datum(
        tokens=np.append(inputs, targets[-1]),
        targets=np.append(inputs[:1], targets),
        mask=_after(np.ones(count, np.float32)),
        logprobs=_after(filled["logprobs"]),
        advantages=_after(filled["advantages"]),
        weights=_after(filled["weights"]),
        temperatures=np.ones(count + 1, np.float32),
        pictures=columns.pictures,
        prompt_length=int(counted[0]) + 1 if len(counted) else count,
    )


def _after(values: Floats) -> Floats:
    """Return (N + 1,): each value at the place of the token that its position predicts."""
    return np.append(np.zeros(1, np.float32), values)


def _column(data: bytes, dtype: type, count: int, what: str) -> np.ndarray:
    column: np.ndarray = np.frombuffer(data, dtype)
    if len(column) != count:
        raise UsageError(f"{what} has {len(column)} entries for {count} targets; give one each.")
    return column


def _loss(
    datums: list[Datum], logprobs: list[Floats], loss: LossConfig, body: DatumPassRequest
) -> float:
    """Return the loss of a forward pass. Raises `UsageError` for a loss that needs more than logprobs."""
    if loss.loss_fn == "gspo":
        return _sequence_ratios(datums, logprobs, loss, body)[0]
    if loss.needs_reference or loss.needs_entropy:
        raise UsageError(
            "forward computes no KL and no entropy; leave kl_coef, kl_advantage_coef and entropy_coef out."
        )

    def joined(rows: list[Floats]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([row[1:] for row in rows]).astype(np.float64))

    places = [np.full(datum.length - 1, number) for number, datum in enumerate(datums)]
    tokens = ActionTokens(
        logprobs=joined(logprobs),
        sampling_logprobs=joined([datum.logprobs for datum in datums]),
        advantages=joined([datum.advantages for datum in datums]),
        weights=joined([datum.weights for datum in datums]),
        sequence=torch.from_numpy(np.concatenate(places)),
        sequences=len(datums),
    )
    return float(compute_loss(tokens, loss)[0])


def _sequence_ratios(
    datums: list[Datum], logprobs: list[Floats], loss: LossConfig, body: DatumPassRequest
) -> tuple[float, list[Floats]]:
    """Return the loss `gspo`, and -dC/dlp of every token."""
    value, weights = 0.0, []
    for datum, row, columns in zip(datums, logprobs, body.datums, strict=True):
        mask = datum.advantages != 0
        if columns.ratio_mask is not None:
            mask = _after(np.frombuffer(columns.ratio_mask, np.float32)) != 0
        value_of_datum, pulls = sequence_ratio_weights(
            row, datum.logprobs, datum.advantages, mask, loss
        )
        value += value_of_datum
        weights.append(pulls)
    return value, weights


def _gap(datums: list[Datum], logprobs: list[Floats], loss: LossConfig) -> dict[str, float]:
    """Return the mean distance between the sampler's logprobs and the trainer's, over tokens with one of each."""
    if loss.supervised:
        return {}
    gaps = [
        np.abs(row - datum.logprobs)[datum.logprobs != 0]
        for datum, row in zip(datums, logprobs, strict=True)
    ]
    mean_gap = np.concatenate(gaps).mean(dtype=np.float64) if any(map(len, gaps)) else 0.0
    return {"sampler_gap:mean": float(mean_gap)}


def _result(
    counts: list[int], logprobs: list[Floats], metrics: dict[str, float]
) -> DatumPassResult:
    """Return the logprobs of each request's datum, of which `counts` are the targets for each position."""
    ends = np.cumsum([0, *counts])
    rows = [
        packed(np.stack([row[1:] for row in logprobs[start:end]], axis=1), np.float32)
        for start, end in pairwise(ends.tolist())
    ]
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    return DatumPassResult(logprobs=rows, metrics={**finite, "datums:sum": float(len(counts))})
