"""The training loop: sample, learn, measure, and again.

    report = await train(TrainConfig(model="my-policy", tasks="tasks.py", steps=50))

One step plays `tasks_per_step` tasks `group` times each, learns from the groups that have spread, and appends a
checkpoint. Everything that a step does follows from the seed, the step's number and the weights, so a run that is killed at
any instant and started again goes on from its last checkpoint as if nothing had happened.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hud.client import Client, connect
from hud.errors import UsageError
from hud.eval.job import Job
from hud.eval.scheduling import StopSignal
from hud.eval.taskset import Taskset
from hud.train.client import TrainingClient
from hud.train.config import TrainConfig
from hud.train.journal import TrainingRun, close_session, open_run
from hud.train.plots import draw_curves
from hud.train.progress import Reporter, Score, SilentReporter, Stopwatch
from hud.train.pruning import prune
from hud.train.sampling import Player, Sampled, check_tasks, fitted
from hud.train.updating import update
from hud.train.warm_up import WarmUpReport, warm_up

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.eval.rollouts import Provider

__all__ = ["Score", "TrainReport", "WarmUpReport", "train", "warm_up"]

MOST_EMPTY_STEPS = 10
"""Steps in a row without any spread after which going on is pointless."""


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
) -> TrainReport:
    """Train `config.model`, going on where an unfinished run of the same configuration stopped.

    `tasks`, `held_out` and `runtime` replace what the configuration names. Ask `stop` once to end after what is in
    flight; the step that it interrupts is done again next time. `fresh` begins a new run from the head.
    """
    loop = await _Loop.open(config, tasks, held_out, runtime, reporter, stop, fresh)
    try:
        return await loop.run_to_end()
    finally:
        await loop.close()


class _Loop:
    """One call of `train`."""

    def __init__(
        self,
        config: TrainConfig,
        client: Client,
        run: TrainingRun,
        tasks: list[Task],
        held_out: list[Task],
        player: Player,
    ) -> None:
        self.config = config
        self.client = client
        self.run = run
        self.tasks = tasks
        self.held_out = held_out
        self.player = player
        self.reporter = player.reporter
        self.stop = player.stop
        self.trainer = TrainingClient(run.model_id, client=client)
        self.totals = Sampled()
        self.empty_steps = 0
        self.kept = set(run.nodes.values())

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
    ) -> _Loop:
        chosen = _load(tasks, config.tasks, "tasks")
        scored = _load(held_out, config.held_out or "", "held-out tasks")
        shown = reporter if reporter is not None else SilentReporter()
        asked, config = config.tasks_per_step, fitted(config, chosen)
        if config.tasks_per_step < asked:
            shown.note(
                f"There are {len(chosen)} tasks, so that a step plays {len(chosen)} rather than {asked}: none comes "
                "twice in a step."
            )
        if runtime is None:
            from hud.train.runtimes import runtime_named  # Loads sockets and processes.

            runtime = runtime_named(config.runtime, [*chosen, *scored])
        client = connect()
        run = await open_run(client, config, fresh=fresh)
        for note in run.notes:
            shown.note(note)
        player = Player(config, runtime, shown, stop if stop is not None else StopSignal())
        return cls(config, client, run, chosen, scored, player)

    async def run_to_end(self) -> TrainReport:
        """Take the steps that are left."""
        run, config = self.run, self.config
        first, started = run.next_step, perf_counter()
        self.reporter.started(run.id, first, config.steps)
        job = await Job.start(f"{config.model} training", group=config.group)
        try:
            while not self.stop.stopping:
                await self._score_if_due()
                if run.next_step >= config.steps or self.stop.stopping:
                    break
                await self._step(run.next_step, job)
        finally:
            job.interrupted = job.interrupted or self.stop.stopping
            await job.finish()
        finished = run.next_step >= config.steps and not self._due()
        await run.end("finished" if finished else "stopped")
        return await self._report(first, finished, perf_counter() - started)

    async def close(self) -> None:
        """Give the model's lease back, and close what the runtime holds."""
        await close_session(self.client, self.run.model_id, self.run.owner)
        aclose = getattr(self.player.runtime, "aclose", None)
        if aclose is not None:
            await aclose()

    async def _step(self, step: int, job: Job) -> None:
        watch, config = Stopwatch(), self.config
        started = perf_counter()
        # A step begins as a new process would: with nothing in the sampler's cache.
        path = f"/v1/models/{self.run.model_id}/train/open"
        await self.client.post(path, {"owner": self.run.owner}, retry=True)
        with watch.measure("rollouts"):
            model = await self.client.chat_model(config.model)
            sampled = await self.player.sample(model, self.tasks, step, job)
        # The job is for the record; holding every run of training in memory would be for nothing.
        job.runs.clear()
        if self.stop.stopping:
            return
        self._count(sampled)
        self.reporter.phase("update", step, 0)
        metrics: dict[str, float] = {}
        checkpoint = None
        if sampled.groups:
            with watch.measure("update"):
                metrics, checkpoint = await self._update(sampled, step)
        seconds = perf_counter() - started
        metrics |= sampled.metrics()
        metrics |= {f"seconds_{name}:sum": value for name, value in watch.seconds.items()}
        metrics["seconds:sum"] = seconds
        metrics["tokens_per_second:mean"] = sampled.tokens / max(watch.seconds["rollouts"], 1e-9)
        metrics["learning_rate"] = config.learning_rate_of(step)
        await self.run.report(step, metrics, checkpoint)
        self.reporter.stepped(step, metrics)
        if checkpoint is not None:
            self.kept.add(checkpoint)
            await self._prune()

    async def _update(self, sampled: Sampled, step: int) -> tuple[dict[str, float], str]:
        """Learn from the groups; returns what was measured, and the new checkpoint."""
        config = self.config
        runs = [run for group in sampled.groups for run in group]
        result, made = await update(
            lambda: self.trainer.forward_backward(
                runs,
                loss_fn=config.loss,
                loss_fn_config=config.loss_config or None,
                group_ids=[run.group_id or "" for run in runs],
                reward_scale=0.0 if config.zero_advantages else config.reward_scale,
                advantages=config.advantages,
                idempotency_key=self.run.key(step),
            ),
            lambda: self.trainer.optim_step(
                learning_rate=config.learning_rate_of(step),
                beta1=config.beta1,
                beta2=config.beta2,
                eps=config.eps,
                weight_decay=config.weight_decay,
                max_grad_norm=config.max_grad_norm,
                idempotency_key=self.run.key(step),
            ),
        )
        path = f"/v2/models/{self.run.model_id}/checkpoints/{made.checkpoint_id}"
        node = await self.client.get(path)
        return {**result.metrics, **node["metrics"]}, made.checkpoint_id

    def _count(self, sampled: Sampled) -> None:
        self.totals.no_spread += sampled.no_spread
        self.totals.replaced += sampled.replaced
        self.empty_steps = 0 if sampled.groups else self.empty_steps + 1
        if self.empty_steps >= MOST_EMPTY_STEPS:
            raise UsageError(
                f"{MOST_EMPTY_STEPS} steps in a row had no group with spread: the policy does every task equally well, or "
                "equally badly, so there is nothing to learn from. Use tasks that it solves sometimes, more runs for "
                "each (--group), or a warm-up (--from-job)."
            )

    def _due(self) -> bool:
        """True when the policy as it is has to be scored."""
        done, config = self.run.next_step, self.config
        if not self.held_out or any(score.step == done for score in self.run.scores):
            return False
        every = config.eval_every
        return done in (0, config.steps) or (every > 0 and done % every == 0)

    async def _score_if_due(self) -> None:
        if not self._due():
            return
        model = await self.client.chat_model(self.config.model)
        score = await self.player.score(model, self.held_out, self.run.next_step)
        if score is not None:
            score = Score(**{**score.as_dict(), "checkpoint_id": self.run.head})
            await self.run.add_score(score)
            self.reporter.scored(score)
        elif not self.stop.stopping:
            raise UsageError("No held-out run was measured: every one failed. hud jobs shows why.")

    async def _prune(self) -> None:
        """Delete the files of this run's older checkpoints, except those with a score."""
        if not self.config.keep or len(self.kept) <= self.config.keep:
            return
        newest = [self.run.nodes[step] for step in sorted(self.run.nodes)][-self.config.keep :]
        scored = {score.checkpoint_id for score in self.run.scores}
        due = {self.run.head} if self._due() else set()
        expendable = set(self.run.nodes.values()) - set(newest) - scored - due
        await prune(self.client, self.run.model_id, expendable)
        self.kept = set(newest)

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


def _load(given: Taskset | None, source: str, what: str) -> list[Task]:
    if given is None and not source:
        if what == "tasks":
            raise UsageError("There are no tasks: give a file or folder to train on.")
        return []
    tasks = list(given if given is not None else Taskset.from_file(source))
    check_tasks(tasks, what)
    return tasks
