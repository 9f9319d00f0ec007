"""The guard of a training run: notes guarded alarms and, with `guard = "stop"`, pauses the run until a person overrides it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from hud.errors import UsageError
from hud.train.monitoring.alarms import COMPONENT, Alarm, Bands, guarded_alarms

if TYPE_CHECKING:
    from hud.eval.results.held_out_scores import Score
    from hud.eval.run import Run
    from hud.train.monitoring.progress import Reporter
    from hud.train.run_journal import TrainingRun
    from hud.train.run_settings import RunSettings

TRAJECTORIES = 3
"""Trajectories that a pause names."""


@dataclass(frozen=True)
class Trajectory:
    """A rollout of the newest step."""

    trace_id: str
    slug: str
    reward: float
    tokens: int
    """Tokens that the policy sampled."""
    components: Mapping[str, float] = field(default_factory=dict)
    """Components of its grade, by the names of their metrics."""


@dataclass(frozen=True)
class Pause:
    """A run that the guard stopped, with the evidence."""

    step: int
    """Optimizer steps that were done."""
    alarm: str
    sentence: str
    best_step: int | None
    """Step of the best checkpoint; None without held-out tasks."""
    best_checkpoint: str | None
    """Id of the best checkpoint; None: the base, or no held-out tasks."""
    trajectories: tuple[Trajectory, ...]
    """Example rollouts of the newest step."""

    def advice(self, model: str) -> str:
        """Return the cause and the remedies, in one paragraph."""
        parts = [f"The guard paused the run after step {self.step}: {self.sentence}"]
        if self.best_step is not None:
            where = self.best_checkpoint or "base"
            parts.append(
                f"Best checkpoint: that of step {self.best_step} (hud models head {model} --set {where[:12]})."
            )
        if self.trajectories:
            shown = ", ".join(
                f"hud trace {trajectory.trace_id[:12]}" for trajectory in self.trajectories
            )
            parts.append(f"Trajectories that show it: {shown}.")
        parts.append("To go on all the same, add --override-guard to the same command.")
        return " ".join(parts)


@dataclass(frozen=True)
class GuardRecord:
    """The guard's part of a training run's state."""

    alarms: tuple[Alarm, ...] = ()
    """Alarms as they were first noted, oldest first."""
    paused: Pause | None = None
    """The pause that the run is in."""
    overridden: tuple[int, ...] = ()
    """Steps at which a person overrode a pause; alarms look at what came after the last."""


_RECORD = TypeAdapter(GuardRecord)


def guard_record(state: Mapping[str, Any]) -> GuardRecord:
    """Return the guard's record in a training run's state; an empty one where a client posted something else."""
    with suppress(ValidationError):
        return _RECORD.validate_python(state.get("guard") or {})
    return GuardRecord()


class Guard:
    """Guard of a training run."""

    def __init__(self, config: RunSettings, run: TrainingRun, reporter: Reporter) -> None:
        self.config, self.run, self.reporter = config, run, reporter
        self.bands = Bands.of(vars(config))
        self.pause: Pause | None = None
        """Event: set to stop the run."""
        self._last: list[Trajectory] = []

    @property
    def since(self) -> int:
        """Step at which the alarms begin: that of the last override, else 0."""
        return max(self.run.guard.overridden, default=0)

    async def resume(self, *, override: bool) -> None:
        """End a recorded pause: a person overrides it, or has moved the head to an earlier checkpoint."""
        record, step = self.run.guard, self.run.next_step
        if record.paused is None:
            return
        overridden = override and step >= record.paused.step
        steps = (*record.overridden, step) if overridden else record.overridden
        await self.run.record_guard(replace(record, paused=None, overridden=steps))

    def played(self, runs: Iterable[Run]) -> None:
        """Remember the rollouts of the newest step."""
        self._last = [_trajectory(run) for run in runs if run.reward is not None]

    async def check(self, *, over: bool) -> None:
        """Note alarms that are new; with `guard = "stop"`, pause the run, unless it is over anyway."""
        if self.config.guard == "off" or self.pause is not None:
            return
        run, since = self.run, self.since
        rows = [row for row in run.history if row["step"] >= since]
        scores = [score for score in run.scores if score.step >= since]
        raised = list(guarded_alarms(rows, scores, self.bands))
        noted = {alarm.name for alarm in run.guard.alarms if alarm.step >= since}
        new = [alarm for alarm in raised if alarm.name not in noted]
        for alarm in new:
            self.reporter.note(f"Guard, {alarm.name} after step {alarm.step}: {alarm.sentence}")
        record = replace(run.guard, alarms=(*run.guard.alarms, *new))
        worst = next((alarm for alarm in raised if alarm.guarded), None)
        if worst is not None and self.config.guard == "stop" and not over:
            self.pause = self._paused(worst, scores)
            record = replace(record, paused=self.pause)
        if record != run.guard:
            await run.record_guard(record)

    def _paused(self, alarm: Alarm, scores: Sequence[Score]) -> Pause:
        named = [score for score in scores if score.step == alarm.best]
        best = max(named or scores, key=lambda score: (score.mean, score.step), default=None)
        at_best: int | None
        if best is not None:
            at_best, at_checkpoint = best.step, best.checkpoint_id
        else:
            at_best = alarm.best
            at_checkpoint = None if at_best is None else self.run.checkpoint_before(at_best)
        return Pause(
            step=self.run.next_step,
            alarm=alarm.name,
            sentence=alarm.sentence,
            best_step=at_best,
            best_checkpoint=at_checkpoint,
            trajectories=tuple(showing(alarm, self._last)),
        )


def refuse_paused(run: TrainingRun, model: str, *, override: bool) -> None:
    """Raise `UsageError` for a run paused by the guard, unless it is overridden."""
    paused = run.guard.paused
    if paused is not None and run.next_step >= paused.step and not override:
        raise UsageError(paused.advice(model))


def showing(alarm: Alarm, rollouts: Sequence[Trajectory]) -> list[Trajectory]:
    """Return the rollouts that show an alarm best, of different tasks where there are several."""

    def shows(trajectory: Trajectory) -> float:
        if alarm.name == "answers grow":
            return trajectory.tokens
        if alarm.component is not None:
            return trajectory.components.get(alarm.component, 0.0) - trajectory.reward
        return trajectory.reward

    ranked = sorted(rollouts, key=lambda trajectory: (-shows(trajectory), trajectory.trace_id))
    first: dict[str, Trajectory] = {}
    for trajectory in ranked:
        first.setdefault(trajectory.slug, trajectory)
    chosen = list(first.values())[:TRAJECTORIES]
    return [*chosen, *(trajectory for trajectory in ranked if trajectory not in chosen)][
        :TRAJECTORIES
    ]


def _trajectory(run: Run) -> Trajectory:
    return Trajectory(
        trace_id=run.trace_id,
        slug=run.slug,
        reward=run.reward or 0.0,
        tokens=run.trace.usage.completion_tokens,
        components={
            f"{COMPONENT}{part['name']}:mean": float(part["value"])
            for part in run.grade.subscores
            if isinstance(part.get("value"), int | float) and "name" in part
        },
    )
