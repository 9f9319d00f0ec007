"""Environment `reasoning-gym`: one question, one answer, worth 1 where the package gives it the full score, else 0."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from hud.benchmarks.benchmark import Split
from hud.environment import Environment
from hud.graders import EvaluationResult
from hud_benchmarks.reasoning_gym.items import item
from hud_benchmarks.reasoning_gym.scoring import score

FORMAT = (
    "Give the answer alone, in the form that was asked for. If you write anything else, put the answer between "
    "<answer> and </answer> at the end."
)

env = Environment("reasoning-gym")


@env.template()
async def question(generator: str, split: Split, index: int) -> AsyncGenerator[Any, Any]:
    """Answer one generated question."""
    puzzle = item(generator, split, index)
    answer = yield f"{puzzle['question']}\n\n{FORMAT}"
    package_score, reason = await score(generator, split, index, str(answer))
    # The package gives wrong answers up to 0.99: for a part of the text, a number nearby, another board of the size.
    yield EvaluationResult(
        reward=float(package_score >= 1.0), content=reason, info={"package_score": package_score}
    )
