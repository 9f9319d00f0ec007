"""Conversion of trajectories to datums, a trainer's input, from groups, rewards, failures and tokens of a batch.

The turns of a run become **one** datum as long as each turn's prompt extends the turn before (its prompt plus
its output, id for id); the tokens in between, such as tool results, are masked. The calls of a run may form a forest:
subagents interleave, conversations are shortened, calls are repeated. A prompt extends the longest datum that it begins with
and that no other prompt has extended; without one it starts a new datum of the same trajectory. So there are as many datums as
branches, and a turn within several branches is an action in one of them, a prompt in the others.

Invalid training data is rejected here, before any forward pass. No text is processed, and no token id changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from hud.errors import UsageError
from hud.learning.advantages import (
    AdvantageFunction,
    Advantages,
    compute_advantages,
    reward_metrics,
)
from hud.learning.groups import group_labels
from hud.learning.turn_rewards import sample_turn_rewards
from hud.learning.wire_types import (
    AdvantageOptions,
    BuiltinLoss,
    Failure,
    TrajectoryPayload,
    TrajectorySample,
)
from hud.trace import AgentStep, Sample, Trace
from hud.trace.sampled.open_sequences import OpenSequences
from hud.trace.sampled.pictures import Picture
from hud.trace.sampled.token_columns import samples_checksum

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Datum:
    """A training sequence. Every array is (T,), with the entry of a token at the token's own position."""

    tokens: Ids
    mask: Floats
    """1 for sampled tokens that are trained on."""
    logprobs: Floats
    """q: natural log, under the policy that sampled, at `temperatures`; 0 if the mask is 0."""
    advantages: Floats
    weights: Floats
    """w of `cross_entropy`."""
    temperatures: Floats
    reward: float = 0.0
    traj_idx: int = 0
    group_idx: int | None = None
    turns: tuple[tuple[int, int], ...] = ()
    """`(place, number)` of each turn: position of its output's start, and number of the sample in its trajectory."""
    lag: float | None = None
    """Policy lag, in optimizer steps; None if unknown."""
    targets: Ids | None = None
    """Predicted token of each position, where it is not the sequence's own token; None: `tokens`."""
    reference: Floats | None = None
    """lp_ref of the loss's KL terms, under a teacher; None: under the trainer's own reference policy."""
    reference_tokens: Ids | None = None
    """(T, k): the teacher's k likeliest tokens at each sampled token's position; None: its sampled tokens alone are scored."""
    reference_top: Floats | None = None
    """(T, k + 1): their logprobs under the teacher and, last, that of all other tokens together."""
    pictures: tuple[Picture, ...] = ()
    """Pictures among the tokens, with their files."""
    share: float = 1.0
    """Share of its run's actions; those of a run's datums add up to 1, so that means over sequences count runs."""
    prompt_length: int | None = None
    """Leading tokens that a pass may compute once for all datums that begin with them; None: those before the first action."""

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.tokens)

    @property
    def actions(self) -> int:
        """Number of action tokens."""
        return int(self.mask.sum())


@dataclass(frozen=True)
class Batch:
    """Datums in the order of their trajectories, and counts of their conversion."""

    datums: list[Datum]
    metrics: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    num_traces: int = 0
    """Number of trajectories with at least one datum."""


@dataclass
class DatumCounts:
    """Counts from the conversion of samples to datums."""

    samples: int = 0
    datums: int = 0
    splits: int = 0
    """Turns whose prompt extended no datum of their run."""
    runs: int = 0
    """Number of runs with a datum."""
    most_datums: int = 0
    """Most datums of a run."""
    sampled_tokens: int = 0
    masked_tokens: int = 0
    """Number of output tokens without a finite logprob, which are masked."""
    excluded_tokens: int = 0
    """Number of output tokens of excluded samples (`Sample.excluded`)."""
    dropped_datums: int = 0
    """Number of datums beyond the limit of a run."""
    dropped_tokens: int = 0
    """Number of actions in them."""

    def metrics(self) -> dict[str, float]:
        """Return the counts under their metric names."""
        untrained = self.masked_tokens + self.excluded_tokens + self.dropped_tokens
        return {
            "samples:sum": float(self.samples),
            "prompt_splits:sum": float(self.splits),
            "datums_per_run:mean": self.datums / max(self.runs, 1),
            "datums_per_run:max": float(self.most_datums),
            "trained_tokens:mean": 1.0 - untrained / max(self.sampled_tokens, 1),
            "masked_tokens:sum": float(self.masked_tokens),
            "excluded_tokens:sum": float(self.excluded_tokens),
            "dropped_datums:sum": float(self.dropped_datums),
            "dropped_tokens:sum": float(self.dropped_tokens),
        }


