"""Incident triage: an on-call agent finds which service is at fault, and why.

The page names only where it hurts. The symptom shows in one service, the cause sits one or two failing calls
away, and no single tool gives the answer: the agent follows stack traces along the calls, then checks the one
piece of evidence that tells the remaining causes apart.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import closing

import world
from observations import LOOKS, offer

from hud import Environment
from hud.environment import Answer
from hud.graders import EvaluationResult, SubScore, combine, gate, step_bonus
from hud.trace import Message

env = Environment("triage", version="1.0.0")

INSTRUCTIONS = f"""You are on call. Errors travel from the service at fault to its callers. \
Answer: service=NAME; class=CLASS; cause={"|".join(world.CAUSES)}"""

ANSWER = re.compile(r"service=([\w-]+); class=(\w+); cause=(\w+)")
"""The form of an answer; whatever is written around it does not matter."""

MOST_WASTE = 4
"""Tool calls beyond the shortest investigation at which the bonus for few steps is gone."""


for look in LOOKS:
    offer(env, look.__name__)


@env.template(id="diagnose", description="Find the service at fault and the cause of an incident.")
async def diagnose(seed: int, held_out: bool = False) -> AsyncGenerator[object, Answer]:
    """One incident. `held_out` incidents share no service and no wording with the others."""
    case = world.incident(seed, held_out)
    with closing(world.build(case)) as env.state.database:
        answer = yield [
            Message(role="system", content=INSTRUCTIONS),
            Message(role="user", content=case.page),
        ]
    yield await grade(case, answer, fewest=case.par)


async def grade(case: world.Incident, answer: Answer, fewest: int) -> EvaluationResult:
    """Score an answer: nothing without the right service; then service, class and cause, and speed on top."""
    told = set(ANSWER.findall(answer))
    # A list of answers is none: its first would be a guess.
    service, error, cause = told.pop() if len(told) == 1 else ("", "", "")
    named = SubScore(name="service", value=float(service == case.culprit), weight=0.3)
    classed = SubScore(name="class", value=float(error == case.error_class), weight=0.2)
    explained = SubScore(name="cause", value=float(cause == case.cause), weight=0.5)
    result = gate(await combine(named, classed, explained), outcome=named)
    calls = sum(step.source == "tool" for step in answer.trace.steps)
    return step_bonus(result, calls, fewest=fewest, most=fewest + MOST_WASTE, bonus=0.1)
