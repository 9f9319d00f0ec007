"""From what a caller sent to what a trainer computes on: trajectories in, datums with advantages out.

The one place where groups, rewards, failures and tokens of a batch meet. Whatever cannot be trained on is
refused here, before any forward pass, with a sentence that says what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hud.errors import UsageError
from hud.learning.advantages import (
    AdvantageFunction,
    compute_advantages,
    reward_metrics,
)
from hud.learning.datums import Datum, DatumCounts, datums_of
from hud.learning.groups import group_labels
from hud.learning.wire_types import (
    AdvantageOptions,
    BuiltinLoss,
    Failure,
    TrajectoryPayload,
    TrajectorySample,
)
from hud.trace import AgentStep, Trace
from hud.trace.token_columns import samples_checksum


@dataclass(frozen=True)
class Batch:
    """Datums in the order of their trajectories, and what was found on the way."""

    datums: list[Datum]
    metrics: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    num_traces: int = 0
    """Trajectories that made at least one datum."""


def payload_of(
    trace: Trace,
    reward: float | None,
    *,
    group_id: str | None = None,
    failure: Failure | None = None,
    on_record: bool = False,
) -> TrajectoryPayload | None:
    """Return a recorded run as training data, or None where it holds no tokens and did not fail.

    `failure` says why its reward says nothing about the policy: it is sent as 0 and never counts as one, except with
    `failed_runs="zero"`. With `on_record` the payload names the samples that are stored under the trace's id.
    """
    if reward is None and failure is None:
        name = f"Run {trace.trace_id}" if trace.trace_id else "A run"
        raise UsageError(f"{name} has no reward; grade it, or give one explicitly.")
    samples = [
        step.sample
        for step in trace.steps
        if isinstance(step, AgentStep) and step.sample and step.sample.output_token_ids
    ]
    if not samples and failure is None:
        return None
    # A column holds no chunks.
    by_id = on_record and samples and all(one.prompt_chunks is None for one in samples)
    return TrajectoryPayload(
        samples=[] if by_id else [TrajectorySample(**vars(one)) for one in samples],
        recorded=samples_checksum(samples) if by_id else None,
        reward=0.0 if failure is not None or reward is None else reward,
        trace_id=trace.trace_id,
        group_id=group_id,
        failure=failure,
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
    lag: Callable[[str | None], float | None] | None = None,
    keep_all: bool = False,
) -> Batch:
    """Return the datums of a batch.

    Runs of groups without spread leave it here, so that no forward pass is spent on them. With
    `cross_entropy` rewards and groups play no part and every run stays. `keep_all` keeps every run that counts: a
    custom loss gets a datum of each.
    """
    options = options or AdvantageOptions()
    supervised = loss_fn == BuiltinLoss.CROSS_ENTROPY
    rewards = [payload.reward for payload in payloads]
    counts = DatumCounts()
    numbers: list[int | None]
    if supervised:
        values, trained = [0.0] * len(payloads), [True] * len(payloads)
        counted, numbers = trained, [None] * len(payloads)
        metrics, warnings = reward_metrics(rewards), []
    else:
        own = [payload.group_id for payload in payloads]
        found = compute_advantages(
            rewards,
            group_ids=group_labels(own, group_ids=group_ids, group_size=group_size),
            failures=[payload.failure for payload in payloads],
            options=options,
            reward_scale=reward_scale,
            function=function,
        )
        values, trained, counted = found.values, found.trained, found.counted
        numbers = found.group_idx
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
        if trained[position] or (keep_all and counted[position]):
            datums.extend(made)
    return Batch(
        datums=datums,
        metrics={**metrics, **counts.metrics()},
        warnings=warnings,
        num_traces=len({datum.traj_idx for datum in datums}),
    )
