"""`RuntimeConfig`: a task's requirements for its environment's runtime, `Task(..., runtime_config=RuntimeConfig(...))`.

Plain data, stored unchanged with the task; a runtime rejects requirements that it cannot satisfy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hud.errors import UsageError


class _Requirement(BaseModel):
    model_config = ConfigDict(extra="forbid")


class RuntimeGPU(_Requirement):
    """GPUs: accepted types, and number."""

    type: str | list[str] | None = None
    count: int = Field(default=1, ge=1)


class RuntimeTPU(_Requirement):
    """A TPU slice."""

    type: str
    topology: str = Field(pattern=r"^\d+(x\d+)*$")


class RuntimeResources(_Requirement):
    """Resources of the machine."""

    cpu: float | None = Field(default=None, gt=0)
    memory_mb: int | None = Field(default=None, gt=0)
    storage_mb: int | None = Field(default=None, gt=0)
    gpu: RuntimeGPU | None = None
    os: str | None = Field(default=None, min_length=1)
    tpu: RuntimeTPU | None = None


class RuntimeLimits(_Requirement):
    """Time limits, in seconds."""

    startup_timeout_s: float | None = Field(default=None, gt=0)
    run_timeout_s: float | None = Field(default=None, gt=0)


class ComposeProject(_Requirement):
    """Several containers, by Compose."""

    document: dict[str, Any]
    """The content of a `compose.yaml`."""
    root: dict[str, Any] | None = None
    service_access: Literal["all", "main"] | str | None = None


class RuntimeConfig(_Requirement):
    """Requirements of a task for its runtime; unset fields require nothing."""

    image: str | None = Field(default=None, min_length=1)
    compose: ComposeProject | None = None
    resources: RuntimeResources | None = None
    limits: RuntimeLimits | None = None
    labels: dict[str, str] | None = None
    """Labels of the fleet's node that plays it, such as {"market": "on-demand"}."""

    @model_validator(mode="after")
    def _one_source(self) -> RuntimeConfig:
        if self.image is not None and self.compose is not None:
            raise ValueError("give either image or compose, not both")
        return self


_NOTHING = RuntimeConfig()


def requirements_of(slug: str, stored: dict[str, Any] | None) -> RuntimeConfig:
    """Parse a task's stored `runtime_config`. Raises `UsageError` for an invalid one."""
    if not stored:
        return _NOTHING
    try:
        return RuntimeConfig.model_validate(stored)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise UsageError(f"Task {slug!r}: runtime_config.{where}: {problem['msg']}.") from None


def run_seconds_of(stored: dict[str, Any] | None) -> float:
    """Return a task's time limit of a rollout, in seconds; infinite by default.

    Invalid requirements are left to the runtime.
    """
    try:
        limits = requirements_of("", stored).limits
    except UsageError:
        return math.inf
    return math.inf if limits is None or limits.run_timeout_s is None else limits.run_timeout_s


def refuse_unsupported(
    slug: str,
    stored: dict[str, Any] | None,
    runtime: str,
    honoured: Iterable[str] = (),
    *,
    labels: bool = False,
    images: bool = False,
) -> RuntimeConfig:
    """Return a task's requirements; raises `UsageError` for those that `runtime` cannot satisfy.

    `honoured` names the supported resources. `labels`: nodes are selected by labels; `images`: it runs container images.
    `limits.run_timeout_s` applies to every rollout.
    """
    requirements = requirements_of(slug, stored)
    if requirements is _NOTHING:
        return requirements
    refused = {"image": not images, "compose": True, "labels": not labels}
    wanted = [name for name in refused if refused[name] and getattr(requirements, name) is not None]
    if requirements.resources is not None:
        resources = requirements.resources.model_dump(exclude_none=True).keys() - set(honoured)
        wanted += [f"resources.{name}" for name in sorted(resources)]
    if wanted:
        raise UsageError(
            f"Task {slug!r} asks for {', '.join(wanted)} in its runtime_config, which {runtime} cannot give; use a "
            "runtime that can, or take it out of the task."
        )
    return requirements


def met_by_node(stored: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return what is left of a task's `runtime_config` for the runtime on a node that was chosen for it."""
    if not stored:
        return stored
    left = {name: value for name, value in stored.items() if name != "labels"}
    resources = left.get("resources")
    if isinstance(resources, dict):
        left["resources"] = {
            name: value for name, value in resources.items() if name not in ("cpu", "gpu")
        }
    return left
