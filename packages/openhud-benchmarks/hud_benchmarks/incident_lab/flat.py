"""Flat: one model has all of the desk's tools, about 100, and investigates alone.

hud eval --benchmark incident-lab/flat oracle
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from hud import Environment, Task, Taskset
from hud.environment import Answer
from hud.trace import Message
from hud_benchmarks.incident_lab.grading import grade_finding
from hud_benchmarks.incident_lab.incidents import Incident, incidents
from hud_benchmarks.incident_lab.lab.facts import SERVICES
from hud_benchmarks.incident_lab.lab.finding import CAUSES
from hud_benchmarks.incident_lab.servers import Desk

__all__ = ["env", "tasks"]

MAX_STEPS = 15

env = Environment("incident-flat", version="1.0.0")
desk = Desk(env)

INSTRUCTIONS = f"""You are on call for a shop. Its services: {", ".join(SERVICES)}. The storefront calls catalog, \
orders and payments; orders calls payments; payments calls bank. Find the one fault behind the alert. \
Causes: {"; ".join(f"{cause}: {meaning}" for cause, meaning in CAUSES.items())}. \
Answer with one JSON object: {{"service": ..., "cause": ..., "culprit": ...}}. Name one of each: an answer that \
names several counts as none."""


def prompt(incident: Incident) -> list[Message]:
    """Return the conversation that an investigation starts from."""
    return [
        Message(role="system", content=INSTRUCTIONS),
        Message(role="user", content=f"ALERT {incident.page}"),
    ]


@env.template(id="diagnose", description="Find the fault behind an alert.")
async def diagnose(incident: str) -> AsyncGenerator[object, Answer[str]]:
    """One recorded incident, by name."""
    recorded = incidents()[incident]
    await desk.open(recorded)
    answer = yield prompt(recorded)
    yield grade_finding(answer, recorded.finding)


def task(name: str) -> Task:
    """Return the task of an incident."""
    settings = {"slug": name, "agent_config": {"max_steps": MAX_STEPS}}
    return diagnose(incident=name).model_copy(update=settings)


tasks = Taskset("incident-lab-flat", map(task, incidents()))
