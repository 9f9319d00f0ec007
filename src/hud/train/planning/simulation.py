"""Discrete-event simulation of a training run: rollouts, samplers and trainers.

Rollouts are sampled from measured ones. A decode step of a sampler with n sequences takes a + c n seconds and yields a
token for each, so the state of a sampler is a count of decode steps at a varying rate, and a turn of k tokens ends k steps
after its start.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean

from hud.errors import UsageError
from hud.train.planning.measured import DecodeCost, Measured, Shape
from hud.train.rollouts.group_order import begins_another, next_group


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

    def __post_init__(self) -> None:
        for name in ("steps", "group", "tasks_per_step", "environments", "samplers", "trainers"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}.")


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

    @property
    def rollouts_per_second(self) -> float:
        """Rollouts per second."""
        return self.rollouts / self.seconds

    @property
    def tokens_per_second(self) -> float:
        """Sampled tokens per second, over the whole run."""
        return self.tokens / self.seconds


def simulate(measured: Measured, setup: Setup) -> Prediction:
    """Return the simulated duration and speed of a run."""
    return _Run(measured, setup).play()


@dataclass
class _Sampler:
    """A sampler: count of decode steps, and its turns by final step."""

    cost: DecodeCost
    steps: float = 0.0
    ends: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)

    @property
    def pace(self) -> float:
        """Decode steps per second."""
        return 1.0 / max(self.cost.seconds(len(self.ends)), 1e-12)


@dataclass
class _Group:
    """Rollouts of one task."""

    number: int
    left: int
    version: int | None = None
    """Completed steps at the start of its first rollout."""


class _Run:
    def __init__(self, measured: Measured, setup: Setup) -> None:
        self.measured, self.setup = measured, setup
        self.random = random.Random(setup.seed)
        self.now = 0.0
        self.samplers = [_Sampler(measured.decode) for _ in range(setup.samplers)]
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.order = 0
        self.version = 0
        self.begun = self.replaced = 0
        """Number of started groups, and of those, replacements."""
        self.waiting: deque[tuple[_Group, Shape]] = deque()
        self.free = setup.environments
        self.playing: set[int] = set()
        """Numbers of unfinished groups."""
        self.done: dict[int, _Group] = {}
        self.taken: list[_Group] = []
        """Groups of the next step."""
        self.learned = 0
        """Number of them in the gradient."""
        self.drawn = self.waves = 0
        """Groups that ended for the next step, and how often it began others in place of those that were left out."""
        self.training = False
        self.rollouts = self.tokens = 0
        self.sampling_seconds = self.training_seconds = 0.0
        self.lags: list[int] = []

    def play(self) -> Prediction:
        """Play every step."""
        self._admit()
        while self.version < self.setup.steps:
            self._advance()
        return Prediction(
            seconds=self.now,
            rollouts=self.rollouts,
            tokens=self.tokens,
            sampler_busy=self.sampling_seconds / (self.now * len(self.samplers)),
            trainer_busy=self.training_seconds / self.now,
            lag=fmean(self.lags) if self.lags else 0.0,
        )

    def _advance(self) -> None:
        """Advance to the next event, and process it."""
        slow = 0.5 if self.training and self._contended else 1.0
        following, busiest = (self.timers[0][0] if self.timers else float("inf")), None
        for sampler in self.samplers:
            if sampler.ends:
                end = self.now + (sampler.ends[0][0] - sampler.steps) / (sampler.pace * slow)
                if end < following:
                    following, busiest = end, sampler
        passed = following - self.now
        for sampler in self.samplers:
            if sampler.ends:
                sampler.steps += passed * sampler.pace * slow
                self.sampling_seconds += passed
        self.training_seconds += passed if self.training else 0.0
        self.now = following
        if busiest is None:
            heapq.heappop(self.timers)[2]()
        else:
            busiest.steps = busiest.ends[0][0]
            heapq.heappop(busiest.ends)[2]()

    @property
    def _contended(self) -> bool:
        """True where each side gets half of a shared device while both work, and got all of it in what was measured."""
        setup = self.setup
        return setup.shared_device and setup.max_lag > 0 and not self.measured.overlapping

    def _admit(self) -> None:
        """Start the allowed groups, as the training loop does."""
        setup = self.setup
        ahead = min(self.version + setup.max_lag + 1, setup.steps)
        while self.begun < ahead * setup.tasks_per_step + self.replaced and self._room():
            group = _Group(self.begun, setup.group)
            self.begun += 1
            self.playing.add(group.number)
            shapes = (self.random.choice(self.measured.shapes) for _ in range(setup.group))
            self.waiting.extend((group, shape) for shape in shapes)
        self._begin()

    def _room(self) -> bool:
        """Return whether another group is begun; a loop that is not ahead begins a step's groups at once."""
        setup = self.setup
        return not setup.max_lag or begins_another(
            self.done,
            self.playing,
            taken=len(self.taken),
            per_step=setup.tasks_per_step,
            group=setup.group,
            under_way=setup.environments - self.free + len(self.waiting),
            at_once=setup.environments,
        )

    def _begin(self) -> None:
        while self.free and self.waiting:
            self.free -= 1
            group, shape = self.waiting.popleft()
            if group.version is None:
                group.version = self.version
            self._after(shape.setup_seconds, partial(self._turn, group, shape, 0))

    def _turn(self, group: _Group, shape: Shape, number: int) -> None:
        turn = shape.turns[number]
        sampler = min(self.samplers, key=lambda one: len(one.ends))

        def drawn() -> None:
            self.tokens += turn.tokens
            self._after(turn.environment_seconds, lambda: self._next(group, shape, number + 1))

        self.order += 1
        heapq.heappush(sampler.ends, (sampler.steps + turn.tokens, self.order, drawn))

    def _next(self, group: _Group, shape: Shape, number: int) -> None:
        if number < len(shape.turns):
            self._turn(group, shape, number)
            return
        self.free += 1
        self.rollouts += 1
        group.left -= 1
        if not group.left:
            self.playing.remove(group.number)
            self.done[group.number] = group
            self._learn()
        self._admit()

    def _learn(self) -> None:
        """Take groups that ended and learn from them: where sampling is ahead as they come, else once the step has all."""
        if self.training:
            return
        while waits := self._waits():
            per_step, taken = self.setup.tasks_per_step, len(self.taken)
            number = next_group(self.done, self.playing, taken=taken, per_step=per_step)
            if number is None:
                break
            self._sort(self.done.pop(number))
            self._admit()
        measured, new = self.measured, len(self.taken) - self.learned
        if new and (self.setup.max_lag or not waits):
            self.learned += new
            passes = measured.update_seconds - measured.apply_seconds
            self._train(passes * new / self.setup.tasks_per_step, self._learn)
        elif not waits:
            self._train(measured.apply_seconds if self.taken else 0.0, self._learned)

    def _waits(self) -> bool:
        """Return whether the step gets more groups. A loop that is not ahead begins those that it lacks when all have ended."""
        setup = self.setup
        missing = setup.tasks_per_step - len(self.taken)
        if setup.max_lag:
            most = (1 + setup.dynamic_sampling) * setup.tasks_per_step
            return missing > 0 and self.drawn < most
        if not (self.playing or self.done) and missing and self.waves < setup.dynamic_sampling:
            self.waves += 1
            self.replaced += missing
            self._admit()
        return bool(self.playing or self.done)

    def _sort(self, group: _Group) -> None:
        """Take a group, or leave it out; a loop that is ahead begins another in its place."""
        self.drawn += 1
        old = self.version - (group.version or 0) > self.setup.max_lag
        if not old and self.random.random() >= self.measured.left_out:
            self.taken.append(group)
        elif self.setup.max_lag:
            self.replaced += 1

    def _train(self, seconds: float, then: Callable[[], None]) -> None:
        """Run the trainer for some seconds, longer on a shared device, and continue."""
        contended = 2.0 if self._contended else 1.0
        self.training = True

        def done() -> None:
            self.training = False
            then()

        self._after(seconds * contended / self.setup.trainers, done)

    def _learned(self) -> None:
        """End a step."""
        self.lags += [self.version - (group.version or 0) for group in self.taken]
        self.taken.clear()
        self.learned = self.drawn = self.waves = 0
        self.version += 1
        self._admit()
        self._learn()

    def _after(self, seconds: float, then: Callable[[], None]) -> None:
        self.order += 1
        heapq.heappush(self.timers, (self.now + seconds, self.order, then))
