"""The comparison of a prompt with the model's own on held-out tasks, and the gate that moves the head."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hud.eval.tasksets.taskset import Taskset
from hud.train.promotion.promotion import Promotion, promote
from hud.train.rollouts.held_out import HeldOut

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.eval.results.promotion_gate import Gate
    from hud.train.prompt_search.search_record import SearchRecord
    from hud.train.rollouts.sampling import Rollouts


@dataclass(frozen=True)
class Judgement:
    """Decision of the gate about a checkpoint, with both held-out scores."""

    promoted: bool
    gain: float | None
    """Mean difference over the held-out tasks; None: no task was measured with both."""
    low: float | None
    high: float | None
    before: float | None
    """Mean held-out reward of the head; None without a measured run."""
    after: float | None
    tasks: int
    reasons: list[str]
    jobs: list[str]

    @classmethod
    def of(cls, promotion: Promotion, tasks: int) -> Judgement:
        """Return the judgement of a promotion on so many held-out tasks."""
        overall = promotion.decision["overall"] or {}
        return cls(
            promoted=promotion.decision["moved"],
            gain=overall.get("mean"),
            low=overall.get("low"),
            high=overall.get("high"),
            before=promotion.jobs[0].reward,
            after=promotion.jobs[1].reward,
            tasks=tasks,
            reasons=promotion.decision["reasons"],
            jobs=[job.id for job in promotion.jobs],
        )


async def judge_prompt(
    record: SearchRecord, rollouts: Rollouts, tasks: list[Task], checkpoint: str, gate: Gate
) -> Judgement | None:
    """Play the head and a checkpoint on held-out tasks, and move the head if the gate accepts it; None after a stop."""
    held_out = Taskset("held-out", tasks)
    config = rollouts.config
    promotion = await promote(
        config,
        config.model,
        checkpoint,
        held_out,
        gate,
        runtime=rollouts.runtime,
        reporter=rollouts.reporter,
        stop=rollouts.stop,
    )
    if promotion is None:
        return None
    sides = zip((0, record.iteration), (record.start, checkpoint), promotion.jobs, strict=True)
    for step, node, job in sides:
        score = HeldOut([held_out]).score(step, job.runs, job.id)
        if score is not None:
            score = replace(score, checkpoint_id=node)
            await record.add_score(score)
            rollouts.reporter.scored(score)
    return Judgement.of(promotion, len(tasks))
