"""Incident triage by a team: a lead with two specialists, each an environment of its own, over the incidents of env.py.

The tracer follows failing calls to the service at fault, the prober finds the cause there; the lead sees the page and what they
report, and gives the answer that the flat agent gives with all tools.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import closing
from typing import Annotated

import world
from env import INSTRUCTIONS, grade
from observations import offer

from hud import Environment, Task
from hud.environment import AgentTool, Answer, GradingArg
from hud.graders import EvaluationResult, SubScore, combine, gate, step_bonus
from hud.trace import Message

tracer = Environment("tracer", version="1.0.0")
prober = Environment("prober", version="1.0.0")
lead = Environment("lead", version="1.0.0")
for name in ("get_issues", "get_stack_trace"):
    offer(tracer, name)
for name in ("query_metrics", "list_deploys", "list_flags", "get_certificate", "list_dependencies"):
    offer(prober, name)

FOUND = re.compile(r"service=([\w-]+); class=(\w+)")
EXPLAINED = re.compile(r"cause=(\w+)")
MOST_WASTE = 4
"""Tool calls beyond the fewest at which a specialist's bonus for few calls is gone."""


@tracer.template(description="Follow failing calls from where it hurts to the service at fault.")
async def trace(
    symptom: str,
    seed: Annotated[int, GradingArg] = 0,
    held_out: Annotated[bool, GradingArg] = False,
) -> AsyncGenerator[object, Answer[str]]:
    """Find the service at fault and its error class.

    Args:
        symptom: Services where it hurts, such as cart-*.
        seed: Which incident it is.
        held_out: Whether it is a held-out one.
    """
    case = world.incident(seed, held_out)
    with closing(world.build(case)) as tracer.state.database:
        answer = yield f"Trace {symptom}. Answer: service=NAME; class=CLASS"
    found = FOUND.search(answer)
    service, error = found.groups() if found else ("", "")
    named = SubScore(name="service", value=float(service == case.culprit), weight=0.6)
    classed = SubScore(name="class", value=float(error == case.error_class), weight=0.4)
    yield _quick(gate(await combine(named, classed), outcome=named), answer, len(case.chain) + 1)


@prober.template(description="Find the cause of a service's errors.")
async def probe(
    service: str,
    error: str,
    seed: Annotated[int, GradingArg] = 0,
    held_out: Annotated[bool, GradingArg] = False,
) -> AsyncGenerator[object, Answer[str]]:
    """Find the cause of a service's errors.

    Args:
        service: Name of the service at fault.
        error: Its error class.
        seed: Which incident it is.
        held_out: Whether it is a held-out one.
    """
    case = world.incident(seed, held_out)
    with closing(world.build(case)) as prober.state.database:
        answer = yield f"Probe {service}, {error}. Answer: cause={'|'.join(world.CAUSES)}"
    found = EXPLAINED.search(answer)
    right = found is not None and found.group(1) == case.cause and service == case.culprit
    explained = SubScore(name="cause", value=float(right), weight=1.0)
    yield _quick(await combine(explained), answer, 1)


lead.add_tool(AgentTool(trace, model="tracer", name="ask_tracer", max_steps=8))
lead.add_tool(AgentTool(probe, model="prober", name="ask_prober", max_steps=6))


@lead.template(description="Find the service at fault and the cause of an incident, with a team.")
async def diagnose(seed: int, held_out: bool = False) -> AsyncGenerator[object, Answer[str]]:
    """One incident, graded as the flat agent is."""
    case = world.incident(seed, held_out)
    answer = yield [
        Message(role="system", content=INSTRUCTIONS),
        Message(role="user", content=case.page),
    ]
    yield await grade(case, answer, fewest=2)


def traced(seed: int, held_out: bool) -> Task:
    """Return the tracer's task of an incident, as a lead that works well would ask."""
    symptom = world.incident(seed, held_out).symptom.partition("-")[0]
    return trace(symptom=f"{symptom}-*", seed=seed, held_out=held_out)


def probed(seed: int, held_out: bool) -> Task:
    """Return the prober's task of an incident, as a lead that works well would ask."""
    case = world.incident(seed, held_out)
    return probe(service=case.culprit, error=case.error_class, seed=seed, held_out=held_out)


def _quick(result: EvaluationResult, answer: Answer[str], fewest: int) -> EvaluationResult:
    calls = sum(step.source == "tool" for step in answer.trace.steps)
    return step_bonus(result, calls, fewest=fewest, most=fewest + MOST_WASTE, bonus=0.1)
