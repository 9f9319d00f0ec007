"""State of a simulation: samplers, nodes of environments, and what they work on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hud.train.planning.measured import DecodeCost, Shape


@dataclass(eq=False)
class Sampler:
    """A sampler: count of decode steps, and its turns by final step."""

    cost: DecodeCost
    steps: float = 0.0
    ends: list[tuple[float, int, Rollout, Callable[[], None]]] = field(default_factory=list)
    losses: int = 0
    """Number of its preemptions."""
    away: bool = False

    @property
    def pace(self) -> float:
        """Decode steps per second."""
        return 1.0 / max(self.cost.seconds(len(self.ends)), 1e-12)


@dataclass(eq=False)
class Node:
    """A machine with environments."""

    room: int
    playing: set[Rollout] = field(default_factory=set)
    leaving: int = 0
    """Places of rollouts that ended, not yet free."""
    losses: int = 0
    """Number of its preemptions."""
    away: bool = False

    @property
    def free(self) -> int:
        """Number of rollouts that it can begin."""
        return 0 if self.away else self.room - len(self.playing) - self.leaving


@dataclass
class Group:
    """Rollouts of one task."""

    number: int
    left: int
    version: int | None = None
    """Completed steps at the start of its first rollout."""


@dataclass(eq=False)
class Rollout:
    """A rollout; events of attempts that were lost have no effect."""

    group: Group
    shape: Shape
    order: int
    attempt: int = 0
    node: Node | None = None
