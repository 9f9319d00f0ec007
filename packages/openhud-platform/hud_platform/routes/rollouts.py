"""Routes of rollouts that the platform plays.

POST /v2/rollouts/submit | submit_many | cancel | cancel_job | cancel_user_jobs      GET /v2/rollouts/{trace_id}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from hud import exact_json
from hud.environment.templates.runtime_config import refuse_unsupported
from hud.errors import HudError, UsageError
from hud.fleet.capacity import platform_tag
from hud.fleet.submitted_agents import refuse_unplayable
from hud.trace import dashed, plain
from hud_platform.access import Identity
from hud_platform.dependencies import READ, RUN, Team, Who, of_team, part
from hud_platform.environments.packed_builds import has_packages
from hud_platform.environments.registry import Environments
from hud_platform.rollouts.matching import lacking, needs_of
from hud_platform.rollouts.nodes import Nodes
from hud_platform.rollouts.rollout_queue import Rollouts, Submitted, spec_of
from hud_platform.tasksets.playable import environments_of

router = APIRouter(prefix="/v2/rollouts", tags=["rollouts"])
HONOURED = ("cpu", "memory_mb", "gpu")
"""Resources that a task may require of a node."""
RolloutsPart = Annotated[Rollouts, part(lambda parts: parts.fleet.rollouts)]


class Sampling(BaseModel):
    """Sampling parameters, and the place that the seed of each turn is made of (see `hud.train.rollouts.seeds`)."""

    place: list[str]
    params: dict[str, Any]
    checkpoint: str | None = None
    """Checkpoint that plays; None: the model's head."""


class AgentSpec(BaseModel):
    """Agent and model of the rollout."""

    type: str = "openai_compatible"
    config: dict[str, Any] = Field(default_factory=dict)
    sampling: Sampling | None = None
    """Sampling of a training rollout; None for any other."""


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
    attempt: int = Field(default=0, ge=0, lt=2**31)
    """Index of the run in its group."""
    training_progress: float | None = Field(default=None, ge=0, le=1)
    """Share of the training that is done, where it is played for one."""


class Submissions(BaseModel):
    """Rollouts to play."""

    rollouts: list[Submission] = Field(min_length=1, max_length=512)


class Cancellation(BaseModel):
    """Rollout or job to cancel."""

    trace_id: str | None = None
    job_id: str | None = None


@router.post("/submit", dependencies=RUN)
def submit(
    rollouts: RolloutsPart,
    environments: Annotated[Environments, of_team(Environments)],
    who: Who,
    body: Submission,
) -> dict[str, Any]:
    """Queue a rollout under the trace id that the client chose; submitting it again changes nothing."""
    [answer] = _submitted(rollouts, environments, who, [body])
    if isinstance(answer, HudError):
        raise answer
    return {"trace_id": dashed(plain(body.trace_id)), "status": answer}


@router.post("/submit_many", dependencies=RUN)
def submit_many(
    rollouts: RolloutsPart,
    environments: Annotated[Environments, of_team(Environments)],
    who: Who,
    body: Submissions,
) -> dict[str, Any]:
    """Queue many rollouts, as `/submit` does one. The answer has a result for each: its `status` in the queue, or the
    `refused` status and `detail` of one that is refused, which costs no other."""
    answers = _submitted(rollouts, environments, who, body.rollouts)
    return {
        "results": [
            {"refused": answer.status, "detail": str(answer)}
            if isinstance(answer, HudError)
            else {"status": answer}
            for answer in answers
        ]
    }


