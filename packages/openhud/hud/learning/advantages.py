"""Group-relative advantages: how much better a run was than the others of its group.

    A_i = s · (R_i - b_i) [/ (std(group) + eps)]        s = reward_scale

with b the group's mean (GRPO, arXiv 2402.03300), the mean of the group's other runs (RLOO, arXiv 2402.14740)
or 0. Dividing by the standard deviation is off by default: it biases a token-sum loss towards tasks that are
nearly always or nearly never solved (Dr. GRPO, arXiv 2503.20783).

Works on rewards, group ids and failures; independent of tokens: a run is one number, for any number of datums, and one for each
turn where its turns have rewards (`hud.learning.turn_rewards`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from hud.errors import UsageError
from hud.graders.group_signal import has_signal
from hud.learning.failed_runs import counted_runs, measures_policy
from hud.learning.turn_rewards import TurnRewards, returns_by_turn, turn_terms
from hud.learning.wire_types import AdvantageOptions

AdvantageFunction = Callable[[list[float]], Sequence[float]]
"""The rewards of one group's runs to their advantages, in the same order."""


@dataclass(frozen=True)
class Advantages:
    """The advantage of each run of a batch."""

    values: list[float]
    """One for each run; 0 if the run is not trained on."""
    trained: list[bool]
    """False for failed runs that were dropped and for runs of a group without signal."""
    counted: list[bool]
    """False for runs that were dropped because they, or others of their group, failed."""
    group_idx: list[int | None]
    """Number of each run's group, in order of first appearance; None if the whole batch is one group."""
    metrics: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    turns: list[list[float] | None] = field(default_factory=list)
    """Advantages of each run's turns, for runs that are trained on and whose turns have rewards; empty if no run's have."""

    def of_turns(self, position: int) -> list[float] | None:
        """Return the advantages of a run's turns; None: each has the run's."""
        return self.turns[position] if self.turns else None


def compute_advantages(
    rewards: Sequence[float],
    *,
    group_ids: Sequence[str] | None = None,
    failures: Sequence[str | None] | None = None,
    options: AdvantageOptions | None = None,
    reward_scale: float = 1.0,
    function: AdvantageFunction | None = None,
    turn_rewards: Sequence[TurnRewards] | None = None,
) -> Advantages:
    """Return the advantage of each run, and the state of its group.

    `group_ids` None makes the batch one group. `failures` has the failure kind of each failed run, handled by
    `options.failed_runs`. `function` replaces baseline and scaling for every group. With `options.permutation_seed` the
    advantages of each group change places: weights move as far as otherwise, and nothing is to be learned from them.
    `turn_rewards` has the rewards of each run's turns; a group has signal if the returns of a turn differ, too.
    """
    options = options or AdvantageOptions()
    count = len(rewards)
    scores = _checked_rewards(rewards, failures)
    labels = list(group_ids) if group_ids is not None else [""] * count
    members: dict[str, list[int]] = {}
    for position, label in enumerate(labels):
        members.setdefault(label, []).append(position)
    kinds = list(failures) if failures is not None else [None] * count
    failed = [position for position, kind in enumerate(kinds) if not measures_policy(kind)]
    for position in failed:
        scores[position] = 0.0  # Counted with `failed_runs="zero"` only.
    enters = counted_runs(kinds, labels, options)
    by_turn = _checked_turns(turn_rewards, kinds, options)

    values = [0.0] * count
    turns: list[list[float] | None] = [None] * count
    trained = [False] * count
    counted: list[int] = []
    dropped_groups = spread = 0
    for positions in members.values():
        entering = [position for position in positions if enters[position]]
        if not entering:
            dropped_groups += 1
            continue
        counted.extend(entering)
        advantages = _of_group([scores[p] for p in entering], options, function)
        generator = None
        if options.permutation_seed is not None:
            generator = np.random.default_rng(
                [options.permutation_seed, *labels[positions[0]].encode()]
            )
            advantages = list(generator.permutation(advantages))
        terms = turn_terms(
            [by_turn[p] for p in entering],
            options.turn_discount,
            lambda returns: _of_group(returns, options, function),
            generator,
        )
        if not any(advantages) and not any(any(own or ()) for own in terms):
            continue
        spread += 1
        for position, advantage, own in zip(entering, advantages, terms, strict=True):
            values[position] = reward_scale * advantage
            trained[position] = True
            if own is not None:
                weight = options.turn_weight
                turns[position] = [reward_scale * (advantage + weight * term) for term in own]

    order = {label: number for number, label in enumerate(members)}
    metrics = {
        "runs:sum": float(count),
        "failed_runs:sum": float(len(failed)),
        "groups:sum": float(len(members)),
        "spread_groups:sum": float(spread),
        "no_spread_groups:sum": float(len(members) - spread - dropped_groups),
        "dropped_groups:sum": float(dropped_groups),
        "dropped_runs:sum": float(count - len(counted)),
        **reward_metrics([scores[p] for p in counted]),
    }
    credited = any(own is not None for own in turns)
    if credited:
        metrics["turn_credited_runs:sum"] = float(sum(own is not None for own in turns))
    return Advantages(
        values=values,
        trained=trained,
        counted=enters,
        group_idx=[order[label] for label in labels] if group_ids is not None else [None] * count,
        metrics=metrics,
        warnings=_warnings(len(members), spread, dropped_groups),
        turns=turns if credited else [],
    )


