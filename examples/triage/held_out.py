"""Incidents that training never shows: other services, other combinations of fault and service, other wording.

    hud eval examples/triage/held_out.py AGENT --all

In a file of its own, so that nobody trains on it by naming the wrong list.
"""

from env import diagnose, env

from hud import Task, Taskset

__all__ = ["env", "held_out"]

INCIDENTS = 140


def incident(seed: int) -> Task:
    """Return the task of an incident, named after its seed."""
    named = {"slug": f"held-out-{seed:03d}"}
    return diagnose(seed=seed, held_out=True).model_copy(update=named)


held_out = Taskset("triage-held-out", map(incident, range(INCIDENTS)))
