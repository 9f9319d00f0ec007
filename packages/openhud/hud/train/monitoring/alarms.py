"""Alarms of a training run: problems in its metrics and held-out scores, with their first step and a remedy.

Guarded alarms are signs of a reward that is gamed, or of a policy that leaves its bands: `guard = "stop"` pauses the run at
them (`hud.train.monitoring.guard`). Trends are intervals of changes, never single steps. A run without alarms may still learn
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean, median
from typing import Any, Literal

from hud.eval.results.held_out_scores import Score
from hud.eval.results.intervals import with_interval
from hud.train.monitoring.loss_metrics import HELD_OUT_LOSS, INITIAL_LOSS, loss_per_token
from hud.train.monitoring.reward_changes import (
    WIDTH,
    Steps,
    fall_from_best,
    reward_change,
    rewarded,
    rise_since,
    spans_around,
)
from hud.train.monitoring.trends import CHANGE_LEVEL, STAGNANT, between

PATIENCE = 20
"""Steps within which longer answers, or a saturated component, must increase the reward."""
SMALLEST_RISE = 0.05
"""Upper bound of a reward's change, by its interval, that counts as no rise."""
MASTERED = 0.9
"""Mean reward above which low entropy is expected."""
COMPONENT = "grade_"
"""Prefix of the metrics of a grade's components."""
LARGEST_GAP = 0.05
"""Mean difference of logprobs between sampler and trainer at the same weights; bfloat16 gives about 0.01."""
MOST_FLAT = 0.8
"""Share of groups without signal."""
MOST_FAILED = 0.2
"""Share of failed, unmeasured rollouts."""
LOSS_FACTOR = 1.5
"""Multiple of its best that a diverging loss has passed."""
LEAST_LOSS_RISE = 0.2
"""Smallest rise of a diverging loss, in nats a token: the loss of examples known by heart is near 0."""
HELD_OUT_FACTOR = 1.05
"""Multiple of its best that a rising held-out loss has passed twice."""
LARGEST_SPIKE = 10.0
"""Multiple of the usual gradient norm."""


@dataclass(frozen=True)
class Bands:
    """Limits of the guarded alarms; `guard_NAME` in a training's configuration."""

    kl: float = 0.1
    """Largest KL between sampler and trainer: k3, nats a token."""
    reference_kl: float | None = None
    """Largest KL to the reference: nats a token."""
    entropy_low: float = 0.1
    """Smallest entropy, as a multiple of that of the first steps."""
    entropy_high: float = 3.0
    """Largest entropy, as a multiple of that of the first steps."""
    growth: float = 1.5
    """Largest growth of answers in `PATIENCE` steps without reward, as a factor."""
    saturation: float = 0.95
    """Mean from which on a component is saturated."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Bands:
        """Return the bands of a recorded configuration, with defaults for what it does not hold."""
        recorded = {band.name: config.get(f"guard_{band.name}") for band in fields(cls)}
        numeric = {
            name: value for name, value in recorded.items() if isinstance(value, int | float)
        }
        return cls(**numeric)


@dataclass(frozen=True)
class Alarm:
    """A problem of a run."""

    name: str
    step: int
    """Completed steps at its detection."""
    sentence: str
    level: Literal["bad", "warn"] = "warn"
    guarded: bool = False
    """True if `guard = "stop"` pauses the run."""
    best: int | None = None
    """Step of the evaluation compared with."""
    component: str | None = None
    """Saturated component of the grade."""


def alarms(
    history: Sequence[Mapping[str, Any]], scores: Sequence[Score], bands: Bands | None = None
) -> list[Alarm]:
    """Return the alarms that `{step, metrics}` rows and held-out scores, both in order, give rise to; the worst first."""
    steps = _by_step(history)
    raised = [*guarded_alarms(history, scores, bands), *_numbers(steps)]
    return sorted(raised, key=lambda alarm: alarm.level != "bad")


def guarded_alarms(
    history: Sequence[Mapping[str, Any]], scores: Sequence[Score], bands: Bands | None = None
) -> Iterator[Alarm]:
    """Yield the alarms of held-out scores and of the reward, of KL and entropy, of length and of the grade's components."""
    steps, bands = _by_step(history), bands or Bands()
    fallen = list(_held_out(steps, scores))
    yield from fallen
    if not fallen:
        yield from _stagnation(steps, scores, bands)
    yield from _reward(steps)
    yield from _losses(steps)
    recent = steps[-WIDTH:]
    yield from _limit(
        recent, "sampler_k3:mean", bands.kl, "KL",
        "the samples come from another policy than the one that learns; lower max_lag, or cap the ratios",
        guarded=True,
    )  # fmt: skip
    if bands.reference_kl is not None:
        yield from _limit(
            recent, "reference_kl:mean", bands.reference_kl, "KL to the reference",
            "the policy has moved far from where it began; raise kl_coef, or lower the learning rate",
            guarded=True,
        )  # fmt: skip
    yield from _entropy(steps, bands)
    yield from _length(steps, bands)
    yield from _components(steps, bands)


