"""Which group is learned from next, where groups are played ahead: the same for the training loop and its simulation."""

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
