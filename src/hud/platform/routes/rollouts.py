"""Routes of rollouts that the platform plays.

POST /v2/rollouts/submit | cancel | cancel_job | cancel_user_jobs
POST /v2/fleet/take | renew | release | finish      (the platform's own workers only)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field

from hud.environment.templates.runtime_config import refuse_unsupported, run_seconds_of
from hud.errors import NotFoundError, PlatformError, UsageError
from hud.fleet.submitted_agents import refuse_unplayable
from hud.platform.access import Identity
from hud.platform.access.keys import Keys
from hud.platform.access.passes import Passes
from hud.platform.dependencies import RUN, StoppingPart, Team, Who, of_team, part
from hud.platform.environments.registry import Environments, RunnableEnvironment
from hud.platform.models.registry import Registry
from hud.platform.rollouts.rollout_queue import Rollouts, Taken, spec_of
from hud.platform.tasksets.playable import environments_of
from hud.trace import dashed, plain

router = APIRouter(prefix="/v2/rollouts", tags=["rollouts"], dependencies=RUN)
WAIT_SECONDS = 5.0
POLL_SECONDS = 0.1
LONGEST_SECONDS = 24 * 3600.0
"""Most that a rollout may take, whatever it asks for."""
PASS_MARGIN_SECONDS = 600.0
"""Seconds for which a rollout's own pass outlives the rollout's time limit."""


async def _worker(who: Who) -> None:
    if not who.worker:
        raise PlatformError("Only the platform's own workers take rollouts.", 403)


RolloutsPart = Annotated[Rollouts, part(lambda parts: Rollouts(parts.store))]
fleet = APIRouter(prefix="/v2/fleet", tags=["rollouts"], dependencies=[Depends(_worker)])


class AgentSpec(BaseModel):
    """Agent and model of the rollout."""

    type: str = "openai_compatible"
    config: dict[str, Any] = Field(default_factory=dict)


class Submission(BaseModel):
    """A rollout to play."""

    trace_id: str
    job_id: str | None = None
    group_id: str | None = None
    parent_trace_id: str | None = None
    env: str
    task: str
    slug: str | None = None
    args: dict[str, Any] = Field(default_factory=dict)
    agent: AgentSpec
    runtime_config: dict[str, Any] | None = None
    verifier: dict[str, Any] | None = None
    attempt: int = 0
    """Index of the run in its group."""
    training_progress: float | None = Field(default=None, ge=0, le=1)
    """Share of the training that is done, where it is played for one."""


class Cancellation(BaseModel):
    """Rollout or job to cancel."""

    trace_id: str | None = None
    job_id: str | None = None


class Asked(BaseModel):
    """A worker asks for work."""

    worker: str
    most: int = Field(ge=1, le=256)


class Held(BaseModel):
    """Leases of a worker."""

    worker: str
    traces: list[str]


@dataclass(frozen=True)
class Handover:
    """Rollouts as a worker gets them."""

    keys: Keys
    passes: Passes
    registry: Registry

    def all(self, taken: list[Taken]) -> list[dict[str, Any]]:
        """Return rollouts, each with a pass of its own; an environment that several need is looked up once."""

        @cache
        def runnable(team: str, env: str) -> RunnableEnvironment:
            return Environments(self.registry.store, team).runnable(env)

        return [self._one(one, runnable) for one in taken]

    def _one(
        self, one: Taken, runnable: Callable[[str, str], RunnableEnvironment]
    ) -> dict[str, Any]:
        who = Identity(team_id=one.team_id, scopes=frozenset({"run"}), key_id=one.key_id)
        key = self.keys.by_id(one.key_id) if one.key_id else None
        if key is not None:  # Its rollouts use up its limits.
            who = replace(key.identity, scopes=who.scopes)
        limit = min(run_seconds_of(one.spec.get("runtime_config")), LONGEST_SECONDS)
        given: dict[str, Any] = {
            "trace_id": one.trace_id,
            "attempt": one.attempt,
            "job_id": one.job_id,
            "spec": one.spec,
            "pass": self.passes.make(who, limit + PASS_MARGIN_SECONDS),
            "limit_seconds": limit,
            "problem": None,
            "environments": {},
            "samples": False,
        }
        try:
            for env in environments_of([one.spec]):
                given["environments"][env] = runnable(one.team_id, env).shown()
        except NotFoundError as error:
            given["problem"] = str(error)
        # A provider's model that is in no registry is the gateway's to find.
        with contextlib.suppress(NotFoundError):
            model = self.registry.of(one.team_id).model(one.spec["agent"]["config"]["model"])
            given["samples"] = model.kind != "provider"
        return given


@router.post("/submit")
def submit(
    rollouts: RolloutsPart,
    environments: Annotated[Environments, of_team(Environments)],
    who: Who,
    body: Submission,
) -> dict[str, str]:
    """Queue a rollout under the trace id that the client chose; submitting it again changes nothing."""
    trace_id = _id(body.trace_id, "trace_id")
    job_id = None if body.job_id is None else _id(body.job_id, "job_id")
    refuse_unplayable(body.agent.type, body.agent.config)
    slug = body.slug or body.task
    refuse_unsupported(slug, body.runtime_config, "a worker of this server", honoured=["memory_mb"])
    for env in environments_of([{"env": body.env, "verifier": body.verifier}]):
        environments.runnable(env)
    status = rollouts.submit(
        who.team_id, who.key_id, trace_id, job_id, spec_of(body.model_dump(mode="json"))
    )
    return {"trace_id": dashed(trace_id), "status": status}


@router.post("/cancel")
def cancel(rollouts: RolloutsPart, team: Team, body: Cancellation) -> dict[str, str]:
    """Cancel one rollout; `noop` where it is over, or was never there."""
    trace_id = _id(body.trace_id or "", "trace_id")
    count = rollouts.cancel(team, trace_id=trace_id)
    return {"status": "accepted" if count else "noop"}


@router.post("/cancel_job")
def cancel_job(rollouts: RolloutsPart, team: Team, body: Cancellation) -> dict[str, int]:
    """Cancel the open rollouts of a job."""
    job_id = _id(body.job_id or "", "job_id")
    cancelled = rollouts.cancel(team, job_id=job_id)
    return {"total_found": rollouts.known(team, job_id=job_id), "cancelled": cancelled}


@router.post("/cancel_user_jobs")
def cancel_all(rollouts: RolloutsPart, team: Team) -> dict[str, Any]:
    """Cancel every open rollout of the team."""
    jobs = rollouts.open_jobs(team)
    details = [
        {"job_id": dashed(job), "cancelled": rollouts.cancel(team, job_id=job)}
        for job in jobs
        if job
    ]
    total = sum(int(str(entry["cancelled"])) for entry in details) + rollouts.cancel(team)
    return {
        "jobs_cancelled": len(details),
        "total_tasks_cancelled": total,
        "job_details": details,
    }


@fleet.post("/take")
async def take(
    rollouts: RolloutsPart,
    handover: Annotated[
        Handover, part(lambda parts: Handover(parts.keys, parts.passes, parts.registry))
    ],
    stopping: StoppingPart,
    body: Asked,
) -> dict[str, Any]:
    """Give a worker rollouts, waiting a few seconds for some; each comes with a pass of its own."""
    until = asyncio.get_running_loop().time() + WAIT_SECONDS
    while True:
        taken = await asyncio.to_thread(rollouts.take, body.worker, body.most)
        late = asyncio.get_running_loop().time() > until
        if taken or late or stopping.is_set():
            break
        await asyncio.sleep(POLL_SECONDS)
    items = await asyncio.to_thread(handover.all, taken) if taken else []
    return {"items": items, "lease_seconds": rollouts.lease_seconds}


@fleet.post("/renew")
def renew(rollouts: RolloutsPart, body: Held) -> dict[str, list[str]]:
    """Hold rollouts longer; says which to cancel and which are lost."""
    cancelled, lost = rollouts.renew(body.worker, body.traces)
    return {"cancel": cancelled, "lost": lost}


@fleet.post("/release")
def release(rollouts: RolloutsPart, body: Held) -> dict[str, bool]:
    """Give rollouts back that were not played to their end."""
    rollouts.release(body.worker, body.traces)
    return {"released": True}


@fleet.post("/finish/{trace_id}")
async def finish(
    request: Request,
    rollouts: RolloutsPart,
    trace_id: str,
    worker: str,
    attempt: int,
    again: bool = False,
) -> dict[str, bool]:
    """Take over what an attempt recorded, as journal lines; `taken` is false where it came too late."""
    events = await request.body()
    taken = await asyncio.to_thread(
        rollouts.finish, worker, plain(trace_id), attempt, events, again=again
    )
    return {"taken": taken}


def _id(text: str, name: str) -> str:
    identifier = plain(text)
    if len(identifier) != 32 or set(identifier) - set("0123456789abcdef"):
        raise UsageError(f"{name} must be a UUID, not {text!r}.")
    return identifier
