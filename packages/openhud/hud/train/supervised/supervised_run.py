"""Supervised training on recorded runs, as a run like any other: journaled, scored, and continued where it was interrupted.

    await warm_up("my-policy", job.runs, epochs=2)

The runs may be of any agent: the policy's own token ids are used unchanged; a scripted agent's turns are rendered by the
model's chat format. A step is a function of the seed, its number and the weights, and survives a killed process. Uses
conversations and routes; needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hud.client import Client, connect
from hud.errors import UsageError
from hud.eval.results.held_out_scores import Score
from hud.eval.runtimes.rollout_runtime import as_runtime
from hud.eval.scheduler import StopSignal
from hud.exchange.file_import import import_file
from hud.learning.schedules import ScheduleName
from hud.learning.wire_types import TrajectoryPayload
from hud.train.learner import Learner
from hud.train.monitoring.guard import Guard, Pause
from hud.train.monitoring.loss_metrics import INITIAL_LOSS, held_out_losses, loss_per_token
from hud.train.monitoring.plots import draw_curves
from hud.train.monitoring.progress import Reporter
from hud.train.monitoring.trackers import with_trackers
from hud.train.planning.default_rates import default_rates
from hud.train.rollouts.held_out import HeldOut, held_out_sets, overlap_note
from hud.train.rollouts.sampling import Rollouts
from hud.train.run_journal import over_note
from hud.train.supervised.config import SupervisedConfig
from hud.train.supervised.demonstrations import is_file
from hud.train.supervised.examples import (
    TokenizedRuns,
    batch_of,
    best_of,
    tokenized,
    usable_examples,
)
from hud.train.supervised.held_out_loss import HeldOutLoss, split
from hud.train.supervised.held_out_pairs import HeldOutPairs, PairAccuracy, split_pairs
from hud.train.supervised.preferences import (
    Pair,
    Preferences,
    pairs_of,
    peoples_pairs,
    weighted_by_task,
)
from hud.train.supervised.recorded_runs import (
    Example,
    examples_of,
    recorded_examples,
    runs_of_job,
)

if TYPE_CHECKING:
    from hud.environment.templates.task import Provider
    from hud.eval.run import Run
    from hud.eval.tasksets.taskset import Taskset

_SAVE_EVERY = 100
"""Steps between checkpoints: supervised steps are small and numerous."""


@dataclass
class SupervisedReport:
    """Result of a supervised training."""

    run_id: str
    model: str
    runs: int
    """Number of runs trained on."""
    left_out: int
    """Number of omitted runs: below `min_reward`, without a reward, without an answer or a call, or longer than the context."""
    first_step: int
    """First step of the call; above 0 for a continued run."""
    next_step: int
    steps: int
    """Number of steps of the whole run."""
    finished: bool
    first_loss: float | None
    """Mean loss per token of the run's first step; None before it."""
    last_loss: float | None
    head: str | None
    scores: list[Score] = field(default_factory=list)
    """Held-out scores of the whole run, oldest first."""
    seconds: float = 0.0
    metrics_file: Path = Path()
    plot: Path | None = None
    first_held_out_loss: float | None = None
    """Loss per token of the runs that are not trained on, before training; None without any. Of a reward model, per pair."""
    last_held_out_loss: float | None = None
    held_out_accuracy: PairAccuracy | None = None
    """Of a reward model, as this call measured it last."""
    paused: Pause | None = None
    """The guard's reason for a pause, or None."""


