"""From runs to the inputs of a training call: what may be trained on, and which runs are one group.

Everything that can be refused before a request is made is refused here, with a sentence that says what to do.
Knows runs, rewards and group ids; knows no weights and needs no torch.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hud.errors import UsageError
from hud.train.advantages import group_labels
from hud.train.batches import payload_of
from hud.train.types import AdvantageOptions, TrainInput, TrajectoryPayload

if TYPE_CHECKING:
    from hud.eval.run import Run


class TrainingWarning(UserWarning):
    """A batch can be trained on, but little or nothing will be learned from it."""


@dataclass(frozen=True)
class Prepared:
    """Inputs in the order in which they are sent, each group together."""

    inputs: list[TrainInput]
    group_ids: list[str] | None
    group_size: int | None
    order: list[int]
    """For each input, its position among what the caller gave."""


def prepare(
    trajectories: Sequence[Run | TrainInput],
    *,
    group_size: int | None = None,
    group_ids: Sequence[str] | None = None,
    options: AdvantageOptions | None = None,
    supervised: bool = False,
) -> Prepared:
    """Return what is sent for `trajectories`: runs, trace ids and payloads, mixed as one likes.

    Groups go by `group_ids`, else by the runs' own ids where every trajectory is a run, else by contiguous
    slices of `group_size`. Neither a size nor ids: the batch is one group.
    """
    if not trajectories:
        raise UsageError("The batch is empty; give at least one run.")
    labels = list(group_ids) if group_ids is not None else _own_labels(trajectories, group_size)
    if labels is not None and len(labels) != len(trajectories):
        raise UsageError(
            f"{len(labels)} group_ids were given for {len(trajectories)} trajectories; give one for each."
        )
    order = list(range(len(trajectories)))
    if labels is not None:
        # Each group together, in order of first appearance, each group's runs in their order.
        first = {label: place for place, label in reversed(list(enumerate(labels)))}
        places = [first[label] for label in labels]
        order.sort(key=lambda position: (places[position], position))
        labels = [labels[position] for position in order]
    allow_incomplete = options is not None and options.failed_runs == "drop_run"
    checked = group_labels(len(trajectories), labels, group_size, allow_incomplete=allow_incomplete)
    may_fail = options is not None and not supervised
    inputs = [_input(trajectories[position], may_fail) for position in order]
    kept = [place for place, one in enumerate(inputs) if one is not None]
    if len(kept) < len(inputs):
        dropped = _without_tokens(inputs, checked, options)
        kept = [place for place in kept if place not in dropped]
        labels = checked
    if not kept:
        raise UsageError(
            "No run of the batch can be trained on: every one failed before the policy said a word."
        )
    found = [one for place in kept if (one := inputs[place]) is not None]
    if not supervised:
        _warn_without_spread(found, None if checked is None else [checked[place] for place in kept])
    complete = len(kept) == len(inputs)
    return Prepared(
        inputs=found,
        group_ids=None if labels is None else [labels[place] for place in kept],
        group_size=group_size if complete else None,
        order=[order[place] for place in kept],
    )


def _own_labels(
    trajectories: Sequence[Run | TrainInput], group_size: int | None
) -> list[str] | None:
    """Return the runs' own group ids, where groups are asked for and every trajectory has one."""
    if group_size is None:
        return None
    labels = [
        None if isinstance(one, str | TrajectoryPayload) else one.group_id for one in trajectories
    ]
    found = [label for label in labels if label is not None]
    return found if len(found) == len(labels) else None


def _input(one: Run | TrainInput, may_fail: bool) -> TrainInput | None:
    """Return one input; None for a failed run that holds no tokens at all."""
    if isinstance(one, str):
        return one
    if isinstance(one, TrajectoryPayload):
        if not math.isfinite(one.reward) and one.failure is None:
            raise UsageError(
                f"A trajectory{f' (trace {one.trace_id})' if one.trace_id else ''} has reward {one.reward}; a reward is a "
                "finite number. Mend the grader, or leave the run out."
            )
        return one
    timed_out = one.trace.stop_reason == "timeout"
    measured = one.reward is not None and one.failure_kind in (None, "agent")
    if measured and not timed_out:
        if not math.isfinite(one.reward or 0.0):
            raise UsageError(
                f"Run {one.trace_id} has reward {one.reward}; a reward is a finite number. Mend the grader, or leave "
                "the run out."
            )
        return payload_of(one.trace, one.reward) or one.trace_id
    if not may_fail:
        if timed_out:
            payload_of(one.trace, one.reward)  # Says why it is refused.
        raise UsageError(
            f"Run {one.trace_id} has no reward of its own: {one.error or 'it was not graded'} Leave it out with its "
            'group, or pass advantages=AdvantageOptions(failed_runs="drop_run").'
        )
    payload = payload_of(one.trace, 0.0, timed_out_reward=True)
    if payload is None:
        return None
    failure = "timeout" if timed_out else (one.failure_kind or "infrastructure")
    return payload.model_copy(update={"failure": failure})


def _without_tokens(
    inputs: Sequence[TrainInput | None],
    labels: Sequence[str] | None,
    options: AdvantageOptions | None,
) -> set[int]:
    """Return the places to leave out because runs without tokens failed: those runs, or their groups."""
    empty = {place for place, one in enumerate(inputs) if one is None}
    if labels is None or options is None or options.failed_runs != "drop_group":
        return empty
    broken = {labels[place] for place in empty}
    return {place for place, label in enumerate(labels) if label in broken}


def _warn_without_spread(inputs: Sequence[TrainInput], labels: Sequence[str] | None) -> None:
    rewards: dict[str, set[float]] = {}
    for place, one in enumerate(inputs):
        if isinstance(one, str):
            return  # Its reward is known where its trace is stored.
        if one.failure is None or one.failure == "agent":
            rewards.setdefault(labels[place] if labels else "", set()).add(one.reward)
    if len(inputs) > 1 and all(len(values) < 2 for values in rewards.values()):
        warnings.warn(
            "No group of the batch has any spread of rewards, so nothing can be learned from it. Use tasks that "
            "the policy solves sometimes, or more runs for each.",
            TrainingWarning,
            stacklevel=4,
        )