def sampled_turns(trace: Trace) -> list[Sample]:
    """Return the recorded token ids of a run's turns; a run of another agent has none."""
    return [
        step.sample
        for step in trace.steps
        if isinstance(step, AgentStep) and step.sample and step.sample.output_token_ids
    ]


def payload_of(
    trace: Trace,
    reward: float | None,
    *,
    group_id: str | None = None,
    failure: Failure | None = None,
    on_record: bool = False,
) -> TrajectoryPayload | None:
    """Return a recorded run as training data, or None for a run without tokens that did not fail.

    `failure`: the reward does not count; it is sent as 0, which counts with `failed_runs="zero"` only. With `on_record`
    the payload names the samples that are stored under the trace's id. Raises `UsageError` for a run with neither reward
    nor failure.
    """
    if reward is None and failure is None:
        name = f"Run {trace.trace_id}" if trace.trace_id else "A run"
        raise UsageError(f"{name} has no reward; grade it, or give one explicitly.")
    samples = sampled_turns(trace)
    if not samples and failure is None:
        return None
    # Columns have no prompt chunks.
    by_id = on_record and samples and all(sample.prompt_chunks is None for sample in samples)
    return TrajectoryPayload(
        # Built, not validated: samples are, and their lists are long.
        samples=[]
        if by_id
        else [TrajectorySample.model_construct(**vars(sample)) for sample in samples],
        recorded=samples_checksum(samples) if by_id else None,
        reward=0.0 if failure is not None or reward is None else reward,
        trace_id=trace.trace_id,
        group_id=group_id,
        failure=failure,
        turn_rewards=sample_turn_rewards(trace) if samples and failure is None else None,
    )


def make_batch(
    payloads: Sequence[TrajectoryPayload],
    *,
    loss_fn: str = BuiltinLoss.IMPORTANCE_SAMPLING,
    group_ids: Sequence[str] | None = None,
    group_size: int | None = None,
    options: AdvantageOptions | None = None,
    reward_scale: float = 1.0,
    function: AdvantageFunction | None = None,
    vocab_size: int | None = None,
    max_context: int | None = None,
    lag: Callable[[str | None], float | None] | None = None,
    keep_all: bool = False,
    max_datums: int | None = None,
) -> Batch:
    """Return the datums of a batch.

    Runs of groups without signal are removed, to save their forward passes. With `cross_entropy` rewards and groups are
    ignored and all runs kept. `keep_all` keeps every run that counts: a custom loss gets a datum of each. `max_datums`: as for
    `datums_of`. Raises `UsageError` for runs with more tokens than `max_context`.
    """
    options = options or AdvantageOptions()
    supervised = loss_fn == BuiltinLoss.CROSS_ENTROPY
    rewards = [payload.reward for payload in payloads]
    counts = DatumCounts()
    if supervised:
        every = [True] * len(payloads)
        advantages = Advantages([0.0] * len(payloads), every, every, [None] * len(payloads))
        advantages.metrics.update(reward_metrics(rewards))
    else:
        own = [payload.group_id for payload in payloads]
        advantages = compute_advantages(
            rewards,
            group_ids=group_labels(own, group_ids=group_ids, group_size=group_size),
            failures=[payload.failure for payload in payloads],
            options=options,
            reward_scale=reward_scale,
            function=function,
            turn_rewards=[_turn_rewards(*numbered) for numbered in enumerate(payloads)],
        )
    datums: list[Datum] = []
    for position, payload in enumerate(payloads):
        made = datums_of(
            payload,
            advantage=advantages.values[position],
            turn_advantages=advantages.of_turns(position),
            traj_idx=position,
            group_idx=advantages.group_idx[position],
            vocab_size=vocab_size,
            max_context=max_context,
            supervised=supervised,
            lag=lag,
            max_datums=max_datums,
            counts=counts,
        )
        if advantages.trained[position] or (keep_all and advantages.counted[position]):
            datums.extend(made)
    return Batch(
        datums=datums,
        metrics={**advantages.metrics, **counts.metrics()},
        warnings=advantages.warnings,
        num_traces=len({datum.traj_idx for datum in datums}),
    )