def _held_out(steps: Steps, scores: Sequence[Score]) -> Iterator[Alarm]:
    """Yield an alarm for each set whose newest change lies below zero: guarded where it lasts and the training reward rises or falls meanwhile."""
    for held_out_set in scores[-1].sets if scores else ():
        change = held_out_set.change
        if change is None or change.low is None or change.high is None or change.high >= 0:
            continue
        step = scores[-1].step
        reward = rise_since(steps, change.since)
        shown = with_interval(change.mean, change.low, change.high, signed=True)
        fell = f"The held-out score of {held_out_set.name} after step {step} is below that after step {change.since}: {shown}"
        if reward is not None and reward.falls and change.below == 2:
            yield Alarm(
                "policy collapses",
                step,
                f"{fell}, in two evaluations in a row, and the training reward fell, too: {reward}.{_entropy_since(steps)} The "
                f"policy forgets: go back to the checkpoint of step {change.since}, and lower the learning rate.",
                "bad",
                guarded=True,
                best=change.since,
            )
            continue
        if reward is None or not reward.rises or change.below < 2:
            yield Alarm(
                "held-out falls",
                step,
                f"{fell}. Go back to the checkpoint of step {change.since}.",
                "bad",
                # Supervised steps have no training reward that would tell more.
                guarded=change.below == 2 and bool(steps) and "epoch" in steps[-1][1],
                best=change.since,
            )
            continue
        yield Alarm(
            "reward diverges",
            step,
            f"{fell}, in two evaluations in a row, while the training reward rose: {reward}. The policy learns "
            "something that the reward pays for and the held-out tasks do not.",
            "bad",
            guarded=True,
            best=change.since,
        )


def _stagnation(steps: Steps, scores: Sequence[Score], bands: Bands) -> Iterator[Alarm]:
    """Yield a warning where the training reward rose and no held-out set shows any of it over `STAGNANT` evaluations."""
    sets = scores[-1].sets if scores else ()
    changes = [held_out_set.recent for held_out_set in sets if held_out_set.recent is not None]
    if not changes or len(changes) < len(sets):
        return
    since = changes[0].since
    reward = rise_since(steps, since)
    if reward is None or reward.low <= SMALLEST_RISE:
        return
    shown = []
    for held_out_set, change in zip(sets, changes, strict=True):
        if change.low is None or change.high is None:
            return
        if change.low > 0 or change.high >= reward.low:
            return
        shown.append(
            f"{held_out_set.name} {with_interval(change.mean, change.low, change.high, signed=True)}"
        )
    yield Alarm(
        "held-out stagnates",
        scores[-1].step,
        f"The training reward rose since step {since}: {reward}. The held-out scores show nothing of it over {STAGNANT} "
        f"evaluations: {', '.join(shown)}.{_meanwhile(steps, since, bands)} The policy learns something that the reward pays for "
        "and the held-out tasks do not.",
        best=since,
    )


def _meanwhile(steps: Steps, since: int, bands: Bands) -> str:
    """Return a sentence about the length of rollouts where it grew since an evaluation; empty otherwise."""
    parts = []
    for name, unit in (("rollout_tokens:mean", "tokens"), ("turns:mean", "turns")):
        before, after = spans_around(_series(steps, name), since)
        if before and after and fmean(after) > bands.growth * fmean(before):
            parts.append(f"from {fmean(before):.1f} to {fmean(after):.1f} {unit}")
    return f" Meanwhile a rollout grew {' and '.join(parts)}." if parts else ""


def _entropy_since(steps: Steps) -> str:
    values = _series(steps, "entropy:mean")
    if len(values) < 2:
        return ""
    return f" The entropy went from {_mean(values[:2]):.3f} to {_mean(values[-WIDTH:]):.3f}."


