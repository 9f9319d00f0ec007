"""Incident triage: an on-call agent finds which service is at fault, and why.

The page names only where it hurts. The symptom shows in one service, the cause sits one or two failing calls
away, and no single tool gives the answer: the agent follows stack traces along the calls, then checks the one
piece of evidence that tells the remaining causes apart.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import closing
from sqlite3 import Connection

import world

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


def database() -> Connection:
    """Return the database of this run's world."""
    connection: Connection = env.state.database
    return connection


@env.tool
async def get_issues(service: str) -> str:
    """Open issues."""
    rows = database().execute("SELECT service, class FROM issues WHERE service GLOB ?", (service,))
    return "\n".join(f"{service}: {error}" for service, error in rows) or "no issues"


@env.tool
async def get_stack_trace(service: str) -> str:
    """Latest error."""
    row = (
        database()
        .execute(
            "SELECT class, frame, upstream FROM events WHERE service = ? ORDER BY minute DESC",
            (service,),
        )
        .fetchone()
    )
    if row is None:
        return "no errors"
    error, frame, upstream = row
    return f"{error} in {frame}({upstream or ''})"


@env.tool
async def query_metrics(service: str) -> str:
    """Trends of the last hour."""
    rows = database().execute(
        "SELECT metric, AVG(CASE WHEN minute <= -40 THEN value END), MAX(value) FROM metrics "
        "WHERE service = ? GROUP BY metric ORDER BY metric",
        (service,),
    )
    return (
        ", ".join(f"{metric} {_trend(before, peak)}" for metric, before, peak in rows) or "no data"
    )


@env.tool
async def list_deploys(service: str) -> str:
    """Latest deploy."""
    row = (
        database()
        .execute("SELECT version, minute FROM deploys WHERE service = ?", (service,))
        .fetchone()
    )
    return f"v{row[0]} {_age(row[1])}" if row else "no deploys"


@env.tool
async def list_flags(service: str) -> str:
    """Latest flag change."""
    row = (
        database()
        .execute("SELECT flag, minute FROM flags WHERE service = ?", (service,))
        .fetchone()
    )
    return f"{row[0]} {_age(row[1])}" if row else "no flags"


@env.tool
async def get_certificate(service: str) -> str:
    """State of its certificate."""
    row = (
        database()
        .execute("SELECT expires_minute FROM certificates WHERE service = ?", (service,))
        .fetchone()
    )
    if row is None:
        return "no certificate"
    return "expired" if row[0] <= 0 else "valid"


@env.tool
async def list_dependencies(service: str) -> str:
    """What it calls."""
    rows = database().execute(
        "SELECT upstream, status FROM dependencies WHERE service = ?", (service,)
    )
    return ", ".join(f"{upstream} {status}" for upstream, status in rows) or "nothing"


@env.template(id="diagnose", description="Find the service at fault and the cause of an incident.")
async def diagnose(seed: int, held_out: bool = False) -> AsyncGenerator[object, Answer]:
    """One incident. `held_out` incidents share no service and no wording with the others."""
    case = world.incident(seed, held_out)
    with closing(world.build(case)) as env.state.database:
        answer = yield [
            Message(role="system", content=INSTRUCTIONS),
            Message(role="user", content=case.page),
        ]
        yield await grade(case, answer)


async def grade(case: world.Incident, answer: Answer) -> EvaluationResult:
    """Score an answer: nothing without the right service; then service, class and cause, and speed on top."""
    told = set(ANSWER.findall(answer))
    # A list of answers is none: its first would be a guess.
    service, error, cause = told.pop() if len(told) == 1 else ("", "", "")
    named = SubScore(name="service", value=float(service == case.culprit), weight=0.3)
    classed = SubScore(name="class", value=float(error == case.error_class), weight=0.2)
    explained = SubScore(name="cause", value=float(cause == case.cause), weight=0.5)
    result = gate(await combine(named, classed, explained), outcome=named)
    calls = sum(step.source == "tool" for step in answer.trace.steps)
    return step_bonus(result, calls, fewest=case.par, most=case.par + MOST_WASTE, bonus=0.1)


def _trend(before: float, peak: float) -> str:
    """Say in a word how a metric moved against its level at the start of the window."""
    if peak > 5 * before:
        return "jumped"
    return "climbing" if peak > 1.5 * before else "flat"


def _age(minute: int) -> str:
    return "minutes ago" if minute > -world.WINDOW else "days ago"
