"""Many scores into one, with the tree of them kept."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Sequence

from hud.errors import UsageError
from hud.graders.results import EvaluationResult, SubScore

Part = SubScore | Awaitable[SubScore]


def weighted(parts: Sequence[SubScore]) -> float:
    """Return the weighted mean of the parts with positive weights, less what the negative ones take away.

    A penalty takes `-weight * value`, on top of the mean; the sum is kept at 0 or more.
    """
    positive = sum(part.weight for part in parts if part.weight > 0)
    if positive <= 0:
        raise UsageError("combine needs at least one part with a positive weight.")
    mean = sum(part.weight * part.value for part in parts if part.weight > 0) / positive
    penalty = sum(part.weight * part.value for part in parts if part.weight < 0)
    return min(max(mean + penalty, 0.0), 1.0)


async def combine(*parts: Part) -> EvaluationResult:
    """Return the weighted mean of subscores, some of which may still be computing; those run side by side.

    Positive weights are normalized to 1; a negative weight makes a part a penalty.
    """
    subscores = await _gathered(parts)
    return EvaluationResult(reward=weighted(subscores), subscores=subscores)


async def combine_any(weight: float, subscores: Sequence[Part], *, name: str = "any") -> SubScore:
    """Return one subscore worth the best of several."""
    parts = await _gathered(subscores)
    return SubScore(
        name=name, value=max(part.value for part in parts), weight=weight, children=parts
    )


async def combine_all(weight: float, subscores: Sequence[Part], *, name: str = "all") -> SubScore:
    """Return one subscore worth the worst of several."""
    parts = await _gathered(subscores)
    return SubScore(
        name=name, value=min(part.value for part in parts), weight=weight, children=parts
    )


async def _gathered(parts: Sequence[Part]) -> list[SubScore]:
    if not parts:
        raise UsageError("There is nothing to combine.")
    waiting = [_resolved(part) for part in parts]
    subscores = list(await asyncio.gather(*waiting))
    names = [part.name for part in subscores]
    if len(set(names)) < len(names):
        seen: dict[str, int] = {}
        for part in subscores:
            seen[part.name] = seen.get(part.name, 0) + 1
            if seen[part.name] > 1:
                part.name = f"{part.name}-{seen[part.name]}"
    return subscores


async def _resolved(part: Part) -> SubScore:
    return await part if inspect.isawaitable(part) else part