@dataclass
class _Open:
    """A datum under construction."""

    tokens: list[int] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    # (first position, number of its sample, that sample) of every output in it.
    outputs: list[tuple[int, int, TrajectorySample]] = field(default_factory=list)


def datums_of(
    payload: TrajectoryPayload,
    *,
    advantage: float = 0.0,
    turn_advantages: Sequence[float] | None = None,
    traj_idx: int = 0,
    group_idx: int | None = None,
    vocab_size: int | None = None,
    max_context: int | None = None,
    supervised: bool = False,
    lag: Callable[[str | None], float | None] | None = None,
    max_datums: int | None = None,
    counts: DatumCounts | None = None,
) -> list[Datum]:
    """Return the datums of one trajectory; its advantage is copied to all its sampled tokens.

    `turn_advantages`: one for each sample, for its own tokens, in place of `advantage`.

    `max_datums`: of more datums, those with the most actions are kept; None: all.

    `supervised` is for `cross_entropy`, which needs no logprobs of the sampler: tokens without one are trained on, too.
    `lag` returns a checkpoint's policy lag.
    """
    counts = counts if counts is not None else DatumCounts()
    where = f"trajectory {traj_idx}" + (f" (trace {payload.trace_id})" if payload.trace_id else "")
    parts = _branches(payload, where, supervised, counts)
    datums = [
        replace(
            _closed(part, advantage, turn_advantages, supervised, counts),
            reward=payload.reward,
            traj_idx=traj_idx,
            group_idx=group_idx,
            turns=tuple((start, number) for start, number, _ in part.outputs),
            lag=_mean_lag(part, lag),
        )
        for part in parts
    ]
    datums = _with_shares(_limited(datums, max_datums, counts))
    if vocab_size is not None:
        for datum in datums:
            _check_vocabulary(datum.tokens, where.capitalize(), vocab_size)
    for datum in datums:
        check_length(datum.length, where.capitalize(), max_context)
    counts.datums += len(datums)
    counts.runs += bool(datums)
    counts.most_datums = max(counts.most_datums, len(datums))
    return datums


def _branches(
    payload: TrajectoryPayload, where: str, supervised: bool, counts: DatumCounts
) -> list[_Open]:
    """Return the branches of a trajectory's turns, in the order of their first turns."""
    parts: list[_Open] = []
    branches: OpenSequences[_Open] = OpenSequences()
    for number, sample in enumerate(payload.samples):
        _check_sample(sample, f"Sample {number} of {where}", supervised)
        counts.samples += 1
        counts.sampled_tokens += len(sample.output_token_ids)
        if sample.excluded is not None:
            counts.excluded_tokens += len(sample.output_token_ids)
            continue
        prompt = sample.prompt_token_ids
        continued = branches.take(prompt, sample.pictures)
        if continued is not None:
            part = continued.value
        else:
            counts.splits += bool(parts)
            part = _Open()
            parts.append(part)
        part.tokens.extend(prompt[len(part.tokens) :])
        part.pictures = list(sample.pictures)
        part.outputs.append((len(part.tokens), number, sample))
        part.tokens.extend(sample.output_token_ids)
        branches.add(part.tokens, part.pictures, part)
    return parts


def _limited(datums: list[Datum], most: int | None, counts: DatumCounts) -> list[Datum]:
    """Return the `most` datums with the most actions, in their order."""
    if most is None or len(datums) <= most:
        return datums
    ranked = sorted(range(len(datums)), key=lambda place: -datums[place].actions)
    largest, dropped = sorted(ranked[:most]), ranked[most:]
    counts.dropped_datums += len(dropped)
    counts.dropped_tokens += sum(datums[place].actions for place in dropped)
    return [datums[place] for place in largest]


def _with_shares(datums: list[Datum]) -> list[Datum]:
    """Return the datums of one run with the share that each has of its actions."""
    if len(datums) == 1:
        return datums
    actions = sum(datum.actions for datum in datums)
    return [replace(datum, share=datum.actions / max(actions, 1)) for datum in datums]


