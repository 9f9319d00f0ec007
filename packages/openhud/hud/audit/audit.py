"""`Audit`: exploits against every task, first of all the work itself, where an agent can do it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hud.audit.exploits import (
    DUMP,
    EXPLOITS,
    REPLAY,
    Attacker,
    Exploit,
)
from hud.audit.findings import Observed, declared_exceptions, findings_of, without_signal
from hud.audit.knowledge import Knowledge, Solution
from hud.audit.reach import Canary
from hud.audit.report import FLOOR, AuditReport, TaskAudit, with_luck_removed
from hud.audit.turns import notes_of
from hud.client import unstored_recorder
from hud.eval.scheduler import StopSignal

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.environment.templates.task import Player, Provider
    from hud.eval import Run, Taskset
    from hud.eval.results.run_summary import RunSummary

SOLVED = 1.0
"""Reward from which on a run counts as a solution."""
ROLLOUT_SECONDS = 120.0
_MODELS = ("my-policy", "policy", "my-model", "qwen3-0.6b", "smollm2-135m", "tiny")
"""Names that people give their policies, for turns of exploits."""
CHANCE = "chance"
"""Column of a task that declares the reward of a guess."""
DECLARED = "audit:"
"""Beginning of a column that declares, with the reason, that an exploit is no exploit of a task: `audit:values`."""


@dataclass
class Audit:
    """An audit of tasks: `await play()`, then `report()`, which may be read at any time."""

    tasks: Taskset
    exploits: Sequence[Exploit] = EXPLOITS
    floor: float = FLOOR
    solutions: Mapping[str, Solution] = field(default_factory=dict)
    """Solutions that are known already, by slug, such as runs of a model."""
    runs: Sequence[RunSummary] = ()
    """Recorded runs of a model, whose signal is reported."""
    runtime: Provider | None = None
    max_concurrent: int | None = None
    rollout_timeout: float = ROLLOUT_SECONDS
    """Seconds of one run."""
    on_phase: Callable[[str, list[float]], None] | None = None
    """Called with an exploit's name and its rewards when it was played everywhere."""

    def __post_init__(self) -> None:
        self.stop = StopSignal()
        self.canary = Canary()
        played = [run.model for run in self.runs if run.model is not None]
        self.model = played[0] if played else random.choice(_MODELS)
        """Name of the model that the turns show to graders."""
        self.observed = {slug: Observed() for slug, _ in self.tasks.items()}
        self.rewards: dict[str, dict[str, float]] = {slug: {} for slug, _ in self.tasks.items()}
        self.unmeasured: dict[str, str] = {}
        self.complete = False
        own_solutions = {
            slug: solution for slug, solution in self.solutions.items() if slug in self.rewards
        }
        self.knowledge = Knowledge(dict(self.tasks.items()), own_solutions)

    async def play(self, solver: Player | None = None) -> None:
        """Play the work with `solver`, then every exploit; `stop.request()` ends it early, with what is known."""
        # An environment may look for the journal of the process that plays.
        self._recorder = unstored_recorder()
        try:
            await self._play_all(solver)
        finally:
            self._recorder.close()

    async def _play_all(self, solver: Player | None) -> None:
        if solver is not None:
            await self._play("solver", solver, self._solved)
        for exploit in self.exploits:
            if not exploit.needs_solutions or self.knowledge.solutions:
                await self._attack(exploit, self._earned)
        await self._repeat()
        self.complete = not self.stop.stopping

    def report(self) -> AuditReport:
        """Return what is known so far."""
        templates = {slug: (task.env, task.id) for slug, task in self.tasks.items()}
        rewards = with_luck_removed(self.rewards, templates)
        audits = [
            TaskAudit(
                slug=slug,
                label=task.label,
                rewards=rewards[slug],
                floor=max(self.floor, _chance(task)),
                solved=self.observed[slug].solved,
            )
            for slug, task in self.tasks.items()
        ]
        audits.sort(key=lambda audit: -audit.highest)
        findings = findings_of(self.tasks, self.observed, rewards, self.knowledge)
        findings += without_signal(self.tasks, self.runs)
        findings += declared_exceptions(
            {slug: _declared(task) for slug, task in self.tasks.items()}
        )
        return AuditReport(
            self.tasks.name, tuple(audits), tuple(findings), self.unmeasured, self.complete
        )

    async def _repeat(self) -> None:
        """Give the same answer twice: the longest list of answers, and the solution with its calls."""
        again = next((exploit for exploit in self.exploits if exploit.name == DUMP), None)
        if again is not None:
            await self._attack(again, self._dumped_again, name=f"{DUMP} again")
        if self.knowledge.solutions:
            await self._attack(REPLAY, self._replayed)
            unlike = [slug for slug, seen in self.observed.items() if seen.unlike_solved]
            if unlike:
                await self._attack(REPLAY, self._replayed, self.tasks.filter(unlike))

    async def _attack(
        self,
        exploit: Exploit,
        take: Callable[[Run], None],
        tasks: Taskset | None = None,
        *,
        name: str | None = None,
    ) -> None:
        attacker = Attacker(exploit, self.knowledge, self.canary, self.model)
        await self._play(name or exploit.name, attacker, take, tasks)

    async def _play(
        self, name: str, agent: Player, take: Callable[[Run], None], tasks: Taskset | None = None
    ) -> None:
        if self.stop.stopping:
            return
        rewards: list[float] = []

        def ended(run: Run) -> None:
            if notes_of(run).skipped:
                return
            if run.reward is None:
                self.unmeasured.setdefault(run.slug, f"{name}: {run.error}")
                return
            rewards.append(run.reward)
            take(run)

        await (tasks or self.tasks).run(
            agent,
            runtime=self.runtime,
            max_concurrent=self.max_concurrent,
            rollout_timeout=self.rollout_timeout,
            recorder=self._recorder,
            stop=self.stop,
            on_run=ended,
        )
        if self.on_phase is not None:
            self.on_phase(name, rewards)

    def _solved(self, run: Run) -> None:
        assert run.reward is not None
        self.observed[run.slug].solved = run.reward
        if run.reward >= SOLVED:
            self.knowledge.solutions[run.slug] = Solution.of(run.trace)

    def _earned(self, run: Run) -> None:
        assert run.reward is not None
        name = run.model or ""
        if name in _declared(run.task):
            return
        self.rewards[run.slug][name] = run.reward
        self.observed[run.slug].take(name, run)

    def _dumped_again(self, run: Run) -> None:
        self.observed[run.slug].compare(self.rewards[run.slug].get(DUMP), run.reward)

    def _replayed(self, run: Run) -> None:
        seen = self.observed[run.slug]
        seen.compare(seen.replayed, run.reward)
        seen.replayed = run.reward


def _chance(task: Task) -> float:
    chance = (task.columns or {}).get(CHANCE)
    return float(chance) if isinstance(chance, int | float) else 0.0


def _declared(task: Task) -> dict[str, str]:
    """Return the reasons why exploits are none of this task, by exploit."""
    columns = (task.columns or {}).items()
    return {
        name.removeprefix(DECLARED): str(reason)
        for name, reason in columns
        if name.startswith(DECLARED)
    }
