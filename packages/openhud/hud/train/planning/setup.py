"""Settings and result of a simulated run."""

from __future__ import annotations

from dataclasses import dataclass, field

from hud.errors import UsageError
from hud.train.planning.preemption import Preemption

COUNTS = ("steps", "group", "tasks_per_step", "environments", "samplers", "trainers", "nodes")


@dataclass(frozen=True)
class Setup:
    """Settings of a simulated run."""

    steps: int = 50
    group: int = 8
    tasks_per_step: int = 8
    max_lag: int = 0
    environments: int = 64
    """Concurrent rollouts."""
    samplers: int = 1
    trainers: int = 1
    """Number of trainers, which share an update."""
    shared_device: bool = True
    """True if sampling and training share the same cores or device."""
    seed: int = 0
    dynamic_sampling: int = 0
    """Maximum resampling rounds of tasks in a step, for groups without signal."""
    nodes: int = 1
    """Machines that share the environments evenly."""
    preemption: Preemption = field(default_factory=Preemption)
    turnaround_seconds: float = 0.0
    """From the end of a rollout until its place begins another, in seconds; see `measured.turnaround`."""

    def __post_init__(self) -> None:
        for name in COUNTS:
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if self.nodes > self.environments:
            raise UsageError(
                f"{self.nodes} nodes cannot share {self.environments} environments: each has at least one."
            )


@dataclass(frozen=True)
class Prediction:
    """Result of the simulation."""

    seconds: float
    rollouts: int
    tokens: int
    sampler_busy: float
    """Utilization of the samplers, 0 to 1."""
    trainer_busy: float
    lag: float
    """Mean policy lag, in steps, between a group's start and its update."""
    lost: int = 0
    """Attempts at rollouts that were lost with their node."""

    @property
    def rollouts_per_second(self) -> float:
        """Rollouts per second."""
        return self.rollouts / self.seconds

    @property
    def tokens_per_second(self) -> float:
        """Sampled tokens per second, over the whole run."""
        return self.tokens / self.seconds
