"""Flat: one model has all of the desk's tools, about 100, and investigates alone.

hud eval examples/incident_lab/flat.py examples/incident_lab/players.py:oracle --all
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from grading import grade_finding
from incidents import Incident, incidents
from lab.facts import SERVICES
from lab.finding import CAUSES
from servers import Desk

from hud import Environment, Task, Taskset
from hud.environment import Answer
from hud.trace import Message

__all__ = ["env", "tasks"]

MAX_STEPS = 15

env = Environment("incident-flat", version="1.0.0")
desk = Desk(env)

INSTRUCTIONS = f"""You are on call for a shop. Its services: {", ".join(SERVICES)}. The storefront calls catalog, \
orders and payments; orders calls payments; payments calls bank. Find the one fault behind the alert. \
Causes: {"; ".join(f"{cause}: {told}" for cause, told in CAUSES.items())}. \
Answer with one JSON object: {{"service": ..., "cause": ..., "culprit": ...}}. Name one of each: an answer that \
names several counts as none."""


def prompt(incident: Incident) -> list[Message]:
    """Return what whoever is on call is told."""
    return [
        Message(role="system", content=INSTRUCTIONS),
        Message(role="user", content=f"ALERT {incident.page}"),
    ]


@env.template(id="diagnose", description="Find the fault behind an alert.")
async def diagnose(incident: str) -> AsyncGenerator[object, Answer]:
    """One recorded incident, by name."""
    found = incidents()[incident]
    await desk.open(found)
    answer = yield prompt(found)
    yield grade_finding(answer, found.finding)


def task(name: str) -> Task:
    """Return the task of an incident."""
    wishes = {"slug": name, "agent_config": {"max_steps": MAX_STEPS}}
    return diagnose(incident=name).model_copy(update=wishes)


tasks = Taskset("incident-lab-flat", map(task, incidents()))
