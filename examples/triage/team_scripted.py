"""Hand-written players of the team: experts, and the apprentices that small policies first imitate.

The apprentices have the habits of the flat agent's apprentice (scripted.py), each in its own part of the work.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from scripted import (
    CAUSES,
    HABITS,
    POINTLESS,
    PROBES,
    SLIPS,
    Investigation,
    Script,
    answer,
    conclude,
    follow,
    open_issue,
)

from hud.agents import ScriptedAgent


def trace_well(prompt: str) -> Investigation:
    """The tracer: follows failing calls to their end."""
    symptom, _ = yield from open_issue(prompt)
    service, error = yield from follow(symptom)
    return f"service={service}; class={error}"


def probe_well(prompt: str) -> Investigation:
    """The prober: the one look that tells the remaining causes apart."""
    service, error = named(prompt)
    evidence = yield PROBES[error], service
    return f"cause={conclude(error, evidence)}"


def lead_well(page: str) -> Investigation:
    """The lead: asks the tracer, then the prober about what it found."""
    service, error = yield from asked_tracer(page)
    report = yield "ask_prober", {"service": service, "error": error}
    return answer(service, error, report.removeprefix("cause="))


def trace_badly(prompt: str, rng: random.Random) -> Investigation:
    """The tracer's apprentice: mostly stops at the symptom."""
    habit = rng.choices(list(HABITS), list(HABITS.values()))[0]
    symptom, error = yield from open_issue(prompt)
    if habit == "guess":
        symptom, _ = yield from follow(symptom, links=1)
        error = rng.choice(list(PROBES))
    elif habit != "hasty":
        symptom, error = yield from follow(symptom)
    return f"service={symptom}; class={error}"


def probe_badly(prompt: str, rng: random.Random) -> Investigation:
    """The prober's apprentice: mostly guesses, or looks where nothing can be seen."""
    service, error = named(prompt)
    habit = rng.choices(list(HABITS), list(HABITS.values()))[0]
    if habit in ("hasty", "guess"):
        return f"cause={rng.choice(CAUSES)}"
    if habit == "wander":
        yield rng.choice(POINTLESS), service
    evidence = yield PROBES[error], service
    slip = rng.random() < SLIPS
    return f"cause={rng.choice(CAUSES) if slip else conclude(error, evidence)}"


def lead_badly(page: str, rng: random.Random) -> Investigation:
    """The lead's apprentice: mostly does without the prober."""
    habit = rng.choices(list(HABITS), list(HABITS.values()))[0]
    service, error = yield from asked_tracer(page)
    if habit in ("hasty", "guess"):
        return answer(service, error, rng.choice(CAUSES))
    if habit == "wander":
        yield "ask_tracer", {"symptom": service}
    report = yield "ask_prober", {"service": service, "error": error}
    cause = report.removeprefix("cause=")
    return answer(service, error, rng.choice(CAUSES) if rng.random() < SLIPS else cause)


def asked_tracer(page: str) -> Investigation:
    """Ask the tracer where it hurts; returns the service at fault and its error class."""
    pattern = re.search(r"[a-z]+-\*", page)
    report = yield "ask_tracer", {"symptom": pattern.group() if pattern else "*"}
    found = re.fullmatch(r"service=([\w-]+); class=(\w+)", report)
    return found.groups() if found else ("unknown", "KeyError")


def named(prompt: str) -> tuple[str, str]:
    """Return the service and the error class that the prober is asked about."""
    service, error = re.search(r"Probe ([\w-]+), (\w+)", prompt).groups()
    return service, error


EXPERTS = {
    "ask_tracer": ScriptedAgent(Script(trace_well), name="expert-tracer"),
    "ask_prober": ScriptedAgent(Script(probe_well), name="expert-prober"),
}
agent = ScriptedAgent(Script(lead_well), name="expert-lead")
"""Solves every incident with experts."""
agent.subagents = dict(EXPERTS)


def apprentices(seed: int = 0) -> dict[str, ScriptedAgent]:
    """Return the imperfect tracer, prober and lead, the last with experts; each run has its own luck."""
    luck = random.Random(seed)

    def apprentice(
        name: str, begin: Callable[[str, random.Random], Investigation]
    ) -> ScriptedAgent:
        script = Script(lambda prompt: begin(prompt, random.Random(luck.random())))
        found = ScriptedAgent(script, name=f"apprentice-{name}")
        found.subagents = dict(EXPERTS)
        return found

    habits = {"tracer": trace_badly, "prober": probe_badly, "lead": lead_badly}
    return {name: apprentice(name, begin) for name, begin in habits.items()}
