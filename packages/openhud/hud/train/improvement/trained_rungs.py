"""Rungs that train a fork: imitation of the best measured runs, distillation, and reinforcement, by the code of `hud train`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hud.errors import UsageError
from hud.eval.tasksets.taskset import Taskset
from hud.train.config import TrainConfig
from hud.train.loop import train
from hud.train.supervised.config import SupervisedConfig
from hud.train.supervised.supervised_run import learn_from

if TYPE_CHECKING:
    from hud.eval.scheduler import StopSignal
    from hud.train.improvement.ladder import Ladder
    from hud.train.improvement.plan import PlannedRung

PARTS_IN_VAIN = 2
"""Parts of a rung in a row that gain too little, after which it ends."""
_IMITATED_BATCH = 16


async def climb_by_imitation(ladder: Ladder, fork: str, stop: StopSignal) -> tuple[str, int]:
    """Train a fork on the best measured run of each task; return the reason of the end, and the steps."""
    config, standing = ladder.config, ladder.standing
    assert standing is not None
    rate = {} if config.imitation_lr is None else {"lr": config.imitation_lr}
    supervised = SupervisedConfig(
        model=fork,
        jobs=[standing.job],
        best_of=standing.group,
        # A task that always earns less than the mean teaches nothing.
        min_reward=standing.mean,
        epochs=config.epochs,
        batch=_IMITATED_BATCH,
        guard="off",
        **rate,
        **config.shared,
    )
    tasks = Taskset("tasks", ladder.splits.tasks)
    began = perf_counter()
    report = await learn_from(supervised, tasks=tasks, runtime=ladder.runtime, stop=stop)
    if not report.finished:
        return "the time of the rung ended", report.next_step
    seconds = perf_counter() - began
    return f"{report.runs} runs, {report.steps} steps in {seconds:.0f} s", report.next_step


async def climb_by_steps(
    ladder: Ladder, rung: PlannedRung, fork: str, stop: StopSignal, rate: float
) -> tuple[str, int]:
    """Train a fork part by part while its training reward rises by more than `rate` per rollout.

    Return the reason of the end, and the steps. Rollouts of a part are reserved before it is played.
    """
    config, account = ladder.config, ladder.account
    part, parts = rung.least, ladder.record.state.get("parts") or {}
    taken, done, vain = parts.get(rung.name, (0, 0, 0))
    reason = f"its share of {rung.most:,} rollouts is taken"
    settings: dict[str, Any] = {
        "model": fork,
        "group": config.group if rung.name == "reinforce" else 1,
        "tasks_per_step": min(config.tasks_per_step, len(ladder.splits.tasks)),
        # Groups without signal are not replaced, so that a step has a fixed number of rollouts.
        "dynamic_sampling": 0,
        "eval_every": 0,
        "guard": "stop",
        "keep": 1,
        **({"lr": config.lr} if config.lr else {}),
        **({"teacher": config.teacher, "reward_scale": 0.0} if rung.name == "distil" else {}),
        **config.shared,
    }
    while taken + part <= rung.most:
        if not account.fits(part + ladder.comparison):
            reason = "the rest of the budget is kept for the comparison"
            break
        account.reserve(part)
        taken += part
        parts = {**parts, rung.name: [taken, done, vain]}
        await ladder.record.change(spent=account.record(), parts=parts)
        began, steps = perf_counter(), done + config.steps_at_once
        try:
            report = await train(
                TrainConfig(steps=steps, **settings),
                tasks=Taskset("tasks", ladder.splits.tasks),
                runtime=ladder.runtime,
                stop=stop,
            )
        except UsageError as error:
            reason = str(error)
            break
        account.settle(part, 0.0, perf_counter() - began)
        done = report.next_step
        rewards = [row["metrics"].get("rollout_reward:mean") for row in report.history]
        ladder.reporter.note(_line(rung.name, done, rewards, taken))
        if stop.stopping:
            reason = "the time of the rung ended"
            break
        if report.paused is not None:
            reason = f"the guard paused it: {report.paused.sentence}"
            break
        if done < steps:
            reason = "nothing was left to learn"
            break
        gained = gain_of_part(rewards, config.steps_at_once)
        vain = vain + 1 if gained is not None and gained <= rate * part else 0
        if vain >= PARTS_IN_VAIN:
            reason = f"the last {vain * config.steps_at_once} steps raised the training reward by no more than the next rung is expected to"
            if not rate:
                reason = f"the training reward did not rise in the last {vain * config.steps_at_once} steps"
            break
    return reason, done


def gain_of_part(rewards: Sequence[float | None], steps: int) -> float | None:
    """Return the change of the mean training reward from the steps before the last `steps` to these; None with too few steps."""
    last = [reward for reward in rewards[-steps:] if reward is not None]
    before = [reward for reward in rewards[-2 * steps : -steps] if reward is not None]
    return fmean(last) - fmean(before) if last and before else None


def _line(name: str, steps: int, rewards: Sequence[float | None], rollouts: int) -> str:
    measured = [reward for reward in rewards if reward is not None]
    shown = f", training reward {measured[0]:.3f} to {measured[-1]:.3f}" if measured else ""
    return f"{name}: {steps} steps{shown}, {rollouts:,} rollouts"
