"""The training loop: play a batch of groups, accumulate its gradient, step the optimizer, report, repeat.

    report = await train(TrainConfig(model="my-policy", tasks="tasks.py", steps=50))

One step plays `tasks_per_step` tasks `group` times each, learns from the groups with signal, and appends a checkpoint.
A step is a function of the seed, the step's number and the weights, so a run that is killed at any time and restarted
continues from its last checkpoint with the same results. With `max_lag`, the loop takes its groups from a stream that is
played ahead. The trainer computes advantages from the runs' rewards (`hud.learning.datums`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hud.client import connect
from hud.engine.backends.registered import PLATFORM
from hud.errors import UsageError
from hud.eval.job import Job
from hud.eval.results.held_out_scores import Score
from hud.eval.runtimes.rollout_runtime import as_runtime
from hud.eval.scheduler import StopSignal
from hud.eval.tasksets.taskset import Taskset
from hud.train.backends.backend_models import model_on
from hud.train.backends.engine_process import engine_process
from hud.train.config import SubagentConfig, TrainConfig
from hud.train.learner import Learner
from hud.train.monitoring.guard import Guard, Pause
from hud.train.monitoring.plots import draw_curves
from hud.train.monitoring.progress import Reporter
from hud.train.monitoring.step_profile import VIEWERS, check_profile, profiled, span
from hud.train.monitoring.trackers import with_trackers
from hud.train.planning.default_rates import default_rates
from hud.train.promotion.candidates import Promotions
from hud.train.rollouts.batch import RolloutBatch
from hud.train.rollouts.convergence import Convergence
from hud.train.rollouts.curriculum import Curriculum
from hud.train.rollouts.held_out import HeldOut, held_out_sets, overlap_note
from hud.train.rollouts.sampling import Models, Rollouts, load_tasks
from hud.train.rollouts.stream import RolloutStream
from hud.train.run_journal import over_note
from hud.train.supervised.demonstrations import advice_for
from hud.train.supervised.supervised_run import SupervisedReport, warm_up

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.environment.templates.task import Provider
    from hud.eval.run import Run

MOST_REPEATED = 5
"""Most repetitions of a step whose processes are lost again and again."""
NOTICED_SECONDS = 5.0
"""Loading for longer than this is announced."""
LOADING = "The model is being loaded, and its code compiled. What this machine has compiled once, it keeps."

__all__ = ["Score", "SupervisedReport", "TrainReport", "train", "warm_up"]


@dataclass
class TrainReport:
    """Result of a call of `train`."""

    run_id: str
    model: str
    first_step: int
    """First step of the call; above 0 for a resumed run."""
    next_step: int
    """Next step: `steps` if finished, less if the policy converged before."""
    finished: bool
    resumed: bool
    scores: list[Score]
    """Held-out scores of the whole run, oldest first."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """`{step, metrics}` of every step of the whole run."""
    head: str | None = None
    best: str | None = None
    """Checkpoint of the best held-out score."""
    paused: Pause | None = None
    """The guard's reason for a pause, or None."""
    decisions: list[dict[str, Any]] = field(default_factory=list)
    """Decisions of the gate in this call, oldest first; empty without `promote = "gate"`."""
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
    held_out: Taskset | Sequence[Taskset] | None = None,
    runtime: Provider | None = None,
    reporter: Reporter | None = None,
    stop: StopSignal | None = None,
    fresh: bool = False,
    override_guard: bool = False,
    played_as: Mapping[str, SubagentConfig] | None = None,
) -> TrainReport:
    """Train `config.model`, continuing the run of the same configuration if there is one.

    `tasks`, `held_out` (one set, or several) and `runtime` replace those of the configuration. A request of `stop` ends
    the run after the active rollouts; the interrupted step is repeated at the next call. A finished run is continued
    if `config.steps` asks for more steps than it took; otherwise its report is returned and nothing is trained. `fresh` starts a
    new run from the head. A run paused by the guard continues only with `override_guard`. `played_as` holds the settings of subagents'
    models, by slug, for those configured by model only. Raises `UsageError` if a run never has signal
    (`hud.train.rollouts.convergence`) or is paused, and `ConflictError` if another process trains the model.
    """
    reporter = with_trackers(config, reporter or Reporter())
    check_profile(config.profile, connect())
    chosen = load_tasks(tasks, config.tasks, "tasks")
    scored = HeldOut(held_out_sets(held_out, config.held_out))
    config = _checked(config, chosen, reporter)
    if tasks is not None:
        config = config.on(*(f"{task.env} {task.id} {task.slug} {task.args!r}" for task in tasks))
    if runtime is None:
        from hud.train.rollouts.runtimes import training_runtime  # Imports sockets and processes.

        runtime = training_runtime(config.runtime, [*chosen, *scored.tasks])
    if config.backend != PLATFORM:
        model = await model_on(config.backend, connect(), config.model)
        config = config.model_copy(update={"model": model})
    overlap = scored.trained_on(task.identity for task in chosen)
    await connect().get("/v2/models/resolve", params={"model": config.model})
    if "lr" not in config.model_fields_set:
        rates = await default_rates(connect(), config.model)
        config = config.model_copy(update={"lr": rates.reward})
        reporter.note(rates.note(rates.reward))
    promotions = None
    if config.promote == "gate":
        if overlap:
            raise UsageError(
                f"{overlap} of {len(scored.tasks)} held-out tasks are trained on, too: their scores are no evidence for the gate. "
                "Take them out of one of the two."
            )
        promotions = await Promotions.open(connect(), config, scored.tasks, reporter, fresh=fresh)
        config = promotions.config
    if overlap:
        reporter.note(overlap_note(overlap, len(scored.tasks)))
    rollouts = await Rollouts.open(
        config,
        [*chosen, *scored.tasks],
        runtime=runtime,
        reporter=reporter,
        stop=stop,
        played_as=played_as,
    )
    async with AsyncExitStack() as stack:
        stack.callback(reporter.close)
        stack.push_async_callback(rollouts.aclose)
        stack.push_async_callback(as_runtime(runtime).aclose)
        await stack.enter_async_context(engine_process(connect(), config))
        policy = await Learner.open(config, connect(), fresh=fresh, override_guard=override_guard)
        stack.push_async_callback(policy.close)
        if policy.run.over:
            reporter.note(over_note(policy.run, config.steps))
            return await _Loop(policy, [], chosen, scored, rollouts, promotions).report_over()
        joined: list[Learner[TrainConfig]] = []
        for model in config.joined:
            if model != config.model:
                joined.append(await Learner.beside(policy, model))
                stack.push_async_callback(joined[-1].close)
        for note in policy.run.notes:
            reporter.note(note)
        groups = config.most_groups(policy.run.next_step)
        if rollouts.judge is not None and (line := rollouts.judge.forecast(config.group, groups)):
            reporter.note(line)
        loop = _Loop(policy, joined, chosen, scored, rollouts, promotions)
        await loop.guard.resume(override=override_guard)
        return await loop.run_to_end()


