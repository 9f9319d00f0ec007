"""Trainer logprobs of single tokens of runs, alongside the sampler's, and which models were trained on which runs.

Only the logprobs of the newest training pass over a run are stored, so that all of a run are from the same weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from hud.trace.sampled.token_columns import unpack_logprobs
from hud_platform.store import Store, tables
from hud_platform.store.ingest import upsert
from hud_platform.store.queries import in_parts

_COLUMNS = ("logprobs", "model_id", "step", "checkpoint", "reward", "reward_rule")


@dataclass(frozen=True)
class PassWeights:
    """Weights of a training pass."""

    model_id: str
    step: int
    """Number of optimizer steps."""
    checkpoint: str | None
    """None: the base weights."""


@dataclass(frozen=True)
class ComputedRun:
    """Logprobs of one training pass over a run, by turn."""

    trace_id: str
    turns: list[tuple[bytes, bytes]]
    """Output ids of each turn and their logprobs, both packed by `hud.trace.sampled.token_columns`; NaN: not trained on."""
    reward: float | None = None
    """Reward that was trained on."""


def record_pass(
    store: Store, team: str, weights: PassWeights, computed: Sequence[ComputedRun]
) -> None:
    """Store the logprobs of a pass over a team's runs, and that the model was trained on them, in one transaction; runs that
    are not recorded are skipped.

    A turn is assigned to the step with the same recorded output, in the order of the run.
    """
    by_trace: dict[str, list[ComputedRun]] = defaultdict(list)
    for run in computed:
        by_trace[run.trace_id].append(run)
    traces = sorted(by_trace)
    with store.begin() as connection:
        for some in in_parts(traces):
            outputs_by_trace = _known_outputs(connection, team, some)
            rules = _reward_rules(connection, team, some)
            trained = [{"model_id": weights.model_id, "trace_id": trace} for trace in rules]
            upsert(connection, tables.trained_runs, trained)
            rows = [
                {
                    "trace_id": trace_id,
                    "step_id": step_id,
                    "logprobs": logprobs,
                    "reward": by_trace[trace_id][-1].reward,
                    "reward_rule": rules.get(trace_id),
                    **asdict(weights),
                }
                for trace_id, outputs in outputs_by_trace.items()
                for step_id, logprobs in _placed(by_trace[trace_id], outputs).items()
            ]
            _drop_older(connection, weights, sorted({str(row["trace_id"]) for row in rows}))
            upsert(connection, tables.trainer_logprobs, rows, update=_COLUMNS)


def logprobs_between(store: Store, trace_id: str, first: int, last: int) -> dict[int, list[float]]:
    """Return the trainer's logprobs of the steps from `first` to `last`, by step; NaN for tokens without one."""
    table = tables.trainer_logprobs
    rows = store.rows(
        sa.select(table.c.step_id, table.c.logprobs).where(
            table.c.trace_id == trace_id, table.c.step_id.between(first, last)
        )
    )
    return {row.step_id: unpack_logprobs(row.logprobs) for row in rows}


def gaps_of(store: Store, trace_id: str) -> tuple[PassWeights, npt.NDArray[np.float64]] | None:
    """Return the weights of the newest pass over a run, and |trainer's - sampler's logprob| of every token with both.

    None if no pass has used the run.
    """
    table, samples = tables.trainer_logprobs, tables.samples
    same = sa.and_(samples.c.trace_id == table.c.trace_id, samples.c.step_id == table.c.step_id)
    rows = store.rows(
        sa.select(table, samples.c.logprobs.label("sampled"))
        .select_from(table.join(samples, same))
        .where(table.c.trace_id == trace_id)
        .order_by(table.c.step_id)
    )
    if not rows:
        return None
    gaps = np.concatenate([_gaps(row.logprobs, row.sampled) for row in rows])
    weights = PassWeights(rows[0].model_id, rows[0].step, rows[0].checkpoint)
    return weights, gaps[np.isfinite(gaps)]


def _gaps(computed: bytes, sampled: bytes) -> npt.NDArray[np.float64]:
    if len(computed) != len(sampled):
        return np.zeros(0)  # The sampler recorded no logprobs.
    trained, theirs = (
        np.frombuffer(logprobs, "<f4").astype(np.float64) for logprobs in (computed, sampled)
    )
    # The difference of two infinities is undefined.
    with np.errstate(invalid="ignore"):
        return np.abs(trained - theirs)


def _known_outputs(
    connection: sa.Connection, team: str, traces: Sequence[str]
) -> dict[str, dict[bytes, list[int]]]:
    """Return the steps of each output, in order, for each of these traces with samples of the team."""
    samples, runs = tables.samples, tables.runs
    rows: Any = connection.execute(
        sa.select(samples.c.trace_id, samples.c.step_id, samples.c.output)
        .select_from(samples.join(runs, runs.c.trace_id == samples.c.trace_id))
        .where(samples.c.trace_id.in_(traces), runs.c.team_id == team)
        .order_by(samples.c.trace_id, samples.c.step_id)
    )
    by_trace: dict[str, dict[bytes, list[int]]] = {}
    for trace_id, step_id, output in rows:
        by_trace.setdefault(trace_id, {}).setdefault(output, []).append(step_id)
    return by_trace


def _reward_rules(
    connection: sa.Connection, team: str, traces: Sequence[str]
) -> dict[str, int | None]:
    """Return the versions of the rules of the rewards of a team's runs, by trace."""
    runs = tables.runs
    query = sa.select(runs.c.trace_id, runs.c.reward_rule).where(
        runs.c.trace_id.in_(traces), runs.c.team_id == team
    )
    return {row.trace_id: row.reward_rule for row in connection.execute(query)}


def _placed(parts: Sequence[ComputedRun], outputs: dict[bytes, list[int]]) -> dict[int, bytes]:
    """Return logprobs by the steps with the same recorded outputs, in order."""
    by_step: dict[int, bytes] = {}
    for part in parts:
        last = -1
        for output, logprobs in part.turns:
            step = next(
                (candidate for candidate in outputs.get(output, ()) if candidate > last), None
            )
            if step is not None:
                by_step[step] = logprobs
                last = step
    return by_step


def _drop_older(connection: sa.Connection, weights: PassWeights, traces: Sequence[str]) -> None:
    """Delete the logprobs of these runs from other weights."""
    table = tables.trainer_logprobs
    others = sa.or_(
        table.c.model_id != weights.model_id,
        table.c.step != weights.step,
        table.c.checkpoint.is_distinct_from(weights.checkpoint),
    )
    connection.execute(sa.delete(table).where(table.c.trace_id.in_(traces), others))
