"""Measurements of the passes of one training call, on one rank or on all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from hud.engine.learn.packed_pass import PackedPass
from hud.learning.datums import Datum, Floats
from hud.learning.losses.action_tokens import MAX_LOG_RATIO


@dataclass
class Measured:
    """Measurements of some passes, summed."""

    sums: dict[str, float] = field(default_factory=dict)
    """Over sampled tokens."""
    logprobs: list[tuple[tuple[int, ...], Floats]] = field(default_factory=list)
    """For each pass which datums lie in it, and lp of their sampled tokens, end to end."""
    passes: int = 0
    sequences: float = 0.0
    """Sum of `Datum.share`: all sequences of a run count as one."""
    tokens: int = 0
    """Computed; a shared one once."""
    shared_tokens: int = 0
    actions: int = 0
    replayed_tokens: int = 0
    """Computed with the router choices by which they were sampled."""
    expert_load: Floats | None = None
    """(routers, experts): tokens that each expert computed; None without experts."""

    def add(
        self,
        batch: PackedPass,
        sums: dict[str, float],
        logprobs: Tensor,
        expert_load: Tensor | None = None,
    ) -> None:
        """Add a pass."""
        if batch.experts is not None:
            self.replayed_tokens += int((batch.experts[:, 0, 0] >= 0).sum())
        if expert_load is not None:
            load = expert_load.cpu().numpy().astype(np.float32)
            self.expert_load = load if self.expert_load is None else self.expert_load + load
        for name, value in sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        if batch.datums:
            self.logprobs.append((batch.datums, logprobs.detach().float().cpu().numpy()))
        self.passes += 1
        self.sequences += len(batch.datums) if batch.shares is None else float(batch.shares.sum())
        self.tokens += len(batch.input_ids)
        self.shared_tokens += batch.shared_tokens
        self.actions += len(batch.sequence)

    @staticmethod
    def together(ranks: Sequence[Measured]) -> Measured:
        """Return what all ranks measured as one."""
        names = dict.fromkeys(name for rank in ranks for name in rank.sums)
        return Measured(
            sums={name: sum(rank.sums.get(name, 0.0) for rank in ranks) for name in names},
            logprobs=[row for rank in ranks for row in rank.logprobs],
            passes=sum(rank.passes for rank in ranks),
            sequences=sum(rank.sequences for rank in ranks),
            tokens=sum(rank.tokens for rank in ranks),
            shared_tokens=sum(rank.shared_tokens for rank in ranks),
            actions=sum(rank.actions for rank in ranks),
            replayed_tokens=sum(rank.replayed_tokens for rank in ranks),
            expert_load=_total([rank.expert_load for rank in ranks]),
        )

    def logprobs_of(self, datums: Sequence[Datum]) -> list[Floats]:
        """Return, for each datum, (T,) logprobs of its tokens; 0 if the mask is 0."""
        rows = [np.zeros(datum.length, np.float32) for datum in datums]
        for numbers, values in self.logprobs:
            ends = np.cumsum([datums[number].actions for number in numbers])
            for number, part in zip(numbers, np.split(values, ends[:-1]), strict=True):
                rows[number][datums[number].mask > 0] = part
        return rows


def pass_metrics(
    datums: Sequence[Datum], measured: Measured, logprobs: Sequence[Floats], *, supervised: bool
) -> dict[str, float]:
    """Return the metrics of a training call; `logprobs` are those of the trained weights, by datum."""
    sums = dict(measured.sums)
    metrics = {
        "loss:sum": sums.pop("loss", 0.0),
        "datums:sum": float(len(datums)),
        "tokens:sum": float(measured.tokens),
        "shared_tokens:sum": float(measured.shared_tokens),
        "action_tokens:sum": float(measured.actions),
        "passes:sum": float(measured.passes),
    }
    metrics |= {f"{name}:mean": total / max(measured.actions, 1) for name, total in sums.items()}
    if not supervised:
        metrics |= gap_metrics(datums, logprobs)
    metrics |= expert_metrics(measured)
    return metrics | lag_metrics([datum for datum in datums if datum.actions])


def _total(loads: Sequence[Floats | None]) -> Floats | None:
    present = [load for load in loads if load is not None]
    return sum(present[1:], start=present[0]) if present else None


def expert_metrics(measured: Measured) -> dict[str, float]:
    """Return how evenly routers distribute tokens, and the share of tokens whose choices were replayed; none without routers.

    `expert_load_entropy:mean`: entropy of a router's shares over that of equal ones, 1 where all experts get as many tokens, mean
    over routers. `expert_load:max`: the largest load of an expert, as a multiple of an equal share.
    """
    if measured.expert_load is None:
        return {}
    shares = measured.expert_load / np.maximum(measured.expert_load.sum(1, keepdims=True), 1)
    count = shares.shape[1]
    logs = np.log(shares, where=shares > 0, out=np.zeros_like(shares))
    return {
        "expert_load_entropy:mean": float(-(shares * logs).sum(1).mean() / np.log(max(count, 2))),
        "expert_load:max": float(shares.max() * count),
        "replayed_tokens:mean": measured.replayed_tokens / max(measured.tokens, 1),
    }


def gap_metrics(datums: Sequence[Datum], logprobs: Sequence[Floats]) -> dict[str, float]:
    """Return how far the trainer's logprobs are from the sampler's."""
    gaps_by_datum = [
        np.abs(computed - datum.logprobs)[datum.mask > 0]
        for datum, computed in zip(datums, logprobs, strict=True)
    ]
    gaps = (
        np.concatenate(gaps_by_datum)
        if any(len(row) for row in gaps_by_datum)
        else np.zeros(1, np.float32)
    )
    gaps = np.minimum(gaps, MAX_LOG_RATIO)
    return {
        "sampler_gap:mean": float(gaps.mean(dtype=np.float64)),
        "sampler_gap_p99:max": float(np.quantile(gaps, 0.99)),
        "sampler_gap:max": float(gaps.max()),
    }


def lag_metrics(datums: Sequence[Datum]) -> dict[str, float]:
    """Return how many steps older the weights were that sampled, where that is known."""
    lags = [datum.lag for datum in datums if datum.lag is not None]
    if not lags:
        return {}
    return {"policy_lag:mean": sum(lags) / len(lags), "policy_lag:max": max(lags)}
