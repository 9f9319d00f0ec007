"""Groups of a batch: which runs are compared with each other, and which of them count.

A run knows its group (`group_id`); a trace id has the group of its run; `group_size` is for payloads that know none.
Knows ids, sizes and failure kinds; knows no rewards and no tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hud.errors import UsageError
from hud.learning.wire_types import AdvantageOptions, Failure


def group_labels(
    own: Sequence[str | None],
    *,
    group_ids: Sequence[str] | None = None,
    group_size: int | None = None,
) -> list[str] | None:
    """Return the group of each run of a batch; None where the batch is one group.

    `own` holds each run's own group id. `group_ids` replace them; without any, contiguous slices of `group_size` are
    groups. Raises `UsageError` for too few or too many `group_ids`, a `group_size` that contradicts the ids, and runs
    of several groups among payloads of none.
    """
    if group_ids is not None and len(group_ids) != len(own):
        raise UsageError(
            f"{len(group_ids)} group_ids were given for {len(own)} trajectories; give one for each."
        )
    known = [label for label in (own if group_ids is None else group_ids) if label is not None]
    if len(known) == len(own):
        _check_sizes(known, group_size, "group_ids" if group_ids is not None else "runs")
        return known
    if group_size is not None:
        return _slices(own, group_size)
    if len(set(known)) > 1:
        raise UsageError(
            f"The batch mixes runs of {len(set(known))} groups with {len(own) - len(known)} trajectories of none. "
            "Give group_ids, one for each trajectory."
        )
    return None


def counted_runs(
    failures: Sequence[str | None], labels: Sequence[str], options: AdvantageOptions
) -> list[bool]:
    """Return which runs enter their group's mean, by `options.failed_runs`: the one place that decides it."""
    failed = [not measures_policy(failure) for failure in failures]
    if options.failed_runs == "zero":
        return [True] * len(failed)
    sound = Counter(label for label, bad in zip(labels, failed, strict=True) if not bad)
    broken = {label for label, bad in zip(labels, failed, strict=True) if bad}
    fewest = options.min_group_size
    left_out = {
        label for label in broken if options.failed_runs == "drop_group" or sound[label] < fewest
    }
    return [not bad and label not in left_out for label, bad in zip(labels, failed, strict=True)]


def measures_policy(failure: str | None) -> bool:
    """Return whether a run's reward counts: it did not fail, or by its agent's own fault, which earns what it earns."""
    return failure in (None, "agent")


def failure_of(
    reward: float | None, kind: Failure | None, stop_reason: str | None
) -> Failure | None:
    """Return why a run that has ended says nothing about the policy; None where its reward counts."""
    if stop_reason == "timeout":
        return "timeout"
    if not measures_policy(kind):
        return kind
    return "infrastructure" if reward is None else None


def _check_sizes(labels: Sequence[str], group_size: int | None, source: str) -> None:
    if group_size is None:
        return
    for label, size in Counter(labels).items():
        if size == group_size:
            continue
        raise UsageError(
            f"group_size={group_size} contradicts the {source}: group {label!r} has {size} of {group_size} runs. Leave "
            "group_size out, because runs bring their own groups, or give group_ids, one for each run, to regroup them."
        )


def _slices(own: Sequence[str | None], size: int) -> list[str]:
    if len(own) % size:
        raise UsageError(
            f"{len(own)} trajectories do not divide into groups of {size}: the last group has {len(own) % size}. "
            "Re-run what is missing, or give group_ids, one for each."
        )
    labels = [str(position // size) for position in range(len(own))]
    slice_of: dict[str, str] = {}
    group_in: dict[str, str] = {}
    for label, group in zip(labels, own, strict=True):
        if group is None:
            continue
        other = group_in.setdefault(label, group)
        if other != group:
            start = int(label) * size
            raise UsageError(
                f"group_size={size} contradicts the runs: trajectories {start} to {start + size - 1} are one group by "
                f"position, but the runs are of groups {other!r} and {group!r}. Give group_ids, one for each."
            )
        if slice_of.setdefault(group, label) != label:
            raise UsageError(
                f"group_size={size} contradicts the runs: group {group!r} is spread over two slices of {size} "
                "trajectories. Give group_ids, one for each."
            )
    return labels
