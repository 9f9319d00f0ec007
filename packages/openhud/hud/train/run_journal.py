"""The journal of a training run: its state, the metrics of each step, and the step to resume at.

A step is complete with its checkpoint, which has the step's idempotency key, so a run killed between saving and reporting
does not repeat the step. Uses the platform's routes and a JSONL file.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hud import settings
from hud.client import Client
from hud.client.contributor import Contributor
from hud.durable_files import append_lines
from hud.errors import StoreError
from hud.eval.results.held_out_scores import Score, scores_of
from hud.learning.wire_types import DiscardedGradient
from hud.train.client import TrainingClient
from hud.train.monitoring.evaluations import evaluation_lines
from hud.train.monitoring.guard import GuardRecord, guard_record, refuse_paused
from hud.train.rollouts.curriculum import PlayedGroup, played_groups
from hud.train.run_settings import RunSettings


@dataclass
class TrainingRun:
    """A training run, as stored by the platform."""

    client: Client
    id: str
    model_id: str
    contributor: Contributor
    """The client name of its exclusive session."""
    next_step: int
    head: str | None
    """The model's head, as last read or set by this run."""
    scores: list[Score] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    """Ids of the jobs of its rollouts: one for each start or resumption."""
    evaluations: list[str] = field(default_factory=list)
    """Ids of the jobs of its held-out evaluations, interrupted ones included."""
    nodes: dict[int, str] = field(default_factory=dict)
    """Checkpoint of each step, by the number of completed steps."""
    resumed: bool = False
    over: bool = False
    """True for a run that finished before and of which no more steps are asked for."""
    notes: list[str] = field(default_factory=list)
    metrics_file: Path = Path("metrics.jsonl")
    folder: Path = Path()
    start: str | None = None
    """The model's head at the run's start."""
    played: list[PlayedGroup] = field(default_factory=list)
    """With `curriculum = "signal"`: recent groups of steps before `next_step`."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """`{step, metrics}` of every step so far."""
    guard: GuardRecord = field(default_factory=GuardRecord)

    def checkpoint_before(self, step: int) -> str | None:
        """Return the checkpoint at the start of a step."""
        done = [steps_done for steps_done in self.nodes if steps_done <= step]
        return self.nodes[max(done)] if done else self.start

    def key(self, step: int) -> str:
        """The idempotency key of a step's update."""
        return f"{self.id}:{step}"

    async def report(self, step: int, metrics: dict[str, float], checkpoint_id: str | None) -> None:
        """Record a completed step, in the store and in the JSONL file."""
        if checkpoint_id is not None:
            self.head = checkpoint_id
            self.nodes[step + 1] = checkpoint_id
        self.next_step = step + 1
        while self.history and self.history[-1]["step"] >= step:
            self.history.pop()
        self.history.append({"step": step, "metrics": metrics})
        await self.client.post(
            f"/v2/training-runs/{self.id}/steps",
            {
                "step": step,
                "next_step": self.next_step,
                "metrics": metrics,
                "state": {"checkpoint": self.head},
            },
        )
        self._append({"step": step, "checkpoint": checkpoint_id, **metrics})

    async def add_score(self, score: Score) -> None:
        """Record a held-out score, and log the line of its evaluation."""
        self.scores = [
            *(recorded for recorded in self.scores if recorded.step != score.step),
            score,
        ]
        shown = [recorded.as_dict() for recorded in self.scores]
        await self.client.post(f"/v2/training-runs/{self.id}", {"state": {"scores": shown}})
        line = evaluation_lines(self.history, self.scores)[-1]
        self._append({**line, "held_out": score.as_dict()})

    async def record_guard(self, record: GuardRecord) -> None:
        """Record alarms, a pause or its end."""
        self.guard, shown = record, asdict(record)
        await self.client.post(f"/v2/training-runs/{self.id}", {"state": {"guard": shown}})
        self._append({"guard": shown})

    async def add_played(self, played: list[PlayedGroup]) -> None:
        """Record the groups for the curriculum of later steps, before the step's completion, so that none is lost."""
        self.played = played
        rows = [list(group) for group in played]
        await self.client.post(f"/v2/training-runs/{self.id}", {"state": {"played": rows}})

    async def add_job(self, job_id: str) -> None:
        """Record a job of this run's rollouts, before it plays any."""
        self.jobs = [*self.jobs, job_id]
        await self.client.post(f"/v2/training-runs/{self.id}", {"state": {"jobs": self.jobs}})

    async def add_evaluation(self, job_id: str) -> None:
        """Record the job of a held-out evaluation, before it plays any run."""
        self.evaluations = [*self.evaluations, job_id]
        state = {"evaluations": self.evaluations}
        await self.client.post(f"/v2/training-runs/{self.id}", {"state": state})

    async def end(self, status: str) -> None:
        """Record the end: `finished` runs are never resumed."""
        await self.client.post(f"/v2/training-runs/{self.id}", {"status": status})

    def _append(self, line: dict[str, Any]) -> None:
        try:
            append_lines(self.metrics_file, json.dumps(line).encode() + b"\n")
        except OSError as error:
            raise StoreError(
                f"{self.metrics_file} cannot be written: {error.strerror}. The store has every step before it."
            ) from error


