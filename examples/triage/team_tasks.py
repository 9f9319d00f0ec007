"""Training incidents for the team's lead.

hud eval examples/triage/team_tasks.py examples/triage/team_scripted.py --all
"""

from team import diagnose, lead

from hud import Taskset

__all__ = ["lead", "tasks"]

INCIDENTS = 1400

tasks = Taskset(
    "triage-team",
    [
        diagnose(seed=seed).model_copy(update={"slug": f"incident-{seed:04d}"})
        for seed in range(INCIDENTS)
    ],
)
