"""Gradient accumulation between two steps: resolving inputs, counting them for the checkpoint, recording logprobs."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hud.errors import HudError, UsageError
from hud.learning.datums import Datum, Floats, payload_of
from hud.learning.failed_runs import failure_of
from hud.learning.wire_types import DatumTensors, TrainInput, TrajectoryPayload
from hud.trace import AgentStep, parse_trace
from hud.trace.ids import trace_id_of
from hud.trace.sampled.token_columns import pack_ids, pack_logprobs, samples_checksum
from hud_platform.store import Store, records
from hud_platform.store.trainer_logprobs import ComputedRun, PassWeights, record_pass

_log = logging.getLogger("hud.platform")


@dataclass
class Accumulated:
    """Counts of the inputs in the gradient since the last step."""

    metrics: list[dict[str, float]] = field(default_factory=list)
    traces: int = 0
    datums: int = 0
    tokens: int = 0
    loss_fn: str | None = None
    prompts: set[int] = field(default_factory=set)
    """Digests of the texts that were trained on without a recorded task (`hud_platform.store.prompt_digests`)."""
    _rewards: list[float] = field(default_factory=list)
    _trained: list[float] = field(default_factory=list)

    def add(
        self, metrics: dict[str, float], datums: Sequence[Datum], traces: int, loss_fn: str
    ) -> None:
        """Count one pass."""
        self.metrics.append(metrics)
        self.traces += traces
        self.datums += len(datums)
        self.tokens += sum(datum.length for datum in datums)
        self.loss_fn = loss_fn
        # A trajectory may have several datums.
        self._trained += {datum.traj_idx: datum.reward for datum in datums}.values()

    def extend(self, other: Accumulated) -> None:
        """Add the counts of another step."""
        self.metrics += other.metrics
        self.traces += other.traces
        self.datums += other.datums
        self.tokens += other.tokens
        self.loss_fn = other.loss_fn or self.loss_fn
        self.prompts |= other.prompts
        self._rewards += other._rewards
        self._trained += other._trained

    def add_rewards(self, rewards: Sequence[float]) -> None:
        """Count the rewards of a pass's measured runs."""
        self._rewards.extend(rewards)

    @property
    def mean_reward(self) -> float | None:
        """Mean reward over the measured runs of the batches, with or without signal; None without such runs."""
        return _mean(self._rewards)

    @property
    def trained_reward(self) -> float | None:
        """Mean reward over the runs in the gradient; None without such runs."""
        return _mean(self._trained)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def as_tensors(datum: Datum, logprobs: Floats) -> DatumTensors:
    """Return a datum as the input of a custom loss; `logprobs` are the current policy's."""
    return DatumTensors(
        reward=datum.reward,
        traj_idx=datum.traj_idx,
        group_idx=datum.group_idx,
        logprobs=logprobs.tolist(),
        sampling_logprobs=datum.logprobs.tolist(),
        mask=datum.mask.tolist(),
    )


def computed_runs(
    payloads: Sequence[TrajectoryPayload], datums: Sequence[Datum], logprobs: Sequence[Floats]
) -> list[ComputedRun]:
    """Return the logprobs that a pass computed for runs with a trace id; `logprobs` has (T,) for each datum."""
    turns_by_run: dict[int, dict[int, tuple[bytes, bytes]]] = {}
    for datum, row in zip(datums, logprobs, strict=True):
        payload = payloads[datum.traj_idx]
        if payload.trace_id is None:
            continue
        trained = np.where(datum.mask > 0, row, np.float32(np.nan))
        turns = turns_by_run.setdefault(datum.traj_idx, {})
        for start, number in datum.turns:
            output = payload.samples[number].output_token_ids
            values = pack_logprobs(trained[start : start + len(output)])
            turns[number] = (pack_ids(output), values)
    return [
        ComputedRun(
            trace_id_of(payloads[position].trace_id or ""),
            [turns[number] for number in sorted(turns)],
            payloads[position].reward,
        )
        for position, turns in turns_by_run.items()
    ]


