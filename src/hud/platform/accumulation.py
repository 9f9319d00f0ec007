"""What goes into a gradient between two steps: inputs resolved, and counts kept for the checkpoint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hud.errors import UsageError
from hud.platform.store import reading
from hud.trace import parse_trace
from hud.train.batches import payload_of
from hud.train.datums import Datum, Floats
from hud.train.types import DatumTensors, TrajectoryPayload

if TYPE_CHECKING:
    from hud.platform.store import Store


@dataclass
class Accumulated:
    """What went into the gradient since the last step."""

    metrics: list[dict[str, float]] = field(default_factory=list)
    traces: int = 0
    datums: int = 0
    tokens: int = 0
    loss_fn: str | None = None
    _rewards: list[float] = field(default_factory=list)

    def add(
        self, metrics: dict[str, float], datums: Sequence[Datum], traces: int, loss_fn: str
    ) -> None:
        """Count one pass."""
        self.metrics.append(metrics)
        self.traces += traces
        self.datums += len(datums)
        self.tokens += sum(datum.length for datum in datums)
        self.loss_fn = loss_fn

    def add_rewards(self, rewards: Sequence[float]) -> None:
        """Remember the rewards of a pass's runs."""
        self._rewards.extend(rewards)

    @property
    def mean_reward(self) -> float | None:
        """Mean over the runs; None where there were none."""
        return math.fsum(self._rewards) / len(self._rewards) if self._rewards else None


def as_tensors(datum: Datum, logprobs: Floats) -> DatumTensors:
    """Return a datum as a custom loss sees it; `logprobs` are the current policy's."""
    return DatumTensors(
        reward=datum.reward,
        traj_idx=datum.traj_idx,
        group_idx=datum.group_idx,
        logprobs=logprobs.tolist(),
        sampling_logprobs=datum.logprobs.tolist(),
        mask=datum.mask.tolist(),
    )


def resolve_input(
    store: Store, team: str, one: str | TrajectoryPayload, *, supervised: bool = False
) -> TrajectoryPayload:
    """Return an input as it is trained on; a trace id is looked up where traces are stored."""
    if isinstance(one, TrajectoryPayload):
        return one
    run = reading.find_run(store, team, one)
    if run["reward"] is None and not supervised:
        raise UsageError(
            f"Trace {one!r} has no reward ({run['error'] or run['status']}); leave it out, with its group."
        )
    trace = parse_trace(
        {
            "trace_id": run["trace_id"],
            "stop_reason": run["stop_reason"],
            "steps": reading.trace_steps(store, team, run["trace_id"]),
        }
    )
    payload = payload_of(trace, run["reward"] or 0.0, timed_out_reward=supervised)
    if payload is None:
        raise UsageError(
            f"Trace {one!r} holds no token ids: no policy of this platform sampled it, or its agent did not ask for "
            'them (completion_kwargs={"extra_body": {"return_token_ids": true}}). Learn from it by warm_up (hud train '
            "--from-job), which makes ids of its text."
        )
    return payload
