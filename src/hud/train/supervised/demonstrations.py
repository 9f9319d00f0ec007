"""Demonstrations: recorded runs that a policy without any reward can learn from, and the commands that do it.

Reinforcement learning needs runs of one task that differ in reward. A policy whose every run earns 0 has none, and
learns from recorded runs of another agent first.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hud.client import Client
from hud.errors import NotFoundError

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.train.config import TrainConfig

LATEST = "latest"
"""Stands for the newest job with demonstrations."""
_JOBS = 50
_RUNS = 500
_STEPS_OF_A_RANDOM_MODEL = 100
_BATCH = 32
_MOST_EPOCHS = 50


@dataclass(frozen=True)
class Demonstrations:
    """A recorded job in which an agent earned something."""

    job: str
    runs: int
    reward: float
    """Mean over its measured runs of the tasks."""


async def find_demonstrations(client: Client, tasks: Iterable[Task]) -> Demonstrations | None:
    """Return the newest job in which an agent other than a model of this platform earned something on these tasks."""
    slugs = {task.slug for task in tasks}
    models = (await client.get("/v2/models"))["items"]
    own = {one["model_name"] for one in models if one["is_trainable"]}
    for job in (await client.get("/v2/jobs", params={"limit": _JOBS}))["items"]:
        if not job["graded"] or not job["reward"]:
            continue
        page = await client.get(f"/v2/jobs/{job['id']}/traces", params={"limit": _RUNS})
        rewards = [
            row["reward"]
            for row in page["items"]
            # Tokens of another model mean nothing to this one.
            if row["slug"] in slugs and row["model"] not in own and row["reward"] is not None
        ]
        if any(reward > 0 for reward in rewards):
            return Demonstrations(job["id"], len(rewards), sum(rewards) / len(rewards))
    return None


async def job_of(client: Client, reference: str, tasks: Iterable[Task]) -> str:
    """Return a job's id as it was given; of `latest`, the newest job with demonstrations of these tasks.

    Raises `NotFoundError` where there is none.
    """
    if reference != LATEST:
        return reference
    found = await find_demonstrations(client, tasks)
    if found is None:
        raise NotFoundError(
            f"None of the newest {_JOBS} jobs has a run that earned something on these tasks. Record some first, by a model or "
            "a script of yours: hud eval TASKS AGENT --all --group 4"
        )
    return found.job


async def warm_up_commands(
    client: Client, model: dict[str, Any], source: str, tasks: Iterable[Task]
) -> list[str]:
    """Return the commands after which `model` has learned from demonstrations: one where there are some, else two."""
    tasks = list(tasks)
    found = await find_demonstrations(client, tasks)
    file = shlex.quote(source or "TASKS")
    runs = len(tasks) * 4 if found is None else found.runs
    epochs = min(max(-(-_STEPS_OF_A_RANDOM_MODEL * _BATCH // max(runs, 1)), 3), _MOST_EPOCHS)
    if not is_random(model):
        epochs = 3
    job = LATEST if found is None else found.job[:12]
    learn = f"hud train {model['model_name']} {file} --from-job {job} --epochs {epochs}"
    return [learn] if found else [f"hud eval {file} claude --all --group 4", learn]


async def advice_for(client: Client, config: TrainConfig, tasks: Iterable[Task]) -> str:
    """Say why a policy whose every run earned 0 learns nothing, and the commands that give it a start."""
    model = await client.get("/v2/models/resolve", params={"model": config.model})
    commands = await warm_up_commands(client, model, config.tasks, tasks)
    random = "has random weights and " if is_random(model) else ""
    lines = "".join(f"\n    {command}" for command in commands)
    return (
        f"{config.model} {random}never solves a task, and runs that all earn the same teach nothing. Have it learn from "
        f"recorded runs first, then train it by reward:{lines}"
    )


def is_random(model: dict[str, Any]) -> bool:
    """True for a model that was made here and has learned nothing."""
    source = str(model["config"]["source"] or "")
    return source.startswith("preset ") and model["head_checkpoint_id"] is None