def record_computed(
    store: Store,
    team: str,
    weights: PassWeights,
    payloads: Sequence[TrajectoryPayload],
    datums: Sequence[Datum],
    logprobs: Sequence[Floats],
) -> None:
    """Write a pass's logprobs to the recorded runs. Errors are logged, not raised: training does not need the record."""
    try:
        record_pass(store, team, weights, computed_runs(payloads, datums, logprobs))
    except HudError as error:
        _log.warning("The trainer's logprobs of a pass were not recorded: %s", error)


def resolve_inputs(
    store: Store, team: str, inputs: Sequence[TrainInput], *, supervised: bool = False
) -> list[TrajectoryPayload]:
    """Return the trajectories to train on, each with its group if its run has one.
    Raises `UsageError` for a trace whose recorded tokens differ from those of its run.
    """
    recorded = [
        (trace_id_of(payload.trace_id), payload)
        for payload in inputs
        if isinstance(payload, TrajectoryPayload) and payload.trace_id is not None
    ]
    groups = records.groups_of(
        store, team, [run for run, payload in recorded if payload.group_id is None]
    )
    samples = records.samples_of(
        store, team, [run for run, payload in recorded if payload.recorded is not None]
    )
    resolved = []
    for payload in inputs:
        if isinstance(payload, str):
            resolved.append(_recorded(store, team, payload, supervised))
            continue
        filled: dict[str, Any] = {}
        if payload.trace_id is not None and payload.group_id is None:
            filled["group_id"] = groups.get(trace_id_of(payload.trace_id))
        if payload.trace_id is not None and payload.recorded is not None:
            filled["samples"] = samples.get(trace_id_of(payload.trace_id), [])
            if samples_checksum(filled["samples"]) != payload.recorded:
                raise UsageError(
                    f"The recorded tokens of trace {payload.trace_id!r} differ from its run's: the run was changed after it "
                    "ended, or an event of it was damaged. To learn from the run as it is, send "
                    "hud.train.payload_of(run.trace, run.reward)."
                )
        resolved.append(payload.model_copy(update=filled) if filled else payload)
    return resolved


def _recorded(store: Store, team: str, reference: str, supervised: bool) -> TrajectoryPayload:
    """Return the trajectory of a recorded run."""
    run = records.find_run(store, team, reference)
    if run["status"] in ("running", "queued") and not supervised:
        raise UsageError(
            f"Trace {reference!r} has no reward yet ({run['status']}); wait for its end, or leave it out."
        )
    if run["may_train"] is False:
        raise UsageError(
            f"Trace {reference!r} may not be trained on, by the policy of its source (hud privacy {run['source']})."
        )
    trace = parse_trace(
        {
            "trace_id": run["trace_id"],
            "stop_reason": run["stop_reason"],
            "steps": records.trace_steps(store, team, run["trace_id"]),
        }
    )
    samples = [step.sample for step in trace.steps if isinstance(step, AgentStep)]
    if run["source"] is not None and not any(samples):
        raise UsageError(
            f"Trace {reference!r} was imported from {run['source']} and has no token ids, so that it cannot be trained on by "
            "reward; learn from its text (hud train MODEL --from JOB)."
        )
    reward, group = run["reward"], run["group_id"]
    if supervised:
        payload = payload_of(trace, reward or 0.0, group_id=group)
    else:
        failure = failure_of(reward, run["failure_kind"], run["stop_reason"])
        payload = payload_of(trace, reward, group_id=group, failure=failure)
    if payload is None:
        raise UsageError(
            f"Trace {reference!r} holds no token ids: no policy of this platform sampled it, or its agent did not request "
            'them (completion_kwargs={"extra_body": {"return_token_ids": true}}). Learn from it by warm_up (hud train '
            "--from), which makes ids of its text."
        )
    if any(sample.pictures for sample in payload.samples):
        # Steps are without the files.
        payload.samples = records.samples_of(store, team, [run["trace_id"]])[run["trace_id"]]
    return payload
