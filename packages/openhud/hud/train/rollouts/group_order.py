"""Order of groups in asynchronous training: the next group to train on, and the start of new ones.

Groups are used in the order of their start: using short rollouts first is a bias, and policies learned worse with it.
Shared by the training loop and its simulation.
"""

from __future__ import annotations

from collections.abc import Collection


def next_group(
    ended: Collection[int], playing: Collection[int], *, taken: int, per_step: int
) -> int | None:
    """Return the number of the next group of a step that has `taken` of its `per_step` groups; None: wait.

    It is the earliest started of the finished groups. An earlier, unfinished one is waited for until one and a half steps'
    groups have finished.
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
    """Return True if another group may start, with `under_way` active or queued rollouts of at most `at_once`.

    Finished groups that wait for the trainer keep their slots: playing earlier would only increase the policy lag, and
    slow down a trainer on the same machine. A group that waits for a slower, earlier one keeps none.
    """
    if next_group(ended, playing, taken=taken, per_step=per_step) is not None:
        under_way += group * len(ended)
    return under_way < at_once