def gradient_weight(
    rewards: Sequence[float],
    options: AdvantageOptions,
    turn_rewards: Sequence[TurnRewards] | None = None,
) -> float:
    """Return the mean squared advantage of a group, over its runs and each one's turns, from the rewards that count in it.

    0: a group without signal.
    """
    values = _of_group(list(rewards), options, None)
    by_turn = _checked_turns(turn_rewards, [None] * len(values), options)
    terms = turn_terms(
        by_turn, options.turn_discount, lambda returns: _of_group(returns, options, None)
    )
    squares = [
        np.mean(np.square(value + options.turn_weight * np.asarray(own or [0.0])))
        for value, own in zip(values, terms, strict=True)
    ]
    return float(np.mean(squares))


def group_has_signal(
    rewards: Sequence[float],
    options: AdvantageOptions,
    turn_rewards: Sequence[TurnRewards] | None = None,
) -> bool:
    """Return whether a group's rewards, or the returns of one of its turns, give any run an advantage other than 0."""
    if has_signal(rewards, options.baseline):
        return True
    if turn_rewards is None or not options.turn_weight:
        return False
    return any(
        has_signal(list(returns.values()), options.baseline)
        for returns in returns_by_turn(turn_rewards, options.turn_discount)
    )


def reward_metrics(rewards: Sequence[float]) -> dict[str, float]:
    """Return mean, standard deviation and extremes of the rewards that counted."""
    if not rewards:
        return {}
    array = np.asarray(rewards, dtype=np.float64)
    return {
        "reward:mean": float(array.mean()),
        "reward:std": float(array.std()),
        "reward:min": float(array.min()),
        "reward:max": float(array.max()),
    }


def _checked_rewards(
    rewards: Sequence[float], failures: Sequence[str | None] | None
) -> list[float]:
    if failures is not None and len(failures) != len(rewards):
        raise UsageError(f"{len(failures)} failure kinds were given for {len(rewards)} runs.")
    scores = [float(reward) for reward in rewards]
    for position, score in enumerate(scores):
        if not math.isfinite(score) and (not failures or measures_policy(failures[position])):
            raise UsageError(
                f"Run {position} of the batch has reward {score}; a reward is a finite number. "
                "Mend the grader, or leave the run out."
            )
    return scores


def _checked_turns(
    turn_rewards: Sequence[TurnRewards] | None,
    failures: Sequence[str | None],
    options: AdvantageOptions,
) -> list[TurnRewards]:
    """Return the rewards of each run's turns that count: none of failed runs, and none at a weight of 0."""
    count = len(failures)
    if turn_rewards is None or not options.turn_weight:
        return [None] * count
    if len(turn_rewards) != count:
        raise UsageError(f"{len(turn_rewards)} lists of turn_rewards were given for {count} runs.")
    for position, own in enumerate(turn_rewards):
        if own is not None and not all(map(math.isfinite, own)):
            raise UsageError(
                f"Run {position} of the batch has turn_rewards {list(own)}; a reward is a finite number. "
                "Mend the grader, or leave the run out."
            )
    return [
        own if measures_policy(kind) else None
        for own, kind in zip(turn_rewards, failures, strict=True)
    ]


def _of_group(
    rewards: list[float], options: AdvantageOptions, function: AdvantageFunction | None
) -> list[float]:
    if function is not None:
        advantages = [float(value) for value in function(list(rewards))]
        if len(advantages) != len(rewards) or not all(map(math.isfinite, advantages)):
            raise UsageError(
                f"The advantage function made {advantages} of {rewards}; it must return one finite "
                "number for each reward."
            )
        return advantages
    array = np.asarray(rewards, dtype=np.float64)
    if not has_signal(rewards, options.baseline):
        return [0.0] * len(rewards)
    if options.baseline == "mean":
        array = array - array.mean()
    elif options.baseline == "leave_one_out":
        array = array - (array.sum() - array) / (len(array) - 1)
    if options.divide_by_std:
        array = array / (np.std(rewards) + options.std_epsilon)
    return [float(value) for value in array]


def _warnings(groups: int, spread: int, dropped: int) -> list[str]:
    warnings = []
    if dropped:
        warnings.append(
            f'{dropped} of {groups} groups were dropped because runs in them failed; failed_runs="drop_run" would '
            "keep the rest of each."
        )
    if not spread and groups > dropped:
        warnings.append(
            "No group has any spread of rewards, so there is nothing to learn from this batch. Use tasks that the "
            "policy solves sometimes, or more runs for each."
        )
    return warnings