def _entropy(steps: Steps, bands: Bands) -> Iterator[Alarm]:
    values = _series(steps, "entropy:mean")
    if len(values) < 2 * WIDTH:
        return
    first, last = _mean(values[:WIDTH]), _mean(values[-WIDTH:])
    step = values[-1][0]
    if first <= 0:
        return
    low, high = last < bands.entropy_low * first, last > bands.entropy_high * first
    if not (low or high) or _learns(steps):
        return
    fall, rise = fall_from_best(steps), rise_since(steps, 0)
    fell = fall is not None and fall[1].falls
    rose = rise is not None and rise.rises and not fell
    evidence = f"The entropy went from {first:.3f} to {last:.3f}"
    if fall is not None and fell:
        evidence += f", and the training reward fell: {fall[1]}"
    elif rise is not None:
        evidence += (
            f", and the training reward {'no longer rises' if rose else 'did not rise'}: {rise}"
        )
    if high and not rose:
        cause = "The policy forgets" if fell else "Answers become random"
        cure = "lower the learning rate, or go back"
        yield Alarm("entropy grows", step, f"{evidence}. {cause}: {cure}.", guarded=fell)
    if low:
        cause = "The policy hardly tries anything else any more."
        yield Alarm("entropy collapses", step, f"{evidence}. {cause}", guarded=not rose)


def _learns(steps: Steps) -> bool:
    """True if the reward is high, or has risen in the last `PATIENCE` steps."""
    rows = rewarded(steps)
    if not rows:
        return False
    trend = reward_change(rows[-PATIENCE - WIDTH :][:WIDTH], rows[-WIDTH:])
    high = fmean(row["rollout_reward:mean"] for _, row in rows[-WIDTH:]) >= MASTERED
    return high or (trend is not None and trend.rises)


def _length(steps: Steps, bands: Bands) -> Iterator[Alarm]:
    names = ("rollout_tokens:mean", "rollout_reward:mean")
    rows = [row for row in steps[-PATIENCE - WIDTH :] if all(name in row[1] for name in names)]
    if len(rows) < PATIENCE + WIDTH:
        return
    (lengths, rewards) = ([metrics[name] for _, metrics in rows] for name in names)
    length = between(lengths[:WIDTH], lengths[-WIDTH:])
    reward = between(rewards[:WIDTH], rewards[-WIDTH:])
    before, now = fmean(lengths[:WIDTH]), fmean(lengths[-WIDTH:])
    if length is None or reward is None or not length.rises or now < bands.growth * before:
        return
    if reward.high < SMALLEST_RISE:
        yield Alarm(
            "answers grow",
            rows[-1][0],
            f"A rollout grew from {before:.0f} to {now:.0f} tokens in {PATIENCE} steps, and the training reward did not "
            f"rise: {reward}. Normalize the loss by length, or pay for short answers.",
            guarded=True,
        )


def _components(steps: Steps, bands: Bands) -> Iterator[Alarm]:
    """Yield an alarm for each component that rose and saturated while the others did not rise."""
    names = sorted({name for _, row in steps[-1:] for name in row if name.startswith(COMPONENT)})
    rows = [row for row in steps if all(name in row[1] for name in names)]
    if len(names) < 2 or len(rows) < PATIENCE + WIDTH:
        return
    for name in names:
        values = [metrics[name] for _, metrics in rows]
        others = [fmean(metrics[other] for other in names if other != name) for _, metrics in rows]
        rise = between(values[:WIDTH], values[-WIDTH:])
        outcome = between(others[-PATIENCE - WIDTH :][:WIDTH], others[-WIDTH:])
        if rise is None or outcome is None or not rise.rises:
            continue
        saturated = fmean(values[-PATIENCE:]) >= bands.saturation > fmean(others[-WIDTH:])
        if saturated and outcome.high < SMALLEST_RISE:
            called = name.removeprefix(COMPONENT).partition(":")[0]
            yield Alarm(
                "component saturates",
                rows[-1][0],
                f"The component {called!r} of the grade has been at {fmean(values[-PATIENCE:]):.3f} for {PATIENCE} steps, and "
                f"the others did not rise: {outcome}. Make it a condition of the reward (gate) rather than a part.",
                guarded=True,
                component=name,
            )


def _reward(steps: Steps) -> Iterator[Alarm]:
    """Yield an alarm where the training reward is below half of its best, by the interval of the change."""
    fall = fall_from_best(steps)
    if fall is None or not fall[1].falls:
        return
    last = fmean(metrics["rollout_reward:mean"] for _, metrics in rewarded(steps)[-WIDTH:])
    best = last - fall[1].mean
    if best > 0.1 and last < best / 2:
        yield Alarm(
            "reward collapses",
            steps[-1][0],
            f"The training reward fell to {last:.3f}, less than half of the {best:.3f} around step {fall[0]}: {fall[1]}."
            f"{_entropy_since(steps)} The policy forgets: lower the learning rate, or go back.",
            "bad",
            guarded=True,
        )