async def warm_up(
    model: str,
    runs: Sequence[Run] | None = None,
    *,
    job: str | None = None,
    file: str | Path | None = None,
    tasks: Taskset | None = None,
    epochs: int = 1,
    lr: float | None = None,
    batch: int = 32,
    min_reward: float | None = None,
    lr_schedule: ScheduleName = "linear",
    weight_decay: float = 0.0,
    max_grad_norm: float | None = 1.0,
    seed: int = 0,
    reporter: Reporter | None = None,
    fresh: bool = False,
) -> SupervisedReport:
    """Train `model` on the assistant turns of recorded runs; of its checkpoints only the last keeps its files.

    Pass `runs`, or a `file` that `import_file` reads, or the id of a `job`, with its `tasks`, whose environments define the tools.
    `batch` is the number of runs
    per step, `lr` as in `learn_from`. Runs below `min_reward` are omitted. Raises `UsageError`
    if no run is left. `learn_from` takes all settings.
    """
    rate = {} if lr is None else {"lr": lr}
    config = SupervisedConfig(
        model=model,
        jobs=[] if job is None else [job],
        epochs=epochs,
        **rate,
        batch=batch,
        min_reward=min_reward,
        lr_schedule=lr_schedule,
        weight_decay=weight_decay,
        max_grad_norm=max_grad_norm,
        seed=seed,
    )
    return await learn_from(config, runs, file=file, tasks=tasks, reporter=reporter, fresh=fresh)


async def learn_from(
    config: SupervisedConfig,
    runs: Sequence[Run] | None = None,
    *,
    file: str | Path | None = None,
    tasks: Taskset | None = None,
    held_out: Taskset | Sequence[Taskset] | None = None,
    runtime: Provider | None = None,
    reporter: Reporter | None = None,
    stop: StopSignal | None = None,
    fresh: bool = False,
    override_guard: bool = False,
) -> SupervisedReport:
    """Train `config.model` on `runs`, on those of a `file`, or of `config.jobs`, continuing the run of the same settings and data.

    Without `config.lr`, the learning rate is the default for the model's size and the loss (`default_rates`).
    A file is imported (`import_file`), and all of its runs are trained on, whatever else their jobs hold. `tasks` define the tools of
    recorded runs that name none themselves. A request of `stop` ends the run after the running step. A finished run is
    continued if more steps or epochs are asked for; otherwise its report is returned and nothing is trained. `fresh` starts
    a new run from the head. A run paused by the guard continues only with `override_guard`. Raises `UsageError` if no run can be learned from, and `ConflictError` if another process
    trains the model.
    """
    client = connect()
    reporter = with_trackers(config, reporter or Reporter())
    if "lr" not in config.model_fields_set:
        defaults = await default_rates(client, config.model)
        config = config.model_copy(update={"lr": defaults.of(config.loss)})
        reporter.note(defaults.note(config.lr))
    scored = HeldOut(held_out_sets(held_out, config.held_out))
    if runs is not None:
        examples = examples_of(runs)
    elif file is not None or config.jobs:
        config, recorded = await _recorded(client, config, file, reporter)
        examples = await recorded_examples(client, recorded, tasks, reporter)
    else:
        raise UsageError("Give runs to learn from, a file, or the id of a job.")
    model = await client.get("/v2/models/resolve", params={"model": config.model})
    rates = config.loss == "bradley_terry"
    if model["config"]["reward_model"] and not rates:
        raise UsageError(
            f"{config.model!r} is a reward model, which learns from pairs: --loss bradley_terry"
        )
    # Tokens that are read by trace id have no weights of their own.
    on_record = runs is None and client.api_url is None and not config.compares
    chosen = examples if config.best_of is None else best_of(examples, config.best_of)
    chosen = usable_examples(chosen, config.min_reward)
    fitting = await tokenized(client, model["id"], chosen, on_record=on_record, verdicts=rates)
    pairs: list[Pair] = []
    held_out_pairs: list[list[Pair]] = []
    if config.compares:
        if config.criterion is None:
            every = pairs_of(fitting, config.pairs_per_task)
        else:
            every = await peoples_pairs(client, fitting, config.criterion)
        pairs, held_out_pairs = split_pairs(every, fitting, config)
        if config.criterion is None:
            pairs = weighted_by_task(pairs, fitting)
        tested = fitting.part([])
    else:
        fitting, tested = split(fitting, config)
    if config.test is not None:
        tested = await _tests(client, model["id"], config.test, tasks, reporter)
    usable = fitting.examples
    # Rewards and comparisons may change after the runs.
    data = [*fitting.digests, *map(str, pairs)]
    config = config.over(len(pairs) or len(usable)).on(*data)
    if runtime is None and scored:
        from hud.train.rollouts.runtimes import training_runtime  # Imports sockets and processes.

        runtime = training_runtime(config.runtime, scored.tasks)
    overlap = scored.trained_on(example.task for example in usable if example.task is not None)
    if fitting.note is not None:
        reporter.note(fitting.note)
    if overlap:
        reporter.note(overlap_note(overlap, len(scored.tasks)))
    trained = set(fitting.digests)
    if repeated := sum(digest in trained for digest in tested.digests):
        reporter.note(
            f"{repeated} of the {len(tested.examples)} runs whose loss is measured are trained on, too."
        )
    async with AsyncExitStack() as stack:
        stack.callback(reporter.close)
        stack.push_async_callback(as_runtime(runtime).aclose)
        rollouts = await Rollouts.open(
            config.playing, scored.tasks, runtime=runtime, reporter=reporter, stop=stop
        )
        learner = await Learner.open(config, client, fresh=fresh, override_guard=override_guard)
        stack.push_async_callback(learner.close)
        for note in learner.run.notes:
            reporter.note(note)
        left_out = len(examples) - len(usable) - (0 if config.test else len(tested.examples))
        losses = HeldOutLoss(learner, tested.payloads, reporter)
        preferences = Preferences(learner, fitting.payloads) if pairs else None
        if preferences is not None:
            compared = "the best and the worst run of a task"
            if config.pairs_per_task > 1:
                compared = f"better and worse runs, at most {config.pairs_per_task} of a task"
            if config.criterion is not None:
                compared = f"runs that people compared by {config.criterion!r}"
            reporter.note(f"pairs of {compared}: {len(pairs):,}")
            losses = HeldOutPairs(learner, preferences, held_out_pairs, reporter)
        loop = _Loop(learner, usable, left_out, scored, rollouts, losses, preferences)
        if learner.run.over:
            reporter.note(over_note(learner.run, config.total_steps))
            return loop.report(learner.run.next_step, 0.0)
        await loop.guard.resume(override=override_guard)
        if preferences is not None:
            await preferences.begin(pairs, reporter)
        return await loop.run_to_end(pairs or fitting.payloads)


