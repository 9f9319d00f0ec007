"""Groups of a batch: the assignment of runs to groups, whose rewards are compared with each other.

A run has its own group (`group_id`); a trace id has the group of its run; `group_size` is for payloads without one.
Works on ids and sizes; failed runs are in `hud.learning.failed_runs`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hud.errors import UsageError


def group_labels(
    own: Sequence[str | None],
    *,
    group_ids: Sequence[str] | None = None,
    group_size: int | None = None,
) -> list[str] | None:
    """Return the group of each run of a batch; None if the batch is one group.

    `own` holds each run's own group id. `group_ids` replace them; without any, contiguous slices of `group_size` are
    groups. Raises `UsageError` for too few or too many `group_ids`, a `group_size` that contradicts the ids, and a mix
    of runs of several groups with payloads without a group.
    """
    if group_ids is not None and len(group_ids) != len(own):
        raise UsageError(
            f"{len(group_ids)} group_ids were given for {len(own)} trajectories; give one for each."
        )
    labels = [label for label in (own if group_ids is None else group_ids) if label is not None]
    if len(labels) == len(own):
        _check_sizes(labels, group_size, "group_ids" if group_ids is not None else "runs")
        return labels
    if group_size is not None:
        return _slices(own, group_size)
    if len(set(labels)) > 1:
        raise UsageError(
            f"The batch mixes runs of {len(set(labels))} groups with {len(own) - len(labels)} trajectories of none. "
            "Give group_ids, one for each trajectory."
        )
    return None


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