def weighted_datums(
    datums: Sequence[Datum], weights: Sequence[Sequence[float] | Floats]
) -> tuple[list[Datum], int]:
    """Return datums with these weights, and how many weights of tokens that were not sampled have no effect.

    Raises `UsageError` for weights that are not finite, or not one for each token.
    """
    if len(weights) != len(datums):
        raise UsageError(f"{len(weights)} lists of weights were sent for {len(datums)} datums.")
    weighted, ignored = [], 0
    for number, (datum, token_weights) in enumerate(zip(datums, weights, strict=True)):
        row = np.asarray(token_weights, np.float32)
        if row.shape != datum.mask.shape:
            raise UsageError(
                f"Datum {number} has {datum.length} tokens and {len(row)} weights; send one for each token."
            )
        if not np.isfinite(row).all():
            raise UsageError(
                f"The weights of datum {number} are not all finite; look at your loss."
            )
        ignored += int(((row != 0) & (datum.mask == 0)).sum())
        weighted.append(replace(datum, weights=row))
    return weighted, ignored


def _turn_rewards(position: int, payload: TrajectoryPayload) -> list[float] | None:
    """Return the rewards of a payload's turns; raises `UsageError` unless there is one for each sample."""
    rewards, turns = payload.turn_rewards, len(payload.samples)
    if rewards is not None and len(rewards) != turns:
        raise UsageError(
            f"Trajectory {position} has {len(rewards)} turn_rewards for {turns} samples; give one for each."
        )
    return rewards


def _closed(
    part: _Open,
    advantage: float,
    turn_advantages: Sequence[float] | None,
    supervised: bool,
    counts: DatumCounts,
) -> Datum:
    length = len(part.tokens)
    mask = np.zeros(length, np.float32)
    logprobs = np.zeros(length, np.float32)
    weights = np.zeros(length, np.float32)
    temperatures = np.ones(length, np.float32)
    advantages = np.full(length, advantage, np.float32)
    for start, number, sample in part.outputs:
        span = slice(start, start + len(sample.output_token_ids))
        sampled_logprobs = np.full(len(sample.output_token_ids), np.nan, np.float32)
        if sample.output_logprobs:
            sampled_logprobs[:] = sample.output_logprobs
        finite = np.isfinite(sampled_logprobs)
        logprobs[span] = np.where(finite, sampled_logprobs, 0.0)
        if supervised:
            mask[span] = 1.0
        else:
            mask[span] = finite
            counts.masked_tokens += int((~finite).sum())
        weights[span] = 1.0 if sample.weights is None else sample.weights
        # Greedy decoding reports the logprobs of temperature 1.
        temperatures[span] = sample.temperature or 1.0
        if turn_advantages is not None:
            advantages[span] = turn_advantages[number]
    return Datum(
        tokens=np.asarray(part.tokens, np.int64),
        mask=mask,
        logprobs=logprobs,
        advantages=mask * advantages,
        weights=weights,
        temperatures=temperatures,
        pictures=tuple(part.pictures),
    )


def _mean_lag(part: _Open, lag: Callable[[str | None], float | None] | None) -> float | None:
    """Return the mean policy lag over its sampled tokens."""
    if lag is None:
        return None
    total, counted_tokens = 0.0, 0
    for _, _, sample in part.outputs:
        began = [(0, sample.checkpoint), *sample.swaps]
        ends = [place for place, _ in began[1:]] + [len(sample.output_token_ids)]
        for (place, checkpoint), end in zip(began, ends, strict=True):
            if (age := lag(checkpoint)) is not None:
                total += age * (end - place)
                counted_tokens += end - place
    return total / counted_tokens if counted_tokens else None


def _check_sample(sample: TrajectorySample, where: str, supervised: bool) -> None:
    outputs = len(sample.output_token_ids)
    if sample.prompt_chunks:
        raise UsageError(
            f"{where} has a multimodal prompt of another trainer (prompt_chunks); this one takes token ids and pictures."
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


def check_length(tokens: int, where: str, max_context: int | None) -> None:
    """Raise `UsageError` for a sequence that the model's context does not hold: its time and memory have no bound."""
    if max_context is not None and tokens > max_context:
        raise UsageError(
            f"{where} has {tokens:,} tokens; the model's context holds {max_context:,}."
        )


def _check_vocabulary(tokens: Ids, where: str, vocab_size: int) -> None:
    outside = tokens[(tokens < 0) | (tokens >= vocab_size)]
    if len(outside):
        raise UsageError(
            f"{where} holds token id {outside[0]}, outside this model's vocabulary of {vocab_size}. It was sampled by "
            "a model with another tokenizer."
        )