async def open_run(
    client: Client,
    config: RunSettings,
    *,
    fresh: bool = False,
    override_guard: bool = False,
) -> TrainingRun:
    """Return the newest run of this configuration, to be continued; a new one from the head where there is none.

    A finished run is continued if more steps are asked for than it took, and is `over` otherwise. With `fresh`, the run is
    new. Raises `ConflictError` if another process trains the model, and `UsageError` for a teacher that cannot score its tokens, and
    for a run paused by the guard, unless `override_guard`.
    """
    model = await client.get("/v2/models/resolve", params={"model": config.model})
    trainer = TrainingClient(model["id"], client=client, recorded=False)
    arguments = config.loss_arguments
    opened = await trainer.open(
        alone=True,
        teacher=arguments.get("teacher"),
        pinned=arguments.get("teacher_hint") is not None,
    )
    head = opened.head
    new = TrainingRun(client, "", model["id"], trainer.contributor, 0, head=head, start=head)
    try:
        run = await _resume_or_begin(new, config, fresh, override_guard)
    except BaseException:
        await trainer.close()
        raise
    if opened.discarded is not None:
        run.notes.append(discarded_note(opened.discarded))
    return run


def discarded_note(gradient: DiscardedGradient) -> str:
    """Report the gradient that was discarded at the run's start, with its client."""
    return f"Discarded a gradient that was accumulated and never applied: {gradient}."


def over_note(run: TrainingRun, steps: int) -> str:
    """Report that a run finished before, and how to train more."""
    ended = "" if run.next_step >= steps else f" of {steps}, as nothing was left to learn"
    return (
        f"Training run {run.id[:12]} of these settings has finished already, after {run.next_step} steps{ended}; nothing is trained. "
        f"For more, give --steps above {steps}; for a new run from the head, --fresh."
    )