def _submitted(
    rollouts: Rollouts, environments: Environments, who: Identity, bodies: Sequence[Submission]
) -> list[str | HudError]:
    """Queue rollouts; returns the status of each, or the error for which it is refused."""
    answers: dict[int, str | HudError] = {}
    accepted: dict[int, Submitted] = {}
    needs_of_body = _Needs(rollouts, environments, who.team_id)
    for number, body in enumerate(bodies):
        try:
            trace_id = _id(body.trace_id, "trace_id")
            job_id = None if body.job_id is None else _id(body.job_id, "job_id")
            refuse_unplayable(body.agent.type, body.agent.config)
            needs = needs_of_body(body)
        except UsageError as error:
            answers[number] = error
        else:
            spec = spec_of(body.model_dump(mode="json"))
            accepted[number] = Submitted(trace_id, job_id, spec, needs)
    if accepted:
        statuses = rollouts.submit_many(who.team_id, who.key_id, list(accepted.values()))
        answers |= dict(zip(accepted, statuses, strict=True))
    return [answers[number] for number in range(len(bodies))]


class _Needs:
    """Requirements of the rollouts of one request: of those of one environment, found once."""

    def __init__(self, rollouts: Rollouts, environments: Environments, team: str) -> None:
        self._rollouts, self._environments, self._team = rollouts, environments, team
        self._found: dict[bytes, str | None] = {}

    def __call__(self, body: Submission) -> str | None:
        alike = exact_json.dumps([body.env, body.verifier, body.runtime_config])
        if alike not in self._found:
            self._found[alike] = _needs(self._rollouts, self._environments, self._team, body)
        return self._found[alike]


def _needs(
    rollouts: Rollouts, environments: Environments, team: str, body: Submission
) -> str | None:
    """Return the requirements of a rollout. Raises `UsageError` for those that no node of the fleet meets."""
    slug = body.slug or body.task
    refuse_unsupported(
        slug, body.runtime_config, "a worker of this server", honoured=HONOURED, labels=True
    )
    images, platform = False, None
    for env in environments_of([{"env": body.env, "verifier": body.verifier}]):
        build = environments.runnable(env)
        images = images or build.image is not None
        if build.image is None and has_packages(build.folder):
            platform = platform_tag()
    needs = needs_of(slug, body.runtime_config, images=images, platform=platform)
    needed = needs_of(slug, body.runtime_config, images=False, platform=None)
    if needed is not None:
        missing = lacking(Nodes(rollouts.store).offers(team), needed)
        if missing:
            raise UsageError(
                f"Task {slug!r} requires what no node of the fleet has; the closest lacks {', '.join(missing)}. Join one "
                "that has it (hud fleet join), or take it out of the task's runtime_config."
            )
    return needs


@router.get("/{trace_id}", dependencies=READ)
def record(rollouts: RolloutsPart, team: Team, trace_id: str) -> dict[str, Any]:
    """One rollout of the queue, with its attempts; `lacking`: requirements that the closest node of the last hour lacks."""
    rollout = rollouts.record(team, _id(trace_id, "trace_id"))
    needs = rollout["needs"]
    missing = (
        lacking(Nodes(rollouts.store).offers(team), exact_json.dumps(needs).decode())
        if needs
        else []
    )
    return {**rollout, "lacking": missing}


@router.post("/cancel", dependencies=RUN)
def cancel(rollouts: RolloutsPart, team: Team, body: Cancellation) -> dict[str, str]:
    """Cancel one rollout; `noop` where it is over, or was never there."""
    trace_id = _id(body.trace_id or "", "trace_id")
    count = rollouts.cancel(team, trace_id=trace_id)
    return {"status": "accepted" if count else "noop"}


@router.post("/cancel_job", dependencies=RUN)
def cancel_job(rollouts: RolloutsPart, team: Team, body: Cancellation) -> dict[str, int]:
    """Cancel the open rollouts of a job."""
    job_id = _id(body.job_id or "", "job_id")
    cancelled = rollouts.cancel(team, job_id=job_id)
    return {"total_found": rollouts.count_of_job(team, job_id=job_id), "cancelled": cancelled}


@router.post("/cancel_user_jobs", dependencies=RUN)
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


def _id(text: str, name: str) -> str:
    identifier = plain(text)
    if len(identifier) != 32 or set(identifier) - set("0123456789abcdef"):
        raise UsageError(f"{name} must be a UUID, not {text!r}.")
    return identifier
