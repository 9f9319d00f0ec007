"""Hierarchical: one model leads, and has six tools; each is a specialist with a model, tools and a reward of its own.

    hud eval --benchmark incident-lab/team oracle

The same incidents, prompt, answer and step cap as in `flat`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from hud import Environment, Task, Taskset
from hud.environment import AgentTool, Answer, GradingArg, Template
from hud.trace import Message
from hud_benchmarks.incident_lab.flat import MAX_STEPS, prompt
from hud_benchmarks.incident_lab.grading import grade_finding, grade_report
from hud_benchmarks.incident_lab.incidents import incidents
from hud_benchmarks.incident_lab.lab.facts import SIGNS
from hud_benchmarks.incident_lab.servers import AREAS, Desk

__all__ = ["env", "tasks"]

SPECIALIST_STEPS = 8
DUTIES = {
    "errors": "Looks through the error tracker: which error a service reports, and whom it blames.",
    "metrics": "Reads metrics and traces: what grows in a service, whether its connection pool is full.",
    "database": "Works the database console: open transactions, slow queries, indexes, migrations.",
    "changes": "Knows the deploy platform: the last deployment or feature flag that changed in a service.",
    "queue": "Watches the cache and the queue of orders: what blocks it.",
    "containers": "Watches the container orchestrator: pods, restarts, evictions, certificates.",
}

env = Environment("incident-lead", version="1.0.0")


def specialist(area: str) -> Template:
    """Return the template of an area's specialist, in an environment of its own."""
    own = Environment(f"incident-{area}", version="1.0.0")
    desk = Desk(own, area)
    instructions = (
        f"You are a specialist. {DUTIES[area]} Report on one service, as one JSON object: "
        f'{{"sign": ..., "detail": ...}}. Signs: {SIGNS[area]}.'
    )

    @own.template(id=area, description=DUTIES[area])
    async def report(
        service: str, incident: GradingArg = None
    ) -> AsyncGenerator[object, Answer[str]]:
        """Report on a service.

        Args:
            service: the service to look at.
        """
        recorded = incidents()[incident]
        await desk.open(recorded)
        answer = yield [
            Message(role="system", content=instructions),
            Message(role="user", content=f"ALERT {recorded.page} Look at {service}."),
        ]
        truth = recorded.facts.get(area, {}).get(service)
        # Of what is no service there is nothing to report.
        yield 0.0 if truth is None else grade_report(answer, truth)

    return report


specialists = {area: specialist(area) for area in AREAS}
for area, template in specialists.items():
    env.add_tool(AgentTool(template, name=area, max_steps=SPECIALIST_STEPS))


@env.template(
    id="diagnose", description="Find the fault behind an alert, with a team of specialists."
)
async def diagnose(incident: str) -> AsyncGenerator[object, Answer[str]]:
    """One recorded incident, by name."""
    recorded = incidents()[incident]
    answer = yield prompt(recorded)
    yield grade_finding(answer, recorded.finding)


def task(name: str) -> Task:
    """Return the task of an incident."""
    settings = {"slug": name, "agent_config": {"max_steps": MAX_STEPS}}
    return diagnose(incident=name).model_copy(update=settings)


tasks = Taskset("incident-lab-hierarchical", map(task, incidents()))
