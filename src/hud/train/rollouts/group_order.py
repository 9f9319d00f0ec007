"""Order of groups where rollouts run ahead: the next to learn from, and the time to begin another.

Groups are learned from in the order in which they began: short rollouts first, step after step, is a bias, and policies learned
worse with it. The same for the training loop and its simulation.
"""

from __future__ import annotations

from collections.abc import Collection


def next_group(
    ended: Collection[int], playing: Collection[int], *, taken: int, per_step: int
) -> int | None:
    """Return the number of the group that a step, which has `taken` of its `per_step`, learns from next; None: wait.

    The one that began first of those that have ended. One that began before it and still plays is waited for until half as
    many again as a step needs have ended.
    """
    oldest = min(ended, default=None)
    if oldest is None:
        return None
    enough = 2 * (taken + len(ended)) >= 3 * per_step
    return oldest if enough or not any(number < oldest for number in playing) else None


def begins_another(
    ended: Collection[int],
    playing: Collection[int],
    *,
    taken: int,
    per_step: int,
    group: int,
    under_way: int,
    at_once: int,
) -> bool:
    """Return whether another group is begun while `under_way` rollouts run or wait for room, of the `at_once` that may run.

    Groups that ended and wait for the trainer hold as much room as they had: what is played long before it is learned from
    only gets older, and takes time from the trainer where they share a machine. One that waits for a slower one before it
    holds none.
    """
    if next_group(ended, playing, taken=taken, per_step=per_step) is not None:
        under_way += group * len(ended)
    return under_way < at_once
