"""Baselines of benchmarks: how people and reference solvers did, and a run's percentile against them."""

from hud.benchmarks.baseline.scores import (
    NO_PEOPLE,
    Baseline,
    BaselineScore,
    TaskBaseline,
    baseline_score,
)

__all__ = ["NO_PEOPLE", "Baseline", "BaselineScore", "TaskBaseline", "baseline_score"]
