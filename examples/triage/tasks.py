"""Incidents to train on; `held_out.py` has those to be judged by.

hud eval examples/triage/tasks.py AGENT --all
"""

from env import diagnose, env

from hud import Task, Taskset

__all__ = ["env", "train"]

INCIDENTS = 1400


def incident(seed: int) -> Task:
    """Return the task of an incident, named after its seed."""
    return diagnose(seed=seed).model_copy(update={"slug": f"incident-{seed:04d}"})


train = Taskset("triage-train", map(incident, range(INCIDENTS)))