def _losses(steps: Steps) -> Iterator[Alarm]:
    """Yield an alarm where the loss of supervised steps leaves its best span, and where the held-out loss alone rises."""
    rows = [
        (step, loss)
        for step, metrics in steps
        if "epoch" in metrics and (loss := loss_per_token(metrics)) is not None
    ]
    ends = range(WIDTH, len(rows) - WIDTH + 1)
    last = [loss for _, loss in rows[-WIDTH:]]
    if ends:
        spans = {rows[end - 1][0]: [loss for _, loss in rows[end - WIDTH : end]] for end in ends}
        best = min(spans, key=lambda step: fmean(spans[step]))
        before, now = fmean(spans[best]), fmean(last)
        change = between(spans[best], last, CHANGE_LEVEL / len(spans))
        far = now > max(LOSS_FACTOR * before, before + LEAST_LOSS_RISE)
        if change is not None and change.rises and far:
            yield Alarm(
                "loss diverges",
                rows[-1][0],
                f"The loss per token rose from {before:.3f} at step {best} to {now:.3f}: {change}. Lower the learning rate, or go back.",
                "bad",
                guarded=True,
                best=best,
            )
            return
    yield from _held_out_loss(steps, rows)


def _held_out_loss(steps: Steps, losses: Sequence[tuple[int, float]]) -> Iterator[Alarm]:
    """Yield an alarm where the two newest held-out losses are above the best and the loss of training fell meanwhile."""
    initial = [(0, metrics[INITIAL_LOSS]) for _, metrics in steps[:1] if INITIAL_LOSS in metrics]
    held_out = initial + _series(steps, HELD_OUT_LOSS)
    if len(held_out) < 3:
        return
    best, least = min(held_out[:-2], key=lambda pair: pair[1])
    newest = [loss for _, loss in held_out[-2:]]
    if min(newest) <= HELD_OUT_FACTOR * least:
        return
    before, after = spans_around(losses, best)
    if before and after and fmean(after) < fmean(before):
        yield Alarm(
            "held-out loss rises",
            held_out[-1][0],
            f"The held-out loss rose from {least:.3f} after step {best} to {newest[-1]:.3f}, and that of training fell from "
            f"{fmean(before):.3f} to {fmean(after):.3f}: the model learns its examples by heart. Take the checkpoint of step {best}.",
            "bad",
            guarded=True,
            best=best,
        )


def _numbers(steps: Steps) -> Iterator[Alarm]:
    recent = steps[-WIDTH:]
    yield from _limit(
        recent, "sampler_gap:mean", LARGEST_GAP, "logprob gap",
        "sampler and trainer compute different probabilities for the same tokens",
    )  # fmt: skip
    yield from _share(
        recent, "groups_without_spread:sum", "groups_drawn:sum", MOST_FLAT, "no signal",
        "of the groups have no signal: use tasks that are solved sometimes, or larger groups",
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


def _failures(recent: Steps) -> Iterator[Alarm]:
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
    recent: Steps, key: str, most: float, name: str, why: str, *, guarded: bool = False
) -> Iterator[Alarm]:
    values = _series(recent, key)
    if values and (mean := fmean(value for _, value in values)) > most:
        yield Alarm(
            name,
            values[-1][0],
            f"The {name} is {mean:.3f}, above {most:g}: {why}.",
            guarded=guarded,
        )


def _share(
    recent: Steps, part: str, total_key: str, most: float, name: str, why: str
) -> Iterator[Alarm]:
    total = sum(metrics.get(total_key, 0.0) for _, metrics in recent)
    share = sum(metrics.get(part, 0.0) for _, metrics in recent) / total if total else 0.0
    if len(recent) >= WIDTH and share > most:
        yield Alarm(name, recent[-1][0], f"{share:.0%} {why}.")


def _series(steps: Steps, key: str) -> list[tuple[int, float]]:
    return [(step, metrics[key]) for step, metrics in steps if key in metrics]


def _mean(values: Sequence[tuple[int, float]]) -> float:
    return fmean(value for _, value in values)


def _by_step(history: Sequence[Mapping[str, Any]]) -> Steps:
    return [(int(row["step"]) + 1, row["metrics"]) for row in history]