async def _resume_or_begin(
    new: TrainingRun, config: RunSettings, fresh: bool, override_guard: bool
) -> TrainingRun:
    """Return the newest run of `new`'s configuration, at its step, or create a new row on the platform."""
    client, model_id = new.client, new.model_id
    rows = (await client.get("/v2/training-runs", params={"model": model_id}))["items"]
    own_rows = (
        run_row for run_row in rows if run_row["state"].get("fingerprint") == config.fingerprint
    )
    row = next(own_rows, None)
    nodes: list[dict[str, Any]] = []
    run = None
    if row is not None and not fresh:
        nodes = await client.get(f"/v2/models/{model_id}/checkpoints")
        run = _over(new, config, row, nodes) or _resumed(new, config, row, nodes)
        if run is None:
            new.notes.append(
                "A run of this configuration is there, but the head has been moved away from it; this is a new run, from the "
                "head."
            )
    shown = config.model_dump(mode="json")
    if run is None or row is None:
        run = new
        state = {"fingerprint": config.fingerprint, "start": new.head, "checkpoint": new.head}
        body = {"model": model_id, "config": shown, "state": state}
        run.id = (await client.post("/v2/training-runs", body))["id"]
    elif not run.over:
        refuse_paused(run, config.model, override=override_guard)
    run.folder = settings.load().home / "training" / run.id
    run.metrics_file = Path(config.metrics_file or run.folder / "metrics.jsonl")
    if run.resumed and row is not None:
        steps = (await client.get(f"/v2/training-runs/{run.id}/steps"))["items"]
        run.history = [report for report in steps if report["step"] < run.next_step]
        if not run.over:
            await _make_up_for(run, row["next_step"], nodes)
            # More steps than before may be asked for.
            body = {"status": "running", "config": shown}
            await client.post(f"/v2/training-runs/{run.id}", body)
    return run


def _over(
    new: TrainingRun, config: RunSettings, row: dict[str, Any], nodes: list[dict[str, Any]]
) -> TrainingRun | None:
    """Return a finished run of which no more steps are asked for and whose result the head holds; else None."""
    if row["status"] != "finished" or config.total_steps > int(row["config"].get("steps") or 0):
        return None
    parents = {node["id"]: node["prev_model_checkpoint_id"] for node in nodes}
    state, place = row["state"], new.head
    while place is not None and place != state.get("checkpoint"):
        place = parents.get(place)
    if place != state.get("checkpoint"):
        return None
    return _continued(new, row, row["next_step"], nodes={}, over=True)


async def _make_up_for(run: TrainingRun, reported: int, nodes: list[dict[str, Any]]) -> None:
    """Report steps that a killed process saved, but did not report."""
    by_id = {node["id"]: node for node in nodes}
    going_on, head = run.next_step, run.head
    for done in sorted(run.nodes):
        if done > reported:
            node = by_id[run.nodes[done]]
            metrics = {
                **node["metrics"],
                "rollout_reward:mean": node["mean_reward"],
                "model_step": float(node["step"]),
            }
            await run.report(done - 1, metrics, node["id"])
    run.next_step, run.head = going_on, head


def _resumed(
    new: TrainingRun, config: RunSettings, row: dict[str, Any], nodes: list[dict[str, Any]]
) -> TrainingRun | None:
    """Return the run at the step after the head, or None if the head is not on its path."""
    parents = {node["id"]: node["prev_model_checkpoint_id"] for node in nodes}
    keys = {node["id"]: node.get("idempotency_key") or "" for node in nodes}
    path: dict[int, str] = {}
    place = new.head
    while place is not None and place in keys:
        run_id, _, step = keys[place].partition(":")
        if run_id != row["id"]:
            break
        path[int(step) + 1] = place
        place = parents[place]
    state = row["state"]
    if not path and new.head != state.get("start"):
        return None
    done = max(path, default=0)
    # Steps without signal make no checkpoint; only their report exists.
    reported = config.empty_steps and state.get("checkpoint") == new.head
    return _continued(new, row, max(done, row["next_step"]) if reported else done, nodes=path)


def _continued(
    new: TrainingRun,
    row: dict[str, Any],
    next_step: int,
    *,
    nodes: dict[int, str],
    over: bool = False,
) -> TrainingRun:
    """Return a recorded run before `next_step`, with its checkpoints by the number of steps done."""
    state = row["state"]
    return replace(
        new,
        id=row["id"],
        next_step=next_step,
        scores=[score for score in scores_of(state) if score.step <= next_step],
        jobs=list(state.get("jobs") or []),
        evaluations=list(state.get("evaluations") or []),
        nodes=nodes,
        resumed=True,
        over=over,
        start=state.get("start"),
        played=[group for group in played_groups(state.get("played")) if group.step < next_step],
        guard=guard_record(state),
    )
