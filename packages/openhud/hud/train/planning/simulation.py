"""Discrete-event simulation of a training run: rollouts, samplers and trainers.

Rollouts are sampled from measured ones. A decode step of a sampler with n sequences takes a + c n seconds and yields a
token for each, so the state of a sampler is a count of decode steps at a varying rate, and a turn of k tokens ends k steps
after its start.

With preemption, a node of environments that is lost loses its rollouts: they wait again once their leases have run out, before all
others, and begin anew. A lost sampler's turns continue on the least loaded one from their tokens. Computing keys and values of a
moved turn anew costs nothing here: `preemption.samplers_lost` has that arithmetic.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from statistics import fmean

from hud.errors import UsageError
from hud.train.planning.measured import Measured
from hud.train.planning.preemption import HOUR, moments
from hud.train.planning.setup import Prediction, Setup
from hud.train.planning.simulated_machines import Group, Node, Rollout, Sampler
from hud.train.rollouts.group_order import begins_another, next_group

MOST_PREEMPTIONS = 16
"""Preemptions after which the platform ends a rollout as an error."""
LEAST_PRESENCE = 0.05
"""Least share of the time in which a machine is there."""


def simulate(measured: Measured, setup: Setup) -> Prediction:
    """Return the simulated duration and speed of a run."""
    return _Run(measured, setup).play()


class _Run:
    def __init__(self, measured: Measured, setup: Setup) -> None:
        self.measured, self.setup = measured, setup
        self.random = random.Random(setup.seed)
        self.now = 0.0
        self.samplers = [Sampler(measured.decode) for _ in range(setup.samplers)]
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.order = 0
        self.version = 0
        self.begun = self.replaced = 0
        """Number of started groups, and of those, replacements."""
        self.waiting: deque[Rollout] = deque()
        self.nodes = [
            Node(setup.environments // setup.nodes + (number < setup.environments % setup.nodes))
            for number in range(setup.nodes)
        ]
        self.adrift: list[tuple[float, Rollout, Callable[[], None]]] = []
        """Turns without a sampler: tokens left, and what follows."""
        self.under_way = 0
        """Number of begun rollouts that are not over, those that were lost included."""
        self.lost = 0
        self.playing: set[int] = set()
        """Numbers of unfinished groups."""
        self.done: dict[int, Group] = {}
        self.taken: list[Group] = []
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
        self._schedule_preemptions()
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
            lost=self.lost,
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
            heapq.heappop(busiest.ends)[3]()

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
            group = Group(self.begun, setup.group)
            self.begun += 1
            self.playing.add(group.number)
            for _ in range(setup.group):
                shape = self.random.choice(self.measured.shapes)
                self.order += 1
                self.waiting.append(Rollout(group, shape, self.order))
                self.under_way += 1
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
            under_way=self.under_way,
            at_once=setup.environments,
        )

    def _begin(self) -> None:
        while self.waiting:
            node = max(self.nodes, key=lambda candidate: candidate.free)
            if node.free < 1:
                return
            rollout = self.waiting.popleft()
            node.playing.add(rollout)
            rollout.node = node
            if rollout.group.version is None:
                rollout.group.version = self.version
            self._later(rollout, rollout.shape.setup_seconds, partial(self._turn, rollout, 0))

    def _turn(self, rollout: Rollout, number: int) -> None:
        turn = rollout.shape.turns[number]

        def drawn() -> None:
            self.tokens += turn.tokens
            self._later(rollout, turn.environment_seconds, lambda: self._next(rollout, number + 1))

        self._draw(turn.tokens, rollout, drawn)

    def _draw(self, tokens: float, rollout: Rollout, then: Callable[[], None]) -> None:
        """Sample a turn's tokens on the least loaded sampler, at once or when there is one."""
        there = [sampler for sampler in self.samplers if not sampler.away]
        if not there:
            self.adrift.append((tokens, rollout, then))
            return
        sampler = min(there, key=lambda candidate: len(candidate.ends))
        self.order += 1
        heapq.heappush(sampler.ends, (sampler.steps + tokens, self.order, rollout, then))

    def _next(self, rollout: Rollout, number: int) -> None:
        if number < len(rollout.shape.turns):
            self._turn(rollout, number)
            return
        group, node = rollout.group, rollout.node
        if node is not None:
            self._leave_place(node, rollout)
        self.under_way -= 1
        self.rollouts += 1
        group.left -= 1
        if not group.left:
            self.playing.remove(group.number)
            self.done[group.number] = group
            self._learn()
        self._admit()

    def _leave_place(self, node: Node, rollout: Rollout) -> None:
        """Free a rollout's place for another, after the turnaround."""
        node.playing.discard(rollout)
        if not self.setup.turnaround_seconds:
            return
        node.leaving += 1
        losses = node.losses

        def free() -> None:
            if node.losses == losses:
                node.leaving -= 1
                self._begin()

        self._after(self.setup.turnaround_seconds, free)

    # -- preemption ---------------------------------------------------------------------------------

    def _schedule_preemptions(self) -> None:
        event, seed = self.setup.preemption, self.setup.seed
        for per_hour, away in (
            (event.nodes_per_hour, event.node_away),
            (event.samplers_per_hour, event.sampler_away),
        ):
            # A machine is there when none was lost in its place for `away` seconds.
            if math.exp(-per_hour / HOUR * away) < LEAST_PRESENCE:
                raise UsageError(
                    f"Machines that are preempted {per_hour:g} times an hour and replaced after {away:g} s are hardly ever there."
                )
        for number, node in enumerate(self.nodes):
            times = moments(event.nodes_per_hour, seed, "node", number)
            self._at_each(times, partial(self._lose_node, node))
        for number, sampler in enumerate(self.samplers):
            times = moments(event.samplers_per_hour, seed, "sampler", number)
            self._at_each(times, partial(self._lose_sampler, sampler))

    def _at_each(self, times: Iterator[float], then: Callable[[], None]) -> None:
        """Call `then` at every one of endless times."""

        def now() -> None:
            then()
            self._at_each(times, then)

        for following in times:
            self._after(following - self.now, now)
            return

    def _lose_node(self, node: Node) -> None:
        """Lose a node and its rollouts; one that is away already begins to come back anew."""
        self._leave(node, self.setup.preemption.node_away)
        lost = sorted(node.playing, key=lambda preempted: preempted.order)
        node.playing.clear()
        node.leaving = 0
        if not lost:
            return
        gone = set(lost)
        for sampler in self.samplers:
            sampler.ends = [end for end in sampler.ends if end[2] not in gone]
            heapq.heapify(sampler.ends)
        self.adrift = [turn for turn in self.adrift if turn[1] not in gone]
        self.lost += len(lost)
        for rollout in lost:
            rollout.attempt += 1
            if rollout.attempt >= MOST_PREEMPTIONS:
                raise UsageError(
                    f"A rollout was preempted {MOST_PREEMPTIONS} times: at this rate rollouts do not come to their end."
                )

        def wait_again() -> None:
            self.waiting.extendleft(reversed(lost))
            self._begin()

        self._after(self.setup.preemption.lease, wait_again)

    def _lose_sampler(self, sampler: Sampler) -> None:
        """Lose a sampler: its turns continue elsewhere from their tokens."""
        self._leave(sampler, self.setup.preemption.sampler_away)
        moved, sampler.ends = sorted(sampler.ends), []
        for end, _, rollout, then in moved:
            self._draw(end - sampler.steps, rollout, then)

    def _leave(self, machine: Node | Sampler, seconds: float) -> None:
        """Take a machine away until it has not been lost for `seconds`."""
        machine.losses += 1
        machine.away = True
        losses = machine.losses

        def back() -> None:
            if machine.losses == losses:
                machine.away = False
                adrift, self.adrift = self.adrift, []
                for turn in adrift:
                    self._draw(*turn)
                self._begin()

        self._after(seconds, back)

    # -- training -----------------------------------------------------------------------------------

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

    def _sort(self, group: Group) -> None:
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

    def _later(self, rollout: Rollout, seconds: float, then: Callable[[], None]) -> None:
        """Continue a rollout after some seconds, unless its node is lost before."""
        attempt = rollout.attempt

        def now() -> None:
            if rollout.attempt == attempt:
                then()

        self._after(seconds, now)

    def _after(self, seconds: float, then: Callable[[], None]) -> None:
        self.order += 1
        heapq.heappush(self.timers, (self.now + seconds, self.order, then))