async def _recorded(
    client: Client, config: SupervisedConfig, file: str | Path | None, reporter: Reporter
) -> tuple[SupervisedConfig, list[str]]:
    """Return the ids of the runs to train on; a file is imported first, and its jobs are those of the configuration."""
    if file is None:
        by_job = [await runs_of_job(client, job) for job in config.jobs]
        return config, [trace_id for trace_ids in by_job for trace_id in trace_ids]
    imported = await import_file(client, Path(file))
    jobs = list(imported.runs.jobs)
    trace_ids = list(dict.fromkeys(imported.runs.trace_ids))
    of_jobs = ", ".join(job[:12] for job in jobs)
    reporter.note(
        f"runs of {file} ({imported.source}): {len(trace_ids):,}, imported as job {of_jobs}"
    )
    return config.model_copy(update={"jobs": jobs}), trace_ids


async def _tests(
    client: Client, model_id: str, source: str, tasks: Taskset | None, reporter: Reporter
) -> TokenizedRuns:
    """Return the runs of a file or a job whose loss is measured."""
    if is_file(source):
        trace_ids = list(dict.fromkeys((await import_file(client, Path(source))).runs.trace_ids))
    else:
        trace_ids = await runs_of_job(client, source)
    examples = await recorded_examples(client, trace_ids, tasks, reporter)
    on_record = client.api_url is None
    return await tokenized(client, model_id, usable_examples(examples, None), on_record=on_record)


