"""A sweep: each combination of settings trains a fork of its own, one after another, and held-out scores compare them.

    every = combinations(make_config, {"model": "my-policy", "tasks": "tasks.py", "held_out": "held.py"}, {"lr": [1e-5, 3e-5]})
    report = await sweep(every)

A sweep that is stopped or killed goes on where it was; a combination that is added later is played alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from hud.client import Client, connect
from hud.engine.backends.registered import PLATFORM
from hud.errors import UsageError
from hud.eval.results.held_out_scores import Score
from hud.eval.scheduler import StopSignal
from hud.train.loop import TrainReport, train
from hud.train.monitoring.command_record import CommandRecord
from hud.train.monitoring.progress import Reporter
from hud.train.rollouts.held_out import HeldOut, held_out_sets, rewards_of_job
from hud.train.rollouts.sampling import load_tasks
from hud.train.supervised.supervised_run import SupervisedReport
from hud.train.sweeps.combinations import Combination
from hud.train.sweeps.ranking import Ranking, Trained, rank

if TYPE_CHECKING:
    from hud.eval.tasksets.taskset import Taskset
    from hud.train.run_settings import RunSettings

KIND = "sweep"
Showing = Callable[[Combination, "RunSettings"], AbstractContextManager[Reporter]]
"""Factory of the reporter of a combination's progress."""


Training = Callable[..., Awaitable[TrainReport | SupervisedReport]]
"""`train`, or `learn_from` on some data."""


@dataclass
class SweepRow:
    """Result of a combination."""

    label: str
    model: str
    """The fork that was trained."""
    before: Score | None = None
    after: Score | None = None
    """The held-out score after the last step so far."""
    rollouts: int = 0
    """Rollouts of its steps, without held-out ones."""
    seconds: float = 0.0
    """Time of its steps."""
    checkpoint: str | None = None
    finished: bool = False
    reason: str = ""
    """Reason for which it did not finish."""


@dataclass
class SweepReport:
    """Result of a sweep."""

    model: str
    rows: list[SweepRow] = field(default_factory=list)
    ranking: Ranking | None = None
    """None before the end."""

    @property
    def best(self) -> SweepRow | None:
        """The combination to take; None where the evidence supports none."""
        named = None if self.ranking is None else self.ranking.best
        return next((row for row in self.rows if row.label == named), None)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        ranking = self.ranking or Ranking(None, "")
        rows = [asdict(row) for row in self.rows]
        return {"rows": rows, "best": ranking.best, "verdict": ranking.verdict}


