"""The ladder: measure where a policy stands, then climb from the cheapest change to the dearest, each rung through the gate.

    report = await improve(ImproveConfig(model="my-policy", tasks="tasks.py", budget="5000rollouts"))

A rung is not begun if its smallest part and its comparison do not fit the budget, and a running one ends before the rest is needed.
Every trained rung works on a fork, whose result the gate compares with the head. One comparison per rung: the error of 5% is
divided by the number of rungs (Bonferroni). A rung is recorded when it ends: an improvement that is killed and repeated goes on
in its running rung.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from random import Random
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

from hud.client import connect
from hud.errors import UsageError
from hud.eval.job import Job
from hud.eval.results.job_statistics import rewards_by_task
from hud.eval.results.promotion_gate import Gate
from hud.eval.runtimes.rollout_runtime import as_runtime
from hud.eval.scheduler import StopSignal
from hud.eval.tasksets.taskset import Taskset
from hud.inference.models import chat_model
from hud.train.budgeted.budget import SAFETY, Account, Budget, Spent, parse_budget
from hud.train.budgeted.splits import Splits, splits_of
from hud.train.client import TrainingClient
from hud.train.improvement.config import ImproveConfig, RungName
from hud.train.improvement.measurement import Standing, standing_of
from hud.train.improvement.plan import PlannedRung, measured_rollouts, planned, reason_to_skip
from hud.train.improvement.report import (
    ImprovementReport,
    Outcome,
    RungReport,
    report_of,
    rung_of,
)
from hud.train.improvement.trained_rungs import climb_by_imitation, climb_by_steps
from hud.train.monitoring.command_record import CommandRecord
from hud.train.monitoring.progress import Reporter
from hud.train.promotion.promotion import promote
from hud.train.prompt_search.config import PromptSearchConfig
from hud.train.prompt_search.judgement import Judgement
from hud.train.prompt_search.search import search_prompt
from hud.train.rollouts.sampling import Rollouts
from hud.train.rollouts.seeds import seed_of

if TYPE_CHECKING:
    from hud.agents import Agent
    from hud.environment import Task
    from hud.environment.templates.task import Provider
    from hud.trace.recording.job_purpose import Purpose

KIND = "improvement"
WATCHED_EVERY_SECONDS = 0.1


def plan_of(config: ImproveConfig, splits: Splits) -> tuple[int, list[PlannedRung]]:
    """Return the rollouts of the measurement, and the plan of the rungs before the policy is measured. Plays nothing."""
    budget, counts = parse_budget(config.budget), (len(splits.tasks), len(splits.held_out))
    plan = planned(config, budget, 0, *counts, config.rungs, None)
    return measured_rollouts(config, len(splits.tasks)), plan


async def improve(
    config: ImproveConfig,
    *,
    tasks: Taskset | None = None,
    held_out: Taskset | Sequence[Taskset] | None = None,
    reflector: Agent | None = None,
    runtime: Provider | None = None,
    reporter: Reporter | None = None,
    stop: StopSignal | None = None,
    fresh: bool = False,
) -> ImprovementReport:
    """Improve `config.model` within its budget, continuing the improvement of the same configuration if there is one.

    `tasks`, `held_out` and `reflector` replace those of the configuration. Raises `UsageError` for a budget that does not hold the
    measurement, for held-out tasks that are trained on, and for a teacher that cannot score the model's tokens.
    """
    client, reporter, stop = connect(), reporter or Reporter(), stop or StopSignal()
    splits = splits_of(config, tasks, held_out)
    row = await client.get("/v2/models/resolve", params={"model": config.model})
    config.refuse_unusable(row)
    for other in (*config.against, *([config.teacher] if config.teacher else [])):
        await client.get("/v2/models/resolve", params={"model": other})
    if config.teacher:
        await _refuse_other_tokenizer(config.model, config.teacher)
    if runtime is None:
        from hud.train.rollouts.runtimes import training_runtime  # Imports sockets and processes.

        runtime = training_runtime(config.runtime, splits.every)
    async with AsyncExitStack() as stack:
        stack.callback(reporter.close)
        stack.push_async_callback(as_runtime(runtime).aclose)
        record = await CommandRecord.open(
            client,
            KIND,
            config.model_dump(mode="json"),
            row,
            config.on(*splits.data).fingerprint,
            fresh=fresh,
            promotes=True,
        )
        for note in record.notes:
            reporter.note(note)
        if record.over is not None:
            return report_of(record.over)
        spent = Spent(**record.state.get("spent") or {})
        account = Account(parse_budget(config.budget), config.hour_price, spent)
        ladder = Ladder(
            config, splits, row["model_name"], record, account, runtime, reporter, stop, reflector
        )
        return await ladder.climb()


@dataclass
class Ladder:
    """A call of `improve`."""

    config: ImproveConfig
    splits: Splits
    slug: str
    record: CommandRecord
    account: Account
    runtime: Provider
    reporter: Reporter
    stop: StopSignal
    reflector: Agent | None = None
    rungs: list[RungReport] = field(init=False)
    head: str | None = field(init=False, default=None)
    """The model's head when the running rung began."""

    def __post_init__(self) -> None:
        self.rungs = [rung_of(values) for values in self.record.state.get("rungs") or []]

    @property
    def standings(self) -> list[Standing]:
        """The measurements of the policy: at the start, and after promotions."""
        return [Standing(**values) for values in self.record.state.get("standings") or []]

    @property
    def standing(self) -> Standing | None:
        """The newest measurement; None before the first."""
        return self.standings[-1] if self.standings else None

    @property
    def head_run(self) -> dict[str, Any] | None:
        """The job of the head on the held-out tasks with its mean; None before it is played."""
        run: dict[str, Any] | None = self.record.state.get("head")
        return run if run is not None and run["checkpoint"] == self.head else None

    @property
    def comparison(self) -> int:
        """Rollouts of the next comparison: the head's, unless they are there, and the candidate's."""
        sides = 1 if self.head_run else 2
        return sides * len(self.splits.held_out) * self.config.eval_group

    async def climb(self) -> ImprovementReport:
        """Measure, and climb the rungs that are left."""
        if self.record.resumed:
            self.reporter.note(
                f"Going on with the improvement {self.record.id[:12]}: {len(self.rungs)} rungs are over, {self.account.spent} spent."
            )
        standing = self.standing or await self._measure()
        while standing is not None and not self._stopped():
            rest = [
                name for name in self.config.rungs if name not in {rung.name for rung in self.rungs}
            ]
            if not rest:
                break
            counts = (len(self.splits.tasks), len(self.splits.held_out))
            spent = self.account.spent.rollouts
            plan = planned(self.config, self.account.budget, spent, *counts, rest, standing)
            await self._climb(plan[0], plan[1:])
            if len(rest) > 1 and self.rungs and self.rungs[-1].outcome == "promoted":
                standing = await self._measure_again() or standing
        return await self._report()

    def _stopped(self) -> bool:
        # A method: a type checker takes an attribute to stay as it was asked before.
        return self.stop.stopping

    async def _climb(self, rung: PlannedRung, later: list[PlannedRung]) -> None:
        """Climb a rung, unless it is skipped, and record its end."""
        before = self.account.spent
        row = await self.record.client.get(f"/v2/models/{self.record.model_id}")
        self.head = row["head_checkpoint_id"]
        # The share of an interrupted rung is that of its beginning: what it has taken counts within it.
        shares: dict[str, int] = self.record.state.get("shares") or {}
        rung = replace(rung, most=shares.get(rung.name, rung.most))
        await self.record.change(shares={**shares, rung.name: rung.most})
        reason = reason_to_skip(rung)
        if reason is None and not self.account.fits(rung.least + self.comparison):
            reason = f"the rest of the budget does not hold its smallest part and the comparison, {rung.least + self.comparison:,} rollouts"
        if reason is not None:
            report = RungReport(rung.name, "skipped", reason)
        else:
            # What the next rung is expected to gain for the same rollouts.
            rate = max(
                (other.rate for other in later if reason_to_skip(other) is None), default=0.0
            )
            self.reporter.note(
                f"{rung.name}: at most {rung.most:,} rollouts, expected gain at most {rung.gain or 0:.3f}"
            )
            climbed = await (
                self._search(rung, rate) if rung.name == "prompt" else self._train(rung, rate)
            )
            if climbed is None:
                return  # Interrupted: the same command goes on here.
            report = climbed
        report.spent = asdict(self.account.spent - before)
        self.rungs.append(report)
        rows = [{**asdict(ended), "sentence": ended.sentence} for ended in self.rungs]
        await self.record.change(rungs=rows, spent=self.account.record())
        gained = report.judgement.after if report.judgement is not None else None
        metrics = {"promoted": float(report.outcome == "promoted")}
        if gained is not None:
            metrics["rollout_reward:mean"] = gained
        await self.record.step(len(self.rungs) - 1, metrics)
        self.reporter.note(f"{report.sentence} ({report.reason}; {self.account.spent} spent)")

    async def _measure_again(self) -> Standing | None:
        """Measure a new head, if that leaves the next rung its smallest part; None if it does not."""
        count, config = measured_rollouts(self.config, len(self.splits.tasks)), self.config
        part = config.step_rollouts * config.steps_at_once
        return await self._measure() if self.account.fits(count + part + self.comparison) else None

    async def _measure(self) -> Standing | None:
        """Play the policy on training tasks in groups, and other models once; None after a stop, or without a measured run."""
        config, count = self.config, measured_rollouts(self.config, len(self.splits.tasks))
        if not self.account.fits(count):
            raise UsageError(
                f"The budget of {self.account.budget} does not hold the measurement of {count:,} rollouts; give a larger one, or a "
                "smaller --measured-tasks or --group."
            )
        order = Random(seed_of("measured", config.seed)).sample(
            self.splits.tasks, len(self.splits.tasks)
        )
        tasks = order[: config.measured_tasks]
        self.account.reserve(count)
        await self.record.change(spent=self.account.record())
        began = perf_counter()
        job, usd = await self._played(config.model, tasks, config.group, "training")
        standing = standing_of(
            job.id, config.group, rewards_by_task([run.summary() for run in job.runs])
        )
        others: dict[str, float] = {}
        for model in dict.fromkeys(
            [*config.against, *([config.teacher] if config.teacher else [])]
        ):
            other, cost = await self._played(model, tasks, 1, "evaluation")
            usd += cost
            if other.reward is not None:
                others[model] = other.reward
        self.account.settle(count, usd, perf_counter() - began)
        if standing is None or self._stopped():
            await self.record.change(spent=self.account.record())
            return None
        standing = replace(standing, others=others)
        rows = [*(self.record.state.get("standings") or []), standing.as_dict()]
        await self.record.change(standings=rows, spent=self.account.record())
        shown = "".join(f", {name} {mean:.3f}" for name, mean in others.items())
        self.reporter.note(
            f"measured on {standing.tasks} training tasks: mean reward {standing.mean:.3f}, best of {standing.group} {standing.best:.3f}, "
            f"{standing.with_signal:.0%} of the groups have signal{shown}"
        )
        return standing

    async def _played(
        self, model: str, tasks: list[Task], group: int, purpose: Purpose
    ) -> tuple[Job, float]:
        """Return a job of a model's runs, and their cost in dollars."""
        playing = self.config.playing(model)
        rollouts = await Rollouts.open(
            playing, tasks, runtime=self.runtime, reporter=self.reporter, stop=self.stop
        )
        job = await Job.start(
            f"{model} measured", group=group, planned=len(tasks) * group, purpose=purpose
        )
        await self.record.add("jobs", job.id)
        try:
            models = await rollouts.models(await chat_model(model, client=self.record.client))
            runs = await rollouts.play_at(models, tasks, job, ("measured",), group)
        finally:
            await job.finish()
        return job, sum(run.cost_usd or 0.0 for run in runs)

    async def _search(self, rung: PlannedRung, rate: float) -> RungReport | None:
        """Search a prompt within the rung's share."""
        config, account = self.config, self.account
        left, usd = account.seconds_left, account.budget.usd
        share = Budget(
            rollouts=rung.most + 2 * rung.judged,
            usd=None if usd is None else max(1e-6, usd - account.spent.usd),
            seconds=None if left is None else max(1.0, left),
        )
        search = PromptSearchConfig(
            model=config.model,
            budget=str(share),
            hour_price=config.hour_price,
            reflector=config.reflector,
            eval_group=config.eval_group,
            min_gain=config.min_gain,
            **config.shared,
        )
        began = perf_counter()
        report = await search_prompt(
            search,
            tasks=Taskset("tasks", self.splits.tasks),
            held_out=Taskset("held-out", self.splits.held_out),
            reflector=self.reflector,
            runtime=self.runtime,
            stop=self.stop,
            looks=len(config.rungs),
            least_rate=rate,
        )
        seconds = perf_counter() - began
        machine = report.spent["seconds"] / 3_600 * (config.hour_price or 0.0)
        self.account.reserve(report.spent["rollouts"])
        self.account.settle(
            report.spent["rollouts"], max(0.0, report.spent["usd"] - machine), seconds
        )
        if not report.finished and self._stopped():
            # Its rollouts are in its own record, from which it goes on.
            self.account.rollouts -= report.spent["rollouts"]
            return None
        judged = report.judgement
        if judged is None:
            return RungReport("prompt", "stopped", report.note, report.iterations)
        await self._keep_head(judged, report.checkpoint_id)
        outcome: Outcome = "promoted" if judged.promoted else "held"
        reason = f"{report.accepted} of {report.iterations} proposals accepted"
        return RungReport("prompt", outcome, reason, report.iterations, judgement=judged)

    async def _train(self, rung: PlannedRung, rate: float) -> RungReport | None:
        """Train a fork within the rung's share, and compare it with the head."""
        fork = await self._fork(rung.name)
        judged_seconds = 0.0
        if self.account.played:
            judged_seconds = (
                SAFETY * self.comparison * self.account.played_seconds / self.account.played
            )
        left = self.account.seconds_left
        async with bounded(
            self.stop, None if left is None else left - judged_seconds, left
        ) as stop:
            if rung.name == "imitate":
                climbed = await climb_by_imitation(self, fork, stop)
            else:
                climbed = await climb_by_steps(self, rung, fork, stop, rate)
        if self._stopped():
            return None
        node = (await self.record.client.get(f"/v2/models/{fork}"))["head_checkpoint_id"]
        reason, steps = climbed
        if not steps or node is None:
            return RungReport(rung.name, "stopped", reason, steps, model=fork)
        judgement = await self._judge(fork, node)
        if judgement is None:
            if self._stopped():
                return None
            return RungReport(
                rung.name, "stopped", "the budget ended before it was compared", steps, model=fork
            )
        outcome: Outcome = "promoted" if judgement.promoted else "held"
        return RungReport(rung.name, outcome, reason, steps, judgement=judgement, model=fork)

    async def _judge(self, fork: str, node: str) -> Judgement | None:
        """Compare a fork's checkpoint with the head on held-out tasks; None where the budget or a stop does not let it."""
        count = self.comparison
        if not self.account.fits(count):
            return None
        self.account.reserve(count)
        await self.record.change(spent=self.account.record())
        head = self.head_run
        head_job = Job(id=head["job"], name="head") if head else None
        began, tasks = perf_counter(), Taskset("held-out", self.splits.held_out)
        began_jobs: list[str] = []
        async with bounded(self.stop, self.account.seconds_left, self.account.seconds_left) as stop:
            promotion = await promote(
                self.config.playing(self.config.model),
                fork,
                node,
                tasks,
                Gate(min_gain=self.config.min_gain, looks=len(self.config.rungs)),
                head_job=head_job,
                runtime=self.runtime,
                stop=stop,
                began=lambda job: began_jobs.append(job.id),
            )
        for job in began_jobs:
            await self.record.add("evaluations", job)
        self.account.settle(count, 0.0, perf_counter() - began)
        if promotion is None:
            return None
        judgement = Judgement.of(promotion, len(tasks))
        if head:
            judgement = replace(judgement, before=head["mean"])
        await self._keep_head(judgement, promotion.decision["checkpoint_id"])
        return judgement

    async def _keep_head(self, judgement: Judgement, candidate: str | None) -> None:
        """Record the head after a judgement, with its job and mean on the held-out tasks, for the next comparison."""
        promoted = judgement.promoted
        checkpoint = candidate if promoted else self.head
        mean = judgement.after if promoted else judgement.before
        head = {"checkpoint": checkpoint, "job": judgement.jobs[promoted], "mean": mean}
        await self.record.change(head=head, checkpoint=checkpoint)

    async def _fork(self, rung: RungName) -> str:
        """Return the rung's fork of the head, made once."""
        forks = self.record.state.get("forks") or {}
        if rung not in forks:
            taken = {
                row["model_name"] for row in (await self.record.client.get("/v2/models"))["items"]
            }
            number = 1
            while (name := f"{self.slug}-{rung}-{number}") in taken:
                number += 1
            await self.record.client.post(
                "/v2/models/fork", {"source_model_id": self.record.model_id, "name": name}
            )
            await self.record.change(forks={**forks, rung: name})
            return name
        return str(forks[rung])

    async def _report(self) -> ImprovementReport:
        left = {*self.config.rungs} - {rung.name for rung in self.rungs}
        note = ""
        standings = self.standings
        if not standings:
            note = "No run of the policy was measured; hud jobs shows why."
        if self._stopped():
            note = "Stopped; the same command goes on."
        report = ImprovementReport(
            run_id=self.record.id,
            model=self.config.model,
            standing=standings[0] if standings else None,
            rungs=self.rungs,
            spent=self.account.record(),
            budget=str(self.account.budget),
            looks=len(self.config.rungs),
            held_out=len(self.splits.held_out),
            finished=not left and not self._stopped(),
            note=note,
        )
        await self.record.change(spent=self.account.record())
        await self.record.end(report.as_dict() if report.finished else None)
        return report


@asynccontextmanager
async def bounded(
    outer: StopSignal, seconds: float | None, last: float | None
) -> AsyncIterator[StopSignal]:
    """Yield a stop signal that follows `outer`, and is requested after `seconds`; what still runs after `last` is cancelled."""
    inner, began = StopSignal(), monotonic()

    async def watch() -> None:
        while not inner.cancelled:
            passed = monotonic() - began
            if not inner.stopping and (
                outer.stopping or (seconds is not None and passed >= seconds)
            ):
                inner.request()
            if inner.stopping and (outer.cancelled or (last is not None and passed >= last)):
                inner.request()
            await asyncio.sleep(WATCHED_EVERY_SECONDS)

    watcher = asyncio.create_task(watch())
    try:
        yield inner
    finally:
        watcher.cancel()


async def _refuse_other_tokenizer(model: str, teacher: str) -> None:
    """Raise `UsageError` for a teacher that cannot score the model's tokens, before anything is played."""
    trainer = TrainingClient(model)
    await trainer.open(alone=True, teacher=teacher)
    await trainer.close()
