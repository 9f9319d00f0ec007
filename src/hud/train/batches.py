"""From what a caller sent to what a trainer computes on: trajectories in, datums with advantages out.

The one place where groups, rewards, failures and tokens of a batch meet. Whatever cannot be trained on is
refused here, before any forward pass, with a sentence that says what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hud.errors import UsageError
from hud.trace import AgentStep, Trace
from hud.train.advantages import (
    AdvantageFunction,
    compute_advantages,
    group_labels,
    reward_metrics,
)
from hud.train.datums import Datum, DatumCounts, datums_of
from hud.train.types import (
    AdvantageOptions,
    BuiltinLoss,
    TrajectoryPayload,
    TrajectorySample,
)


@dataclass(frozen=True)
class Batch:
    """Datums in the order of their trajectories, and what was found on the way."""

    datums: list[Datum]
    metrics: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    num_traces: int = 0
    """Trajectories that made at least one datum."""


def payload_of(
    trace: Trace, reward: float | None, *, timed_out_reward: bool = False
) -> TrajectoryPayload | None:
    """Return a recorded run as training data, or None where it holds no tokens.

    A run that was cut off by its time limit has no reward of its own: it is refused unless the caller says,
    with `timed_out_reward`, that `reward` is meant for it.
    """
    name = f"Run {trace.trace_id}" if trace.trace_id else "A run"
    if trace.stop_reason == "timeout" and not timed_out_reward:
        raise UsageError(
            f"{name} timed out, so its reward says nothing about the policy. Leave it out, or send a "
            "TrajectoryPayload with an explicit reward."
        )
    if reward is None:
        raise UsageError(f"{name} has no reward; grade it, or give one explicitly.")
    samples = [
        TrajectorySample(
            prompt_token_ids=step.sample.prompt_token_ids or None,
            prompt_chunks=step.sample.prompt_chunks,
            output_token_ids=step.sample.output_token_ids,
            output_logprobs=list(step.sample.output_logprobs),
            temperature=step.sample.temperature,
            checkpoint=step.sample.checkpoint,
            swaps=step.sample.swaps or None,
        )
        for step in trace.steps
        if isinstance(step, AgentStep) and step.sample and step.sample.output_token_ids
    ]
    if not samples:
        return None
    return TrajectoryPayload(samples=samples, reward=reward, trace_id=trace.trace_id)


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
    lag: Callable[[str | None], float | None] | None = None,
    keep_all: bool = False,
) -> Batch:
    """Return the datums of a batch.

    Runs of groups without spread leave it here, so that no forward pass is spent on them. With
    `cross_entropy` rewards and groups play no part and every run stays. `keep_all` keeps every run too: a
    custom loss gets a datum of each.
    """
    options = options or AdvantageOptions()
    supervised = loss_fn == BuiltinLoss.CROSS_ENTROPY
    labels = group_labels(
        len(payloads),
        group_ids,
        group_size,
        allow_incomplete=options.failed_runs == "drop_run",
    )
    rewards = [payload.reward for payload in payloads]
    counts = DatumCounts()
    if supervised:
        values, trained = [0.0] * len(payloads), [True] * len(payloads)
        metrics, warnings, numbers = reward_metrics(rewards), [], _numbers(labels, len(payloads))
    else:
        found = compute_advantages(
            rewards,
            group_ids=labels,
            failures=[payload.failure for payload in payloads],
            options=options,
            reward_scale=reward_scale,
            function=function,
        )
        values, trained, numbers = found.values, found.trained, found.group_idx
        metrics, warnings = found.metrics, found.warnings
    datums: list[Datum] = []
    for position, payload in enumerate(payloads):
        made = datums_of(
            payload,
            advantage=values[position],
            traj_idx=position,
            group_idx=numbers[position],
            vocab_size=vocab_size,
            supervised=supervised,
            lag=lag,
            counts=counts,
        )
        if trained[position] or keep_all:
            datums.extend(made)
    return Batch(
        datums=datums,
        metrics={**metrics, **counts.metrics()},
        warnings=warnings,
        num_traces=len({datum.traj_idx for datum in datums}),
    )


def _numbers(labels: list[str] | None, count: int) -> list[int | None]:
    if labels is None:
        return [None] * count
    order = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return [order[label] for label in labels]
