"""The training loop: sample, learn, measure, and again.

    report = await train(TrainConfig(model="my-policy", tasks="tasks.py", steps=50))

One step plays `tasks_per_step` tasks `group` times each, learns from the groups that have spread, and appends a
checkpoint. Everything that a step does follows from the seed, the step's number and the weights, so a run that is killed at
any instant and started again goes on from its last checkpoint as if nothing had happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hud.client import connect
from hud.errors import UsageError
from hud.eval.job import Job
from hud.eval.scheduler import StopSignal
from hud.eval.tasksets.taskset import Taskset
from hud.train.config import SubagentConfig, TrainConfig
from hud.train.learner import Learner, Lesson
from hud.train.monitoring.plots import draw_curves
from hud.train.monitoring.progress import Reporter, Score, SilentReporter, Stopwatch
from hud.train.rollouts.pipeline import GroupStream
from hud.train.rollouts.roles import Cast, cast_of, refuse_efforts, subagents_of
from hud.train.rollouts.sampling import Player, Sampled, check_tasks, fitted, of_subagent
from hud.train.supervised.demonstrations import advice_for
from hud.train.supervised.warm_up import WarmUpReport, warm_up

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.eval.rollouts import Provider
    from hud.eval.run import Run

__all__ = ["Score", "TrainReport", "WarmUpReport", "train", "warm_up"]

MOST_EMPTY_STEPS = 10
"""Steps in a row without signal after which a run ends."""
CONVERGED_REWARD = 0.99
"""Mean reward of these steps from which on the policy has converged: the highest reward is 1."""


@dataclass
class TrainReport:
    """What a call of `train` did."""

    run_id: str
    model: str
    first_step: int
    """Step that it began with; above 0 where a run was resumed."""
    next_step: int
    """Step that would come next: `steps` where it is finished."""
    finished: bool
    resumed: bool
    scores: list[Score]
    """Held-out scores of the whole run, oldest first."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """`{step, metrics}` of every step of the whole run."""
    head: str | None = None
    best: str | None = None
    """Checkpoint of the best held-out score."""
    groups_replaced: int = 0
    groups_without_spread: int = 0
    seconds: float = 0.0
    metrics_file: Path = Path()
    plot: Path | None = None

    @property
    def before(self) -> Score | None:
        """The held-out score before the first step."""
        return next((score for score in self.scores if score.step == 0), None)

    @property
    def after(self) -> Score | None:
        """The newest held-out score."""
        return max(self.scores, key=lambda score: score.step, default=None)


async def train(
    config: TrainConfig,
    *,
    tasks: Taskset | None = None,
    held_out: Taskset | None = None,
    runtime: Provider | None = None,
    reporter: Reporter | None = None,
    stop: StopSignal | None = None,
    fresh: bool = False,
    played_as: Mapping[str, SubagentConfig] | None = None,
) -> TrainReport:
    """Train `config.model`, going on where an unfinished run of the same configuration stopped.

    `tasks`, `held_out` and `runtime` replace what the configuration names. Ask `stop` once to end after what is in
    flight; the step that it interrupts is done again next time. `fresh` begins a new run from the head. `played_as`
    says how models play as subagents, by slug, where the configuration says no more than which.
    """
    loop = await _Loop.open(config, tasks, held_out, runtime, reporter, stop, fresh, played_as)
    try:
        return await loop.run_to_end()
    finally:
        await loop.close()


class _Loop:
    """One call of `train`."""

    def __init__(
        self,
        learner: Learner,
        joined: list[Learner],
        tasks: list[Task],
        held_out: list[Task],
        player: Player,
    ) -> None:
        self.learner = learner
        self.joined = joined
        """The subagents' models that learn too."""
        self.config = learner.config
        self.client = learner.client
        self.run = learner.run
        self.tasks = tasks
        self.held_out = held_out
        self.player = player
        self.reporter = player.reporter
        self.stop = player.stop
        self.totals = Sampled()
        self.empty: list[float | None] = []
        """Mean rewards of the last steps in a row that had no signal."""
        self.converged = False
        self.advice: str | None = None
        """How a policy that earns nothing gets a start; None where it was not needed yet."""
        self.stream: GroupStream | None = None
        """Where sampling may lag behind: the groups that are played ahead."""
        self.pruning: asyncio.Task[None] | None = None
        """What deletes the files of older checkpoints."""

    @classmethod
    async def open(
        cls,
        config: TrainConfig,
        tasks: Taskset | None,
        held_out: Taskset | None,
        runtime: Provider | None,
        reporter: Reporter | None,
        stop: StopSignal | None,
        fresh: bool,
        played_as: Mapping[str, SubagentConfig] | None,
    ) -> _Loop:
        chosen = load_tasks(tasks, config.tasks, "tasks")
        scored = (
            load_tasks(held_out, config.held_out or "", "held-out tasks")
            if held_out or config.held_out
            else []
        )
        shown = reporter if reporter is not None else SilentReporter()
        asked, config = config.tasks_per_step, fitted(config, chosen)
        if config.tasks_per_step < asked:
            shown.note(
                f"There are {len(chosen)} tasks, so that a step plays {len(chosen)} rather than {asked}: none comes "
                "twice in a step."
            )
        if config.max_lag and not config.bounds_ratios:
            shown.note(
                f"With max_lag, tokens are older than the weights that learn from them, and {config.loss} bounds their "
                "importance by nothing. If the reward falls, use ppo or cispo."
            )
        subagents = subagents_of(config, [*chosen, *scored], played_as)
        await refuse_efforts(connect(), config, subagents)
        if runtime is None:
            from hud.train.rollouts.runtimes import runtime_named  # Loads sockets and processes.

            runtime = runtime_named(config.runtime, [*chosen, *scored])
        learners = [await Learner.open(config, connect(), fresh=fresh)]
        try:
            for model in config.joined:
                if model != config.model:
                    learners.append(await Learner.beside(learners[0], model))
        except BaseException:
            await _close(learners)
            raise
        for note in learners[0].run.notes:
            shown.note(note)
        stop = stop if stop is not None else StopSignal()
        player = Player(config, runtime, shown, stop, subagents)
        return cls(learners[0], learners[1:], chosen, scored, player)

    async def run_to_end(self) -> TrainReport:
        """Take the steps that are left."""
        run, config = self.run, self.config
        first, started = run.next_step, perf_counter()
        self.reporter.started(run.id, first, config.steps)
        job = await Job.start(f"{config.model} training", group=config.group)
        for learner in (self.learner, *self.joined):
            await learner.run.add_job(job.id)
        try:
            while not self.stop.stopping:
                await self._score_if_due()
                if run.next_step >= config.steps or self.converged or self.stop.stopping:
                    break
                await self._step(run.next_step, job)
            if self.pruning is not None:
                await self.pruning
        finally:
            if self.stream is not None:
                await self.stream.close()
            job.interrupted = job.interrupted or self.stop.stopping
            await job.finish()
        finished = (run.next_step >= config.steps or self.converged) and not self._due()
        for learner in (*self.joined, self.learner):
            await learner.run.end("finished" if finished else "stopped")
        return await self._report(first, finished, perf_counter() - started)

    async def close(self) -> None:
        """Give the models' leases back, and close what the runtime holds."""
        if self.pruning is not None:
            self.pruning.cancel()
            await asyncio.gather(self.pruning, return_exceptions=True)
        await _close([self.learner, *self.joined])
        aclose = getattr(self.player.runtime, "aclose", None)
        if aclose is not None:
            await aclose()

    async def _cast(self, step: int) -> Cast:
        """Return the models as they were before a step."""
        policy = await self.learner.policy(step)
        cast = await cast_of(self.client, policy, self.config, self.player.subagents)
        learning = {one.config.model: await one.policy(step) for one in self.joined}
        return replace(cast, subagents={**cast.subagents, **learning})

    async def _step(self, step: int, job: Job) -> None:
        watch, config = Stopwatch(), self.config
        started = perf_counter()
        lesson = Lesson(self.learner, step)
        cast, sampled = await self._rollouts(step, job, lesson, watch)
        # The job is for the record; holding every run of training in memory would be for nothing.
        job.runs.clear()
        if self.stop.stopping:
            return
        self.reporter.phase("update", step, 0)
        metrics: dict[str, float] = {}
        checkpoint = None
        with watch.measure("update"):
            taught = [await self._teach(one, cast, sampled, step) for one in self.joined]
            groups = sampled.groups
            if config.model in config.joined:
                # It calls itself: what it did as its own subagent it learns from too.
                groups = [*groups, *of_subagent(sampled, cast.policy.name, config).groups]
            await self._count(sampled, any(taught) or bool(groups))
            if groups and self.stream is None:
                await lesson.add(groups)
            if groups:
                with watch.measure("apply"):
                    metrics, checkpoint = await lesson.apply(sampled.reward)
        seconds = perf_counter() - started
        metrics |= sampled.metrics()
        metrics |= {f"seconds_{name}:sum": value for name, value in watch.seconds.items()}
        metrics["seconds:sum"] = seconds
        drawn = sampled.tokens + sampled.subagents_tokens
        # Ahead, rollouts run all the time, and what a step waits for them says nothing of their speed.
        drawing = watch.seconds["rollouts"] if self.stream is None else seconds
        metrics["tokens_per_second:mean"] = drawn / max(drawing, 1e-9)
        metrics["learning_rate"] = config.learning_rate_of(step)
        if self.stream is not None:
            metrics |= self.stream.metrics()
        await self.learner.report(step, metrics, checkpoint)
        if self.stream is not None:
            self.stream.advance(self.run.head)
        self.reporter.stepped(step, metrics)
        if checkpoint is not None:
            await self._make_room()

    async def _make_room(self) -> None:
        """Have the files of older checkpoints deleted beside the next step; no more than one step is taken meanwhile."""
        if self.pruning is not None:
            await self.pruning
        self.pruning = asyncio.create_task(self.learner.prune())

    async def _rollouts(
        self, step: int, job: Job, lesson: Lesson, watch: Stopwatch
    ) -> tuple[Cast, Sampled]:
        """Return what a step learns from, and who played it: now, or ahead of it, where groups are learned from as they end."""
        if self.stream is None:
            for learner in (self.learner, *self.joined):
                await learner.begin_step()
            cast = await self._cast(step)
            if not self.config.max_lag:
                with watch.measure("rollouts"):
                    return cast, await self.player.sample(cast, self.tasks, step, job)
            self.stream = GroupStream(self.player, cast, self.tasks, job, step)
            self.stream.start(self.run.head)

        async def learn(groups: list[list[Run]]) -> None:
            with watch.measure("update"):
                await lesson.add(groups)

        with watch.measure("rollouts"):
            sampled = await self.stream.take(learn)
        watch.seconds["rollouts"] -= watch.seconds.get("update", 0.0)
        return self.stream.cast, sampled

    async def _teach(self, learner: Learner, cast: Cast, sampled: Sampled, step: int) -> bool:
        """Have a subagent's model learn from its runs, unless it has; returns whether there was anything to learn."""
        if learner.run.next_step > step:
            return True
        own = of_subagent(sampled, cast.subagents[learner.config.model].name, self.config)
        metrics: dict[str, float] = {}
        checkpoint = None
        if own.groups:
            lesson = Lesson(learner, step)
            await lesson.add(own.groups)
            metrics, checkpoint = await lesson.apply(own.reward)
        await learner.report(step, {**metrics, **own.metrics()}, checkpoint)
        if checkpoint is not None:
            await learner.prune()
        return checkpoint is not None

    async def _count(self, sampled: Sampled, learned: bool) -> None:
        """Count a step. Notes how the policy gets a start at the first one that earned nothing, and ends after too many."""
        self.totals.no_spread += sampled.no_spread
        self.totals.replaced += sampled.replaced
        self.empty = [] if learned else [*self.empty, sampled.reward]
        hopeless = bool(self.empty) and sampled.earned_nothing
        if hopeless and self.advice is None:
            self.advice = await advice_for(self.client, self.config, self.tasks)
            self.reporter.note(
                f"All {len(sampled.measured)} runs of step {self.run.next_step + 1} have reward 0. {self.advice}"
            )
        if len(self.empty) >= MOST_EMPTY_STEPS:
            self._end_without_signal(hopeless)

    def _end_without_signal(self, hopeless: bool) -> None:
        """End as a success where the policy has nothing left to learn; raises `UsageError` where it never had a signal."""
        rewards = [reward for reward in self.empty if reward is not None]
        in_a_row = f"{len(self.empty)} steps in a row"
        if not rewards:
            raise UsageError(
                f"{in_a_row} no run was measured: every one failed. hud jobs shows why."
            )
        reward = fmean(rewards)
        if reward >= CONVERGED_REWARD or self.run.nodes:
            self.converged = True
            self.reporter.note(
                f"{self.config.model} has converged: for {in_a_row} the runs of every group earned the same, {reward:.3f} on "
                "average, so there is nothing left to learn from these tasks."
            )
            return
        why = (
            f"had only runs with reward 0. {self.advice}"
            if hopeless
            else "had no group with spread: the policy does every task equally well, or equally badly, so there is "
            "nothing to learn from. Use tasks that it solves sometimes, more runs for each (--group), or a warm-up "
            "(--from-job)."
        )
        raise UsageError(f"{in_a_row} {why}")

    def _due(self) -> bool:
        """True when the policy as it is has to be scored."""
        done, config = self.run.next_step, self.config
        if not self.held_out or any(score.step == done for score in self.run.scores):
            return False
        every = config.eval_every
        last = done == config.steps or self.converged
        return done == 0 or last or (every > 0 and done % every == 0)

    async def _score_if_due(self) -> None:
        if not self._due():
            return
        cast = await self._cast(self.run.next_step)
        score = await self.player.score(cast, self.held_out, self.run.next_step)
        if score is not None:
            score = Score(**{**score.as_dict(), "checkpoint_id": self.run.head})
            await self.run.add_score(score)
            self.reporter.scored(score)
        elif not self.stop.stopping:
            raise UsageError("No held-out run was measured: every one failed. hud jobs shows why.")

    async def _report(self, first: int, finished: bool, seconds: float) -> TrainReport:
        run = self.run
        best = max(run.scores, key=lambda score: (score.mean, score.step), default=None)
        report = TrainReport(
            run_id=run.id,
            model=self.config.model,
            first_step=first,
            next_step=run.next_step,
            finished=finished,
            resumed=run.resumed,
            scores=sorted(run.scores, key=lambda score: score.step),
            history=await run.history(),
            head=run.head,
            best=None if best is None else best.checkpoint_id,
            groups_replaced=self.totals.replaced,
            groups_without_spread=self.totals.no_spread,
            seconds=seconds,
            metrics_file=run.metrics_file,
        )
        plot = Path(self.config.plot or run.folder / "curves.png")
        report.plot = draw_curves(report.history, report.scores, plot, title=self.config.model)
        return report


async def _close(learners: list[Learner]) -> None:
    for learner in learners:
        await learner.close()


def load_tasks(given: Taskset | None, source: str, what: str) -> list[Task]:
    """Return the tasks that were given, else those of a file or folder; refuses a set with nothing in it."""
    if given is None and not source:
        raise UsageError(f"There are no {what}: give a file or folder.")
    tasks = list(given if given is not None else Taskset.from_file(source))
    check_tasks(tasks, what)
    return tasks