class _Loop:
    """A call of `learn_from`."""

    def __init__(
        self,
        learner: Learner[SupervisedConfig],
        examples: list[Example],
        left_out: int,
        held_out: HeldOut,
        rollouts: Rollouts,
        losses: HeldOutLoss,
        preferences: Preferences | None,
    ) -> None:
        self.learner, self.config, self.run = learner, learner.config, learner.run
        self.examples, self.left_out = examples, left_out
        self.held_out, self.rollouts = held_out, rollouts
        self.reporter, self.stop = rollouts.reporter, rollouts.stop
        self.losses, self.preferences = losses, preferences
        self.guard = Guard(self.config, self.run, self.reporter)

    async def run_to_end(self, units: Sequence[TrajectoryPayload | Pair]) -> SupervisedReport:
        """Take the remaining steps."""
        run, steps = self.run, self.config.total_steps
        first, started = run.next_step, perf_counter()
        self.reporter.started(run.id, first, steps)
        await self.held_out.recall(self.learner.client, run.scores)
        await self.losses.begin(run)
        await self._score_if_due()
        while run.next_step < steps and not self.stop.stopping and self.guard.pause is None:
            await self._step(run.next_step, units)
            await self._score_if_due()
            await self.guard.check(over=run.next_step >= steps)
        finished = run.next_step >= steps and not self._due(run.next_step)
        if not finished:
            await self.learner.begin_step()  # Makes a checkpoint of the steps since the last one.
        ended = "finished" if finished else "stopped" if self.guard.pause is None else "paused"
        await self.learner.end(ended)
        report = self.report(first, perf_counter() - started)
        plot = Path(self.config.plot or run.folder / "curves.png")
        try:
            report.plot = draw_curves(run.history, report.scores, plot, title=self.config.model)
        except OSError as error:  # The run is over and recorded: no reason to fail.
            self.reporter.note(f"The curves cannot be written to {plot}: {error.strerror}.")
        return report

    async def _step(self, step: int, units: Sequence[TrajectoryPayload | Pair]) -> None:
        config, began, done = self.config, perf_counter(), step + 1
        batch: list[Any] = batch_of(config, units, step)
        self.reporter.phase("update", step, 0)
        runs = batch
        preferred: dict[str, float] = {}
        if self.preferences is not None:
            runs, preferred = await self.preferences.weighted(batch)
        await self.learner.forward_backward(step, [runs])
        save = done % _SAVE_EVERY == 0 or done == config.total_steps or self._due(done)
        save = save or self.losses.due(done)
        metrics, checkpoint = await self.learner.optim_step(step, None, save=save)
        metrics |= (
            self.learner.pass_metrics
            | preferred
            | {
                "epoch": (step * config.batch + len(batch)) / len(units),
                "learning_rate": config.learning_rate_of(step),
                "examples:sum": float(len(batch)),
                "seconds:sum": perf_counter() - began,
            }
        )
        metrics |= await self.losses.after(done)
        await self.learner.report(step, metrics, checkpoint)
        self.reporter.stepped(step, metrics)

    def _due(self, done: int) -> bool:
        """Return True if the weights after so many steps must be scored."""
        if not self.held_out or any(score.step == done for score in self.run.scores):
            return False
        return self.config.is_evaluated(done)

    async def _score_if_due(self) -> None:
        done = self.run.next_step
        if not self._due(done) or self.stop.stopping:
            return
        models = await self.rollouts.models(await self.learner.policy(done))
        score = await self.rollouts.score(models, self.held_out, done, self.run.add_evaluation)
        if score is not None:
            score = replace(score, checkpoint_id=self.run.head)
            self.reporter.scored(score)
            await self.run.add_score(score)
        elif not self.stop.stopping:
            raise UsageError("No held-out run was measured: every one failed. hud jobs shows why.")

    def report(self, first: int, seconds: float) -> SupervisedReport:
        """Return the result of the run so far."""
        run = self.run
        opening = run.history[0]["metrics"] if run.history else {}
        measured = list(held_out_losses(run.history).values())
        losses: list[Any] = [loss_per_token(row["metrics"]) for row in run.history]
        return SupervisedReport(
            run_id=run.id,
            model=self.config.model,
            runs=len(self.examples),
            left_out=self.left_out,
            first_step=first,
            next_step=run.next_step,
            steps=self.config.total_steps,
            finished=run.next_step >= self.config.total_steps,
            first_loss=losses[0] if losses else None,
            last_loss=losses[-1] if losses else None,
            head=run.head,
            scores=sorted(run.scores, key=lambda score: score.step),
            seconds=seconds,
            metrics_file=run.metrics_file,
            first_held_out_loss=opening.get(INITIAL_LOSS),
            last_held_out_loss=measured[-1] if measured else None,
            held_out_accuracy=self.losses.accuracy
            if isinstance(self.losses, HeldOutPairs)
            else None,
            paused=self.guard.pause,
        )
