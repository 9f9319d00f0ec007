"""Trajectories to datums: the token sequences that a trainer computes on.

The turns of a run become **one** datum as long as each turn's prompt extends the turn before (its prompt plus
its output, id for id); the tokens in between, such as tool results, are shown, not trained on. Where a prompt
does not extend what came before, a new datum of the same trajectory begins.

Knows token ids, masks and logprobs as the sampler gave them. Never sees text, and never changes an id.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from hud.errors import UsageError
from hud.learning.wire_types import TrajectoryPayload, TrajectorySample

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Datum:
    """One training sequence. Every array is (T,), one entry for each token, about that very token."""

    tokens: Ids
    mask: Floats
    """1 where the policy sampled the token and it is trained on."""
    logprobs: Floats
    """q: natural log, under the policy that sampled, at `temperatures`; 0 where the mask is 0."""
    advantages: Floats
    weights: Floats
    """w of `cross_entropy`."""
    temperatures: Floats
    reward: float = 0.0
    traj_idx: int = 0
    group_idx: int | None = None
    turns: tuple[tuple[int, int], ...] = ()
    """`(place, number)` for each turn in it: where its output begins, and which sample of its trajectory that is."""
    lag: float | None = None
    """Optimizer steps between the weights that sampled it and those it trains; None where unknown."""

    @property
    def length(self) -> int:
        """Tokens of the sequence."""
        return len(self.tokens)

    @property
    def actions(self) -> int:
        """Tokens that are trained on."""
        return int(self.mask.sum())


@dataclass
class DatumCounts:
    """What was found on the way from samples to datums."""

    samples: int = 0
    datums: int = 0
    splits: int = 0
    """Turns whose prompt did not extend the one before."""
    masked_tokens: int = 0
    """Output tokens left out because they have no finite logprob."""

    def metrics(self) -> dict[str, float]:
        """Return the counts under their metric names."""
        return {
            "samples:sum": float(self.samples),
            "prompt_splits:sum": float(self.splits),
            "masked_tokens:sum": float(self.masked_tokens),
        }


@dataclass
class _Open:
    """A datum that later turns may still extend."""

    tokens: list[int] = field(default_factory=list)
    # (first position, number of its sample, that sample) of every output in it.
    outputs: list[tuple[int, int, TrajectorySample]] = field(default_factory=list)


def datums_of(
    payload: TrajectoryPayload,
    *,
    advantage: float = 0.0,
    traj_idx: int = 0,
    group_idx: int | None = None,
    vocab_size: int | None = None,
    supervised: bool = False,
    lag: Callable[[str | None], float | None] | None = None,
    counts: DatumCounts | None = None,
) -> list[Datum]:
    """Return the datums of one trajectory; its advantage is copied to all its sampled tokens.

    `supervised` is for `cross_entropy`: logprobs of the sampler are not needed, so tokens without one are
    trained on too. `lag` says how many steps old a checkpoint is.
    """
    counts = counts if counts is not None else DatumCounts()
    where = f"trajectory {traj_idx}" + (f" (trace {payload.trace_id})" if payload.trace_id else "")
    parts: list[_Open] = []
    for number, sample in enumerate(payload.samples):
        _check_sample(sample, f"Sample {number} of {where}", supervised)
        prompt = sample.prompt_token_ids
        counts.samples += 1
        last = parts[-1] if parts else None
        if last is None or prompt[: len(last.tokens)] != last.tokens:
            counts.splits += last is not None
            last = _Open()
            parts.append(last)
        last.tokens.extend(prompt[len(last.tokens) :])
        last.outputs.append((len(last.tokens), number, sample))
        last.tokens.extend(sample.output_token_ids)
    datums = [
        replace(
            _closed(part, advantage, supervised, counts),
            reward=payload.reward,
            traj_idx=traj_idx,
            group_idx=group_idx,
            turns=tuple((start, number) for start, number, _ in part.outputs),
            lag=_mean_lag(part, lag),
        )
        for part in parts
    ]
    if vocab_size is not None:
        for datum in datums:
            _check_vocabulary(datum.tokens, where.capitalize(), vocab_size)
    counts.datums += len(datums)
    return datums


def _closed(part: _Open, advantage: float, supervised: bool, counts: DatumCounts) -> Datum:
    length = len(part.tokens)
    mask = np.zeros(length, np.float32)
    logprobs = np.zeros(length, np.float32)
    weights = np.zeros(length, np.float32)
    temperatures = np.ones(length, np.float32)
    for start, _, sample in part.outputs:
        span = slice(start, start + len(sample.output_token_ids))
        given = np.full(len(sample.output_token_ids), np.nan, np.float32)
        if sample.output_logprobs:
            given[:] = sample.output_logprobs
        finite = np.isfinite(given)
        logprobs[span] = np.where(finite, given, 0.0)
        if supervised:
            mask[span] = 1.0
        else:
            mask[span] = finite
            counts.masked_tokens += int((~finite).sum())
        weights[span] = 1.0 if sample.weights is None else sample.weights
        # Greedy decoding reports the logprobs of temperature 1.
        temperatures[span] = sample.temperature or 1.0
    return Datum(
        tokens=np.asarray(part.tokens, np.int64),
        mask=mask,
        logprobs=logprobs,
        advantages=mask * np.float32(advantage),
        weights=weights,
        temperatures=temperatures,
    )


def _mean_lag(part: _Open, lag: Callable[[str | None], float | None] | None) -> float | None:
    """Return the mean over its sampled tokens of how old the weights were that sampled each."""
    if lag is None:
        return None
    total, known = 0.0, 0
    for _, _, sample in part.outputs:
        began = [(0, sample.checkpoint), *sample.swaps]
        ends = [place for place, _ in began[1:]] + [len(sample.output_token_ids)]
        for (place, checkpoint), end in zip(began, ends, strict=True):
            if (age := lag(checkpoint)) is not None:
                total += age * (end - place)
                known += end - place
    return total / known if known else None


def _check_sample(sample: TrajectorySample, where: str, supervised: bool) -> None:
    outputs = len(sample.output_token_ids)
    if sample.prompt_chunks:
        raise UsageError(
            f"{where} has a multimodal prompt (prompt_chunks); this trainer takes token ids only."
        )
    if not sample.prompt_token_ids:
        raise UsageError(
            f"{where} has no prompt_token_ids; the first sampled token needs a context."
        )
    if not sample.output_logprobs and not supervised:
        raise UsageError(
            f"{where} has no output_logprobs. Sample it with token ids and logprobs (return_token_ids), or train "
            'with loss_fn="cross_entropy".'
        )
    if sample.output_logprobs and len(sample.output_logprobs) != outputs:
        raise UsageError(
            f"{where} has {outputs} output ids and {len(sample.output_logprobs)} logprobs; they must align."
        )
    if sample.weights is not None and len(sample.weights) != outputs:
        raise UsageError(
            f"{where} has {outputs} output ids and {len(sample.weights)} weights; they must align."
        )
    if not (math.isfinite(sample.temperature) and sample.temperature >= 0):
        raise UsageError(
            f"{where} has temperature {sample.temperature}; it must be a number from 0 up."
        )


def _check_vocabulary(tokens: Ids, where: str, vocab_size: int) -> None:
    outside = tokens[(tokens < 0) | (tokens >= vocab_size)]
    if len(outside):
        raise UsageError(
            f"{where} holds token id {outside[0]}, outside this model's vocabulary of {vocab_size}. It was sampled by "
            "a model with another tokenizer."
        )
