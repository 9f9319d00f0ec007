"""Alarms over a training run: what a person who watches the curves would not want to miss.

Each looks at what the run has recorded and says in one sentence what is wrong, since when, and what to do. They judge
what is measured anyway; a run without alarms may still learn nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Literal

from hud.train.monitoring.progress import Score

WIDTH = 5
"""Steps that are looked at together: one step's rewards are noise."""
LARGEST_KL = 0.1
"""Nats for each token between sampler and trainer, above which updates are taken from another policy's samples."""
LARGEST_GAP = 0.05
"""Mean difference of logprobs between sampler and trainer at the same weights; bfloat16 gives about 0.01."""
SMALLEST_ENTROPY = 0.1
"""Of the entropy at the beginning."""
MOST_FLAT = 0.8
"""Share of groups without spread."""
MOST_FAILED = 0.2
"""Share of rollouts that failed and were not measured."""
LARGEST_SPIKE = 10.0
"""Times the usual length of the gradient."""

Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Alarm:
    """Something that is wrong with a run."""

    name: str
    step: int
    """Steps that were done when it was seen."""
    sentence: str
    level: Literal["bad", "warn"] = "warn"


def alarms(history: Sequence[Mapping[str, Any]], scores: Sequence[Score]) -> list[Alarm]:
    """Return the alarms that `{step, metrics}` rows and held-out scores, both in order, give rise to; the worst first."""
    steps = [(int(row["step"]) + 1, row["metrics"]) for row in history]
    found = [*_scores(scores), *_rewards(steps), *_numbers(steps)]
    return sorted(found, key=lambda alarm: alarm.level != "bad")


def _scores(scores: Sequence[Score]) -> Iterator[Alarm]:
    if len(scores) < 2:
        return
    *earlier, last = scores
    best = max(earlier, key=lambda score: score.mean)
    if last.high is not None and best.low is not None and last.high < best.low:
        yield Alarm(
            "held-out falls",
            last.step,
            f"The held-out score fell from {best.mean:.3f} after step {best.step} to {last.mean:.3f} after step "
            f"{last.step}, beyond their intervals: go back to the checkpoint of step {best.step}.",
            "bad",
        )


def _rewards(steps: Sequence[tuple[int, Metrics]]) -> Iterator[Alarm]:
    values = _series(steps, "rollout_reward:mean")
    if len(values) < 2 * WIDTH:
        return
    means = [
        (values[end - 1][0], fmean(value for _, value in values[end - WIDTH : end]))
        for end in range(WIDTH, len(values) + 1)
    ]
    best, last = max(means, key=lambda one: one[1]), means[-1]
    if best[1] > 0.1 and last[1] < best[1] / 2:
        yield Alarm(
            "reward collapses",
            last[0],
            f"The training reward fell to {last[1]:.3f}, less than half of the {best[1]:.3f} around step {best[0]}: "
            "lower the learning rate, or go back.",
            "bad",
        )


def _numbers(steps: Sequence[tuple[int, Metrics]]) -> Iterator[Alarm]:
    recent = steps[-WIDTH:]
    yield from _limit(
        recent, "sampler_k3:mean", LARGEST_KL, "KL",
        "the samples come from another policy than the one that learns; lower max_lag, or cap the ratios",
    )  # fmt: skip
    yield from _limit(
        recent, "sampler_gap:mean", LARGEST_GAP, "logprob gap",
        "sampler and trainer compute different probabilities for the same tokens",
    )  # fmt: skip
    entropy = _series(steps, "entropy:mean")
    if len(entropy) >= 2 * WIDTH:
        first = fmean(value for _, value in entropy[:WIDTH])
        last = fmean(value for _, value in entropy[-WIDTH:])
        if first > 0 and last < SMALLEST_ENTROPY * first:
            yield Alarm(
                "entropy collapses",
                entropy[-1][0],
                f"The entropy fell from {first:.3f} to {last:.3f}: the policy hardly tries anything else any more.",
            )
    yield from _share(
        recent, "groups_without_spread:sum", "groups_drawn:sum", MOST_FLAT, "no spread",
        "of the groups have no spread and teach nothing: use tasks that are solved sometimes, or larger groups",
    )  # fmt: skip
    yield from _failures(recent)
    lengths = _series(steps, "grad_norm:mean")
    if len(lengths) > 2 * WIDTH:
        usual = median(value for _, value in lengths[:-1])
        step, last = lengths[-1]
        if usual > 0 and last > LARGEST_SPIKE * usual:
            yield Alarm(
                "gradient spike",
                step,
                f"The gradient of step {step} was {last / usual:.0f} times as long as usual: set max_grad_norm.",
            )


def _failures(recent: Sequence[tuple[int, Metrics]]) -> Iterator[Alarm]:
    failed = sum(metrics.get("failed_rollouts:sum", 0.0) for _, metrics in recent)
    played = failed + sum(metrics.get("runs:sum", 0.0) for _, metrics in recent)
    if played and failed / played > MOST_FAILED:
        yield Alarm(
            "failures",
            recent[-1][0],
            f"{failed:.0f} rollouts of the last {len(recent)} steps failed and were not measured; the job says why.",
            "bad",
        )


def _limit(
    recent: Sequence[tuple[int, Metrics]], key: str, most: float, name: str, why: str
) -> Iterator[Alarm]:
    values = _series(recent, key)
    if values and (mean := fmean(value for _, value in values)) > most:
        yield Alarm(
            name,
            values[-1][0],
            f"The {name} is {mean:.3f}, above {most:g}: {why}.",
        )


def _share(
    recent: Sequence[tuple[int, Metrics]], part: str, whole: str, most: float, name: str, why: str
) -> Iterator[Alarm]:
    total = sum(metrics.get(whole, 0.0) for _, metrics in recent)
    share = sum(metrics.get(part, 0.0) for _, metrics in recent) / total if total else 0.0
    if len(recent) >= WIDTH and share > most:
        yield Alarm(name, recent[-1][0], f"{share:.0%} {why}.")


def _series(steps: Sequence[tuple[int, Metrics]], key: str) -> list[tuple[int, float]]:
    return [(step, metrics[key]) for step, metrics in steps if key in metrics]
