"""Conversion of runs to the inputs of a training call: trainable runs, and their groups.

Validates inputs before requests. Works on runs, rewards and group ids; independent of weights, without torch.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hud.client.recording import JournalRecorder
from hud.errors import UsageError
from hud.learning.advantages import group_has_signal
from hud.learning.datums import payload_of
from hud.learning.failed_runs import failure_of, measures_policy
from hud.learning.groups import group_labels
from hud.learning.wire_types import AdvantageOptions, TrainInput, TrajectoryPayload

if TYPE_CHECKING:
    from hud.client import Client
    from hud.eval.run import Run


class TrainingWarning(UserWarning):
    """Warning about a valid batch with little or no signal."""


@dataclass(frozen=True)
class TrainingInputs:
    """Inputs of a training call in the request's order: each group contiguous."""

    inputs: list[TrainInput]
    group_ids: list[str] | None
    """Group ids given by the caller; the inputs have their own, too."""
    order: list[int]
    """For each input, its index in the caller's list."""
    recorders: set[JournalRecorder]
    """Recorders of the runs whose samples the platform reads from the store."""
    has_signal: bool | None
    """True if some group has signal; None if only the platform has the rewards."""


def training_inputs(
    trajectories: Sequence[Run | TrainInput],
    *,
    group_size: int | None = None,
    group_ids: Sequence[str] | None = None,
    supervised: bool = False,
    options: AdvantageOptions | None = None,
    platform: Client | None = None,
) -> TrainingInputs:
    """Return the inputs of `trajectories`: any mix of runs, trace ids and payloads.

    A run recorded by this process in the embedded `platform` is sent by its trace id, without tokens.

    Groups go by `group_ids`, else by the runs' own ids, else by contiguous slices of `group_size`
    (`hud.learning.groups`); the groups of trace ids are resolved by the store.
    Raises `UsageError` for an empty batch.
    """
    if not trajectories:
        raise UsageError("The batch is empty; give at least one run.")
    for place, trajectory in enumerate(trajectories, 1):
        if trajectory is None:
            raise UsageError(
                f"Input {place} of {len(trajectories)} is None, as payload_of returns for a run without tokens; "
                "leave it out of the batch."
            )
    inputs = [_input(trajectory, supervised, platform) for trajectory in trajectories]
    own = _own_groups(trajectories)
    labels: list[str] | None = None
    if not supervised and (own is not None or group_ids is not None):
        labels = group_labels(
            own or [None] * len(inputs), group_ids=group_ids, group_size=group_size
        )
    order = list(range(len(inputs)))
    if labels is not None:
        # Groups are contiguous, in order of first appearance, with their runs in order.
        first = {label: place for place, label in reversed(list(enumerate(labels)))}
        places = [first[label] for label in labels]
        order.sort(key=lambda position: (places[position], position))
    return TrainingInputs(
        inputs=[inputs[position] for position in order],
        group_ids=None if group_ids is None else [group_ids[position] for position in order],
        order=order,
        recorders={
            recorder
            for run in trajectories
            if not isinstance(run, str | TrajectoryPayload)
            and (recorder := _recorder_here(run, platform)) is not None
        },
        has_signal=None
        if supervised
        else _has_signal(inputs, labels, options or AdvantageOptions()),
    )


def teacher_hints(
    trajectories: Sequence[Run | TrainInput], batch: TrainingInputs, key: str | None
) -> list[str | None] | None:
    """Return the text of each input of a batch that its teacher alone reads: `info[key]` of the run's grade.

    Raises `UsageError` if no run has one, for a value that is no text, and for inputs that are no runs.
    """
    if key is None:
        return None
    hints: list[str | None] = []
    for place in batch.order:
        run = trajectories[place]
        if isinstance(run, str | TrajectoryPayload):
            raise UsageError("teacher_hint reads the grades of runs; give runs, not trace ids.")
        hint = run.grade.info.get(key)
        if hint is not None and not isinstance(hint, str):
            raise UsageError(
                f"info[{key!r}] in the grade of run {run.trace_id} is no text for a teacher."
            )
        hints.append(hint)
    if not any(hints):
        raise UsageError(
            f"No grade of these runs has a text as info[{key!r}], which the teacher reads as its hint; yield one with the reward: "
            f'EvaluationResult(reward=..., info={{"{key}": "..."}}).'
        )
    return hints


def warn_without_signal(batch: TrainingInputs) -> None:
    """Warn about a batch without signal."""
    if batch.has_signal is False and len(batch.inputs) > 1:
        warnings.warn(
            "No group of the batch has a reward standard deviation above 0, so nothing can be learned from it. Use tasks "
            "that the policy solves sometimes, or more runs for each.",
            TrainingWarning,
            stacklevel=3,
        )


def _own_groups(trajectories: Sequence[Run | TrainInput]) -> list[str | None] | None:
    """Return the group id of each trajectory; None if the store has to resolve some."""
    own: list[str | None] = []
    for trajectory in trajectories:
        if isinstance(trajectory, str):
            return None
        if (
            isinstance(trajectory, TrajectoryPayload)
            and trajectory.group_id is None
            and trajectory.trace_id is not None
        ):
            return None
        own.append(trajectory.group_id)
    return own


def _recorder_here(run: Run, platform: Client | None) -> JournalRecorder | None:
    """Return the recorder of a run that ended in this process and is recorded in the embedded `platform`."""
    if platform is None or platform.api_url is not None or run.ended_at is None:
        return None
    recorder = run.recorder
    return (
        recorder if isinstance(recorder, JournalRecorder) and recorder.client is platform else None
    )


def _input(trajectory: Run | TrainInput, supervised: bool, platform: Client | None) -> TrainInput:
    if isinstance(trajectory, str):
        return trajectory
    if isinstance(trajectory, TrajectoryPayload):
        if not math.isfinite(trajectory.reward) and trajectory.failure is None:
            raise UsageError(
                f"A trajectory{f' (trace {trajectory.trace_id})' if trajectory.trace_id else ''} has reward {trajectory.reward}; a reward is a "
                "finite number. Mend the grader, or leave the run out."
            )
        return trajectory
    if trajectory.reward is not None and not math.isfinite(trajectory.reward):
        raise UsageError(
            f"Run {trajectory.trace_id} has reward {trajectory.reward}; a reward is a finite number. Mend the grader, or leave the run "
            "out."
        )
    failure = failure_of(trajectory.reward, trajectory.failure_kind, trajectory.trace.stop_reason)
    payload = payload_of(
        trajectory.trace,
        (trajectory.reward or 0.0) if supervised else trajectory.reward,
        group_id=trajectory.group_id,
        failure=None if supervised else failure,
        on_record=_recorder_here(trajectory, platform) is not None,
    )
    return payload or trajectory.trace_id


def _has_signal(
    inputs: Sequence[TrainInput], labels: Sequence[str] | None, options: AdvantageOptions
) -> bool | None:
    groups: dict[str, list[TrajectoryPayload]] = {}
    for place, payload in enumerate(inputs):
        if isinstance(payload, str):
            return None  # The store has its reward.
        if measures_policy(payload.failure):
            groups.setdefault(labels[place] if labels else "", []).append(payload)
    return any(
        group_has_signal(
            [payload.reward for payload in group],
            options,
            [payload.turn_rewards for payload in group],
        )
        for group in groups.values()
    )
