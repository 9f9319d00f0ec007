"""Candidates of a prompt search, and the choice of the next parent among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from statistics import fmean
from typing import Any


@dataclass(frozen=True)
class Candidate:
    """A system prompt with its rewards on the validation tasks."""

    text: str
    parent: int | None
    """Place of the candidate that it was made from; None: the model's own prompt."""
    rewards: Mapping[str, float]
    """Reward by task, without unmeasured runs."""

    @property
    def mean(self) -> float:
        """Mean reward; 0 without a measured run."""
        return fmean(self.rewards.values()) if self.rewards else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the candidate as plain data."""
        return asdict(self)


def pareto_wins(candidates: Sequence[Candidate]) -> dict[int, int]:
    """Return, for each candidate of the Pareto front, the number of tasks on which it has the best reward.

    A candidate is dominated if others are best wherever it is (Algorithm 2 of arXiv 2507.19457).
    """
    slugs = dict.fromkeys(slug for candidate in candidates for slug in candidate.rewards)
    best: list[set[int]] = []
    for slug in slugs:
        rewards = {
            place: candidate.rewards[slug]
            for place, candidate in enumerate(candidates)
            if slug in candidate.rewards
        }
        top = max(rewards.values())
        best.append({place for place, reward in rewards.items() if reward == top})
    front = set().union(*best)
    # The weakest first: of two that are equal everywhere, the later one goes.
    for place in sorted(front, key=lambda place: (candidates[place].mean, -place)):
        others = front - {place}
        if all(winners & others for winners in best if place in winners):
            front = others
    wins = {place: sum(place in winners for winners in best) for place in sorted(front)}
    return wins or {0: 1}


def shuffled(candidates: Sequence[Candidate], random: Random) -> list[Candidate]:
    """Return the candidates with their rewards in other places: on each task they change places among the candidates."""
    rewards: list[dict[str, float]] = [{} for _ in candidates]
    for slug in dict.fromkeys(slug for candidate in candidates for slug in candidate.rewards):
        places = [place for place, candidate in enumerate(candidates) if slug in candidate.rewards]
        drawn = random.sample(places, len(places))
        for place, other in zip(places, drawn, strict=True):
            rewards[place][slug] = candidates[other].rewards[slug]
    return [
        replace(candidate, rewards=row) for candidate, row in zip(candidates, rewards, strict=True)
    ]


def choose_parent(candidates: Sequence[Candidate], random: Random) -> int:
    """Return the place of the next parent, drawn from the Pareto front in proportion to the tasks that each wins."""
    wins = pareto_wins(candidates)
    return random.choices(list(wins), weights=list(wins.values()))[0]


def best_of(candidates: Sequence[Candidate]) -> int:
    """Return the place of the candidate with the highest mean; of equal ones the earliest."""
    return max(range(len(candidates)), key=lambda place: (candidates[place].mean, -place))
