"""Combination of scores into one, with the tree of subscores."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Sequence

from hud.errors import GraderFault, UsageError, located
from hud.foreign_code import is_failure
from hud.graders.results import EvaluationResult, SubScore

Part = SubScore | Awaitable[SubScore]


def weighted(parts: Sequence[SubScore]) -> float:
    """Return the weighted mean of the parts with positive weights, minus the penalties.

    A part with a negative weight is a penalty of `-weight * value`, 0 for values below 0; the result is at least 0.
    Raises `UsageError` without a positive weight.
    """
    largest = max((part.weight for part in parts), default=0.0)
    if largest <= 0:
        raise UsageError("combine needs at least one part with a positive weight.")
    # The sum of weights may exceed every float; a power of two scales them without rounding.
    exponent = math.frexp(largest)[1]
    shares = [(math.ldexp(part.weight, -exponent), part.value) for part in parts if part.weight > 0]
    mean = sum(share * value for share, value in shares) / sum(share for share, _ in shares)
    penalty = sum(part.weight * max(part.value, 0.0) for part in parts if part.weight < 0)
    return min(max(mean + penalty, 0.0), 1.0)


async def combine(*parts: Part) -> EvaluationResult:
    """Return the weighted mean of subscores; awaitable ones run concurrently.

    Positive weights are normalized to 1; a negative weight makes a part a penalty.
    """
    subscores = await _gathered(parts)
    return EvaluationResult(reward=weighted(subscores), subscores=subscores)


async def combine_any(weight: float, subscores: Sequence[Part], *, name: str = "any") -> SubScore:
    """Return a subscore with the maximum value of several."""
    parts = await _gathered(subscores)
    return SubScore(
        name=name, value=max(part.value for part in parts), weight=weight, children=parts
    )


async def combine_all(weight: float, subscores: Sequence[Part], *, name: str = "all") -> SubScore:
    """Return a subscore with the minimum value of several."""
    parts = await _gathered(subscores)
    return SubScore(
        name=name, value=min(part.value for part in parts), weight=weight, children=parts
    )


async def _gathered(parts: Sequence[Part]) -> list[SubScore]:
    if not parts:
        raise UsageError("There is nothing to combine.")
    return _named_apart(await _settled(parts))


async def _settled(parts: Sequence[Part]) -> list[SubScore]:
    """Return the parts; awaitable ones run concurrently. If one raises, the others are cancelled."""
    tasks = {
        index: asyncio.ensure_future(_contained(part))
        for index, part in enumerate(parts)
        if not isinstance(part, SubScore)
    }
    try:
        await asyncio.gather(*tasks.values())
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
    return [
        part if isinstance(part, SubScore) else tasks[index].result()
        for index, part in enumerate(parts)
    ]


async def _contained(part: Awaitable[SubScore]) -> SubScore:
    """Await a part. In a task of its own, `sys.exit()` would end the event loop: it raises `GraderFault`."""
    try:
        return await part
    except BaseException as error:
        if isinstance(error, Exception) or not is_failure(error):
            raise
        raise GraderFault(f"A part of the grade raised {located(error)}.") from error


def _named_apart(parts: list[SubScore]) -> list[SubScore]:
    """Return the parts under unique names: the second `name` becomes `name-2`."""
    seen: Counter[str] = Counter()
    named = []
    for part in parts:
        seen[part.name] += 1
        count = seen[part.name]
        # A copy: the same subscore may occur elsewhere in the tree.
        named.append(
            part if count == 1 else part.model_copy(update={"name": f"{part.name}-{count}"})
        )
    return named
