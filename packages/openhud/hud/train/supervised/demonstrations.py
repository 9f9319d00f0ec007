"""Demonstrations: recorded runs for the warm-up of a policy without reward, and its commands.

Reinforcement learning needs groups with signal. A policy whose runs all have reward 0 has none, and needs a warm-up on
recorded runs of another agent.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hud.client import Client
from hud.errors import NotFoundError, UsageError
from hud.exchange.file_import import is_hub_name
from hud.train.planning.default_rates import is_tiny

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.train.config import TrainConfig

LATEST = "latest"
"""Alias of the newest job with demonstrations."""
_JOBS = 50
_RUNS = 500
_STEPS_OF_A_TINY_MODEL = 100
_FEW_RUNS = 100
"""Below it a batch holds few tokens: a random model takes three times the steps."""
_BATCH = 32


@dataclass(frozen=True)
class Demonstrations:
    """A recorded job with rewards above 0."""

    job: str
    runs: int
    reward: float
    """Mean over its measured runs of the tasks."""


async def find_demonstrations(client: Client, tasks: Iterable[Task]) -> Demonstrations | None:
    """Return the newest job with a reward above 0 on these tasks, by an agent without a model of this platform."""
    slugs = {task.slug for task in tasks}
    models = (await client.get("/v2/models"))["items"]
    own = {model["model_name"] for model in models if model["is_trainable"]}
    for job in (await client.get("/v2/jobs", params={"limit": _JOBS}))["items"]:
        if not job["graded"] or not job["reward"]:
            continue
        page = await client.get(f"/v2/jobs/{job['id']}/traces", params={"limit": _RUNS})
        rewards = [
            row["reward"]
            for row in page["items"]
            # Tokens of another model are not usable.
            if row["slug"] in slugs and row["model"] not in own and row["reward"] is not None
        ]
        if any(reward > 0 for reward in rewards):
            return Demonstrations(job["id"], len(rewards), sum(rewards) / len(rewards))
    return None


def is_file(source: str) -> bool:
    """Return whether a source of supervised training is a file, a folder or the name of a data set, rather than a job.

    Raises `UsageError` for a file that does not exist.
    """
    path = Path(source)
    if path.exists() or is_hub_name(source):
        return True
    if path.suffix or len(path.parts) > 1:  # Ids of jobs have neither.
        raise UsageError(f"There is no file {source}.")
    return False


def identity_of(source: str) -> list[str]:
    """Return the identity of a source of runs, for a fingerprint: a file's includes its content."""
    file = Path(source)
    return [source, sha256(file.read_bytes()).hexdigest()] if file.is_file() else [source]


async def job_of(client: Client, reference: str, tasks: Iterable[Task]) -> str:
    """Return the given job id; for `latest`, the newest job with demonstrations of these tasks.

    Raises `NotFoundError` without one.
    """
    if reference != LATEST:
        return reference
    demonstrations = await find_demonstrations(client, tasks)
    if demonstrations is None:
        raise NotFoundError(
            f"None of the newest {_JOBS} jobs has a run that earned something on these tasks. Record some first, by a model or "
            "a script of yours: hud eval TASKS AGENT --all --group 4"
        )
    return demonstrations.job


async def warm_up_commands(
    client: Client, model: dict[str, Any], source: str, tasks: Iterable[Task]
) -> list[str]:
    """Return the commands of a warm-up of `model` on demonstrations: one if there are some, else two."""
    tasks = list(tasks)
    demonstrations = await find_demonstrations(client, tasks)
    file = shlex.quote(source or "TASKS")
    runs = len(tasks) * 4 if demonstrations is None else demonstrations.runs
    steps = _STEPS_OF_A_TINY_MODEL * (3 if runs < _FEW_RUNS else 1)
    epochs = max(-(-steps * _BATCH // max(runs, 1)), 3) if is_tiny(model) else 3
    job = LATEST if demonstrations is None else demonstrations.job[:12]
    learn = f"hud train {model['model_name']} {file} --from {job} --epochs {epochs}"
    return [learn] if demonstrations else [f"hud eval {file} claude --all --group 4", learn]


async def advice_for(client: Client, config: TrainConfig, tasks: Iterable[Task]) -> str:
    """Return an explanation for a policy whose runs all have reward 0, with the commands of a warm-up."""
    model = await client.get("/v2/models/resolve", params={"model": config.model})
    commands = await warm_up_commands(client, model, config.tasks, tasks)
    random = "has random weights and " if is_random(model) else ""
    lines = "".join(f"\n    {command}" for command in commands)
    return (
        f"{config.model} {random}never solves a task, and runs that all earn the same teach nothing. Have it learn from "
        f"recorded runs first, then train it by reward:{lines}"
    )


def is_random(model: dict[str, Any]) -> bool:
    """Return True for an untrained model that was created here."""
    return is_tiny(model) and model["head_checkpoint_id"] is None
