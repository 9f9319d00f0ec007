"""Routes of run passes: keys for programs that play a run.

POST /v1/run-passes                open a pass for a run
POST /v1/run-passes/{id}/end       end it; returns the run's steps
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from hud.trace import ReasoningEffort
from hud_platform.dependencies import RUN, ConfigPart, StrictBody, Who, part

router = APIRouter(prefix="/v1/run-passes", tags=["run passes"], dependencies=RUN)
LONGEST_SECONDS = 7 * 24 * 3600.0
RunPassesPart = Annotated[Any, part(lambda parts: parts.run_passes)]
"""`RunPasses`, whose import loads the gateway."""


class RunSampling(BaseModel):
    """Sampling of the run, in place of what the program sets."""

    model_config = ConfigDict(extra="forbid")

    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0)
    max_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of each answer."""
    seed: int | None = Field(default=None, ge=0)
    reasoning_effort: ReasoningEffort | None = None


class RunLimits(BaseModel):
    """Limits of the run."""

    model_config = ConfigDict(extra="forbid")

    calls: int | None = Field(default=None, ge=0)
    tokens: int | None = Field(default=None, ge=0)
    cost_usd: float | None = Field(default=None, ge=0)


class PassOpened(StrictBody):
    """Request for a pass."""

    trace_id: str
    model: str
    checkpoint: str | None = None
    side_model: str | None = None
    side_names: list[str] = Field(default=[], max_length=100)
    trainable: bool = True
    sampling: RunSampling = RunSampling()
    limits: RunLimits = RunLimits()
    seconds: float = Field(default=3600.0, gt=0, le=LONGEST_SECONDS)


class PassEnded(StrictBody):
    """End of a pass, with the token that its opener got."""

    token: str


@router.post("")
async def open_pass(
    who: Who, run_passes: RunPassesPart, config: ConfigPart, body: PassOpened
) -> dict[str, Any]:
    """Open a pass: `{id, key, token, base_url, expires_at}`. The program gets `key` alone; `token` ends the pass."""
    opened: dict[str, Any] = await run_passes.open(who, body.model_dump(exclude_none=True))
    return {**opened, "base_url": config.url or None}


@router.post("/{pass_id}/end")
async def end_pass(
    who: Who, run_passes: RunPassesPart, pass_id: str, body: PassEnded
) -> dict[str, Any]:
    """End a pass: refuse and cancel its calls, and return `{steps, refusal, metrics}`. Idempotent."""
    result: dict[str, Any] = await run_passes.end(who, pass_id, body.token)
    return result