async def sweep(
    combinations: Sequence[Combination],
    training: Training = train,
    *,
    tasks: Taskset | None = None,
    held_out: Taskset | Sequence[Taskset] | None = None,
    data: Sequence[str] = (),
    showing: Showing | None = None,
    reporter: Reporter | None = None,
    stop: StopSignal | None = None,
    fresh: bool = False,
    override_guard: bool = False,
) -> SweepReport:
    """Train a fork of the model with each combination, continuing the sweep of the same settings if there is one, and rank them.

    `tasks` and `held_out` replace those of the settings; `data` names what else is trained on. A combination that fails, or that the guard pauses, does
    not end the others. `showing` makes the reporters of combinations; `reporter` gets the sweep's own notes. Raises `UsageError` without held-out tasks.
    """
    client, reporter, stop = connect(), reporter or Reporter(), stop or StopSignal()
    config = combinations[0].config
    scored = HeldOut(held_out_sets(held_out, config.held_out))
    if not scored:
        raise UsageError("A sweep compares held-out scores: give held-out tasks (--held-out).")
    if getattr(config, "backend", PLATFORM) != PLATFORM:
        raise UsageError("A sweep trains forks, which training services do not have.")
    chosen = load_tasks(tasks, config.tasks, "tasks") if tasks is not None or config.tasks else []
    identities = [repr(task.identity) for task in (*chosen, *scored.tasks)]
    row = await client.get("/v2/models/resolve", params={"model": config.model})
    record = await CommandRecord.open(
        client,
        KIND,
        config.model_dump(mode="json"),
        row,
        _without_swept(combinations[0]).on(*combinations[0].swept, *identities, *data).fingerprint,
        fresh=fresh,
        promotes=True,
    )
    # A sweep that is over may have gained combinations, or steps.
    for note in record.notes if record.over is None else ():
        reporter.note(note)
    forks = await _forks(record, row["model_name"], combinations)
    report = SweepReport(row["model_name"])
    ended: list[Trained] = []
    arguments: dict[str, Any] = {} if tasks is None else {"tasks": tasks}
    if held_out is not None:
        arguments["held_out"] = held_out
    for combination in combinations:
        if stop.stopping:
            break
        own = combination.config.model_copy(update={"model": forks[combination.label]})
        result = SweepRow(combination.label, own.model)
        report.rows.append(result)
        opened = nullcontext(Reporter()) if showing is None else showing(combination, own)
        with opened as shown:
            try:
                trained = await training(
                    own, reporter=shown, stop=stop, override_guard=override_guard, **arguments
                )
            except UsageError as error:
                result.reason = str(error)
                continue
        await _fill(client, result, trained, getattr(own, "group", 0))
        if result.finished and result.before is not None and result.after is not None:
            before, after = [
                await rewards_of_job(client, score.job_id or "")
                for score in (result.before, result.after)
            ]
            ended.append(Trained(combination.label, combination.setting, before, after, own.seed))
    if not stop.stopping:
        report.ranking = rank(ended)
    everything = all(result.finished for result in report.rows) and not stop.stopping
    await record.end(report.as_dict() if everything else None)
    return report


async def _forks(
    record: CommandRecord, slug: str, combinations: Sequence[Combination]
) -> dict[str, str]:
    """Return each combination's fork of the checkpoint at which the sweep began, made once."""
    forks: dict[str, str] = dict(record.state.get("forks") or {})
    taken = {row["model_name"] for row in (await record.client.get("/v2/models"))["items"]}
    number = 0
    for combination in combinations:
        if combination.label in forks:
            continue
        while (name := f"{slug}-sweep-{number + 1}") in taken:
            number += 1
        begin = record.state["start"] or "base"
        body = {"source_model_id": record.model_id, "name": name, "checkpoint": begin}
        await record.client.post("/v2/models/fork", body)
        taken.add(name)
        forks[combination.label] = name
        await record.change(forks=forks)
    return forks


async def _fill(
    client: Client, row: SweepRow, trained: TrainReport | SupervisedReport, group: int
) -> None:
    """Write a training's result into its row."""
    scores = {score.step: score for score in trained.scores}
    row.before, row.after = scores.get(0), scores.get(trained.next_step)
    steps = (await client.get(f"/v2/training-runs/{trained.run_id}/steps"))["items"]
    row.seconds = sum(step["metrics"].get("seconds:sum", 0.0) for step in steps)
    row.rollouts = round(
        group * sum(step["metrics"].get("groups_drawn:sum", 0.0) for step in steps)
    )
    row.checkpoint, row.finished = trained.head, trained.finished
    if trained.paused is not None:
        row.reason = f"paused by the guard: {trained.paused.sentence}"
    elif not trained.finished:
        row.reason = "stopped"


def _without_swept(combination: Combination) -> RunSettings:
    """Return the settings that all combinations share; swept ones have their defaults."""
    config = combination.config
    fields = type(config).model_fields
    update: dict[str, Any] = {}
    for name in combination.swept:
        root, _, key = name.partition(".")
        if key:
            left = update.get(root, getattr(config, root))
            update[root] = {other: value for other, value in left.items() if other != key}
        else:
            update[root] = fields[root].get_default(call_default_factory=True)
    return config.model_copy(update=update)
