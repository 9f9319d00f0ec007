"""Forms of a judge of groups, as commands and configurations name it.

SLUG of a reward model        rates each run (`hud train --loss bradley_terry`)
SLUG of any other model       scores, ranks or compares the runs by criteria
path.py:name                  a function of `runs`, a list, that returns a reward of each; or a policy, as an agent's
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from pathlib import Path

from hud.agents.agent_forms import as_agent, is_file
from hud.client import Client
from hud.errors import NotFoundError, UsageError
from hud.review.comparison_requests import DEFAULT_CRITERIA
from hud.review.group_judges import (
    FunctionJudge,
    Judging,
    ModelJudge,
    RelativeJudge,
    RewardModelJudge,
)
from hud.review.judge_method import Method
from hud.review.reviewer import Reviewer


async def open_judge(
    client: Client,
    name: str,
    *,
    by: Method | None = None,
    criteria: Sequence[str] = (),
    share: float = 1.0,
    seed: int = 0,
    group: int | None = None,
) -> RelativeJudge:
    """Return the judge of a form, to be closed. `by` None: scores. `criteria`: texts, `TEXT=WEIGHT` for a weight other than 1.

    Raises `UsageError` for a form or setting that does not exist, and for groups of fewer runs than it compares.
    """
    if not 0 < share <= 1:
        raise UsageError(f"The share of the judge is {share:g}; it is above 0 and at most 1.")
    judge = await _named(client, name, by, [weighted(text) for text in criteria], share, seed)
    if (by is not None or criteria) and not isinstance(judge, ModelJudge):
        await judge.aclose()
        raise UsageError(f"{name} takes no criteria and no way of comparing; leave them out.")
    if group is not None and group < judge.least:
        await judge.aclose()
        raise UsageError(
            f"The judge {name} compares runs of a task, so give at least {judge.least}: --group {judge.least}"
        )
    return judge


def weighted(text: str) -> tuple[str, float]:
    """Return a criterion with its weight. Raises `UsageError` for a weight that is not above 0."""
    criterion, equals, number = text.rpartition("=")
    try:
        weight = float(number) if equals else 1.0
    except ValueError:
        return text, 1.0  # A criterion that holds an equals sign.
    if not equals:
        return text, 1.0
    if not 0 < weight < math.inf:
        raise UsageError(
            f"The weight of the criterion {criterion!r} is {number}; it must be above 0."
        )
    return criterion, weight


async def _named(
    client: Client,
    name: str,
    by: Method | None,
    criteria: list[tuple[str, float]],
    share: float,
    seed: int,
) -> RelativeJudge:
    function = _function(name) if is_file(name) else None
    if function is not None:
        return FunctionJudge(name, function, share=share)
    if not is_file(name) and await _rates(client, name):
        return RewardModelJudge(name, client, share=share)
    agent = as_agent(name)
    try:
        reviewer = await Reviewer.of_agent(agent)
    except BaseException:
        await agent.aclose()
        raise
    judge = ModelJudge(
        name, reviewer, by or "scores", criteria or DEFAULT_CRITERIA, share=share, seed=seed
    )
    judge.closes = agent.aclose
    return judge


def _function(name: str) -> Judging | None:
    """Return the function of `runs` that a file defines under this name; None for a policy."""
    from hud.environment.sources.loader import load_file

    text, _, attribute = name.partition(":")
    if not Path(text).is_file():
        return None  # The agent's form names the problem.
    form = getattr(load_file(Path(text)), attribute or "judge", None)
    if callable(form) and list(inspect.signature(form).parameters) == ["runs"]:
        judging: Judging = form
        return judging
    return None


async def _rates(client: Client, name: str) -> bool:
    """Return whether a registered reward model has this name."""
    try:
        model = await client.get("/v2/models/resolve", params={"model": name})
    except NotFoundError:
        return False  # A kind of agent, or an unknown name, which the agent's form refuses.
    return bool(model["config"].get("reward_model"))