def _checked(config: TrainConfig, tasks: list[Task], reporter: Reporter) -> TrainConfig:
    """Return the configuration with at most all tasks in a step; reports questionable settings."""
    if config.tasks_per_step > len(tasks):
        reporter.note(
            f"There are {len(tasks)} tasks, so that a step plays {len(tasks)} rather than {config.tasks_per_step}: none comes "
            "twice in a step."
        )
        config = config.model_copy(update={"tasks_per_step": len(tasks)})
    if config.max_lag and not config.bounds_ratios:
        reporter.note(
            f"With max_lag, tokens are older than the weights that learn from them, and {config.loss} bounds their "
            "importance by nothing. If the reward falls, use ppo or cispo."
        )
    return config


class _Loop:
    """A call of `train`."""

    def __init__(
        self,
        policy: Learner[TrainConfig],
        joined: list[Learner[TrainConfig]],
        tasks: list[Task],
        held_out: HeldOut,
        rollouts: Rollouts,
        promotions: Promotions | None,
    ) -> None:
        self.policy = policy
        self.learners = [*joined, policy]
        """Trained subagent models, then the policy: a step is complete with the policy's update."""
        self.config, self.run = policy.config, policy.run
        self.curriculum = Curriculum(self.config, tasks, self.run.played)
        self.held_out = held_out
        self.rollouts, self.reporter, self.stop = rollouts, rollouts.reporter, rollouts.stop
        self.promotions = promotions
        """With `promote = "gate"`: the gate to the model's head."""
        self.stream: RolloutStream | None = None
        """With `max_lag`: the groups that are played ahead."""
        self.models: Models = {}
        self.guard = Guard(self.config, self.run, self.reporter)
        self.convergence = Convergence(
            self.config, self.reporter, lambda: advice_for(connect(), self.config, tasks)
        )
        self.replaced = self.no_signal = 0
        self.repeated = 0
        """Repetitions of the current step so far."""

    async def run_to_end(self) -> TrainReport:
        """Take the remaining steps."""
        run, config = self.run, self.config
        first, started = run.next_step, perf_counter()
        self.reporter.started(run.id, first, config.steps)
        earlier = [score for score in run.scores if score.step >= self.guard.since]
        await self.held_out.recall(self.policy.client, earlier)
        # A killed process leaves rollouts behind whose results nothing reads.
        await as_runtime(self.rollouts.runtime).abandon([*run.jobs, *run.evaluations])
        job = await Job.start(f"{config.model} training", group=config.group, purpose="training")
        for learner in self.learners:
            await learner.run.add_job(job.id)
        try:
            await self._load()
            while not self.stop.stopping:
                await self._score_if_due()
                if self._over or self.stop.stopping or self.guard.pause is not None:
                    break
                with self._profile(first, run.next_step):
                    await self._step(run.next_step, job)
        finally:
            if self.stream is not None:
                await self.stream.close()
            job.interrupted = job.interrupted or self.stop.stopping
            await job.finish()
        finished = self._over and not self._due()
        ended = "finished" if finished else "stopped" if self.guard.pause is None else "paused"
        for learner in self.learners:
            await learner.end(ended)
        return await self._report(first, finished, perf_counter() - started)

    async def _load(self) -> None:
        """Load the models, and compile what their first step needs, before a step is timed."""
        loop = asyncio.get_running_loop()
        notice = loop.call_later(NOTICED_SECONDS, self.reporter.note, LOADING)
        try:
            for learner in self.learners:
                await learner.begin_step()
        finally:
            notice.cancel()

    @contextmanager
    def _profile(self, first: int, step: int) -> Iterator[None]:
        """Write the trace of the call's second step, which compiles and allocates nothing any more, or of its only one."""
        file = self.config.profile
        if file is None or step != min(first + 1, self.config.steps - 1):
            yield
            return
        with profiled(Path(file)):
            yield
        self.reporter.note(f"The trace of step {step + 1} is in {file}; {VIEWERS} opens it.")

    async def report_over(self) -> TrainReport:
        """Return the report of a run that finished before."""
        return await self._report(self.run.next_step, True, 0.0)

    async def _step(self, step: int, job: Job) -> None:
        """Take one step. A step stopped before its batch is complete changes nothing."""
        config, policy, batch = self.config, self.policy, RolloutBatch()
        seconds: dict[str, float] = {}
        began = perf_counter()
        source = await self._source(step, job, batch)

        # Rollouts and gradients: synchronously all groups at once, asynchronously each group at its end.
        waiting = perf_counter()
        subagents: dict[str, RolloutBatch] = {}
        async for groups in source:
            if await self._is_disturbed(batch):
                return
            with _timed(seconds, "update"):
                for model in config.joined:
                    subagents[model] = batch.of_subagent(self.models[model].name, config)
                for learner in self.learners:
                    own = subagents.get(learner.config.model, RolloutBatch()).groups
                    # A policy that is its own subagent is trained on those runs, too.
                    await learner.forward_backward(
                        step, [*groups, *own] if learner is policy else own
                    )
        seconds["rollouts"] = perf_counter() - waiting - seconds.get("update", 0.0)
        if not batch.complete:
            return

        # Optimizer steps: subagents' models first, so that the step is complete with the policy's.
        metrics: dict[str, float] = {}
        checkpoint = None
        with _timed(seconds, "update"):
            await self._count(step, batch)
            if config.curriculum == "signal":
                self.curriculum.record(step, batch.weights)
                await self.run.add_played(self.curriculum.played)
            for learner in self.learners:
                if learner is not policy and not learner.has_taken(step):
                    played = subagents[learner.config.model]
                    learned, made = await learner.optim_step(step, played.reward)
                    await learner.report(step, learned | played.metrics(), made)
            if policy.has_gradient:
                with _timed(seconds, "apply"):
                    metrics, checkpoint = await policy.optim_step(step, batch.reward)

        # Metrics.
        seconds_of_step = perf_counter() - began
        metrics |= batch.metrics()
        metrics |= {f"seconds_{name}:sum": value for name, value in seconds.items()}
        metrics["seconds:sum"] = seconds_of_step
        # With `max_lag` rollouts are continuous: a step's waiting time does not measure their speed.
        sampling = seconds["rollouts"] if self.stream is None else seconds_of_step
        tokens = batch.tokens + batch.subagent_tokens
        metrics["tokens_per_second:mean"] = tokens / max(sampling, 1e-9)
        metrics["learning_rate"] = config.learning_rate_of(step)
        if self.stream is not None:
            metrics |= self.stream.metrics()
        await policy.report(step, metrics, checkpoint)
        if self.stream is not None:
            self.stream.advance(self.run.head)
        self.reporter.stepped(step, metrics)
        self.guard.played(batch.measured)
        await self.guard.check(over=self._over)

    async def _is_disturbed(self, batch: RolloutBatch) -> bool:
        """Return True if a reproducible step must be repeated: infrastructure broke one of its rollouts, or its sampler.

        A process that takes over in the middle of a step lacks the keys and values of earlier rollouts, and what it computes
        anew differs in the last bits; so does what is sampled again where the first attempt's are kept.
        """
        if self.config.max_concurrent > 1:
            return False
        held = [await learner.holds_session() for learner in self.learners]
        enough = (all(held) and not batch.broken_attempts) or self.repeated == MOST_REPEATED
        self.repeated = 0 if enough else self.repeated + 1
        return not enough

    async def _source(
        self, step: int, job: Job, batch: RolloutBatch
    ) -> AsyncIterator[list[list[Run]]]:
        """Return the groups of a step: played with the current weights, or taken from the stream."""
        if self.stream is None:
            for learner in self.learners:
                await learner.begin_step()
            self.models = await self._models(step)
            if not self.config.max_lag:
                return self.rollouts.groups(self.models, self.curriculum, step, job, batch)
            self.stream = RolloutStream(self.rollouts, self.models, self.curriculum, job, step)
            self.stream.start(self.run.head)
        return self.stream.groups(batch)

    async def _models(self, step: int) -> Models:
        """Return the models before a step."""
        models = await self.rollouts.models(await self.policy.policy(step))
        return models | {
            learner.config.model: await learner.policy(step) for learner in self.learners[:-1]
        }

    async def _count(self, step: int, batch: RolloutBatch) -> None:
        """Count the groups without signal; raises `UsageError` if there was never any signal."""
        self.no_signal += batch.no_signal
        self.replaced += batch.replaced
        signal = any(learner.has_gradient or learner.has_taken(step) for learner in self.learners)
        await self.convergence.count(step, batch, signal=signal, learned=bool(self.run.nodes))

    @property
    def _over(self) -> bool:
        return self.run.next_step >= self.config.steps or self.convergence.reached

    def _due(self) -> bool:
        """Return True if the current policy must be scored."""
        done, every = self.run.next_step, self.config.eval_every
        if not self.held_out or any(score.step == done for score in self.run.scores):
            return False
        return done == 0 or self._over or (every > 0 and done % every == 0)

    async def _score_if_due(self) -> None:
        if not self._due():
            return
        step = self.run.next_step
        models = await self._models(step)
        score = await self.rollouts.score(models, self.held_out, step, self.run.add_evaluation)
        if score is not None:
            score = replace(score, checkpoint_id=self.run.head)
            self.reporter.scored(score)
            if self.promotions is not None:
                await self.promotions.consider(score, self.run.scores)
            # Last: after a crash before the gate's decision, scoring is repeated.
            await self.run.add_score(score)
            await self.guard.check(over=self._over)
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
            history=run.history,
            head=run.head,
            best=None if best is None else best.checkpoint_id,
            paused=self.guard.pause,
            decisions=[] if self.promotions is None else self.promotions.decisions,
            groups_replaced=self.replaced,
            groups_without_spread=self.no_signal,
            seconds=seconds,
            metrics_file=run.metrics_file,
        )
        plot = Path(self.config.plot or run.folder / "curves.png")
        try:
            report.plot = draw_curves(report.history, report.scores, plot, title=self.config.model)
        except OSError as error:  # The run is over and recorded: no reason to fail.
            self.reporter.note(f"The curves cannot be written to {plot}: {error.strerror}.")
        return report


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add the duration of the context to `seconds[name]`."""
    started = perf_counter()
    try:
        with span(name):
            yield
    finally:
        seconds[name] = seconds.get(name, 0.0) + perf_counter() - started
