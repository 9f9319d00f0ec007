"""Run passes: access of a program to the model of a run that it plays.

    async with run_pass(run, model="my-model") as access:
        ...  # start the program with access.base_url and access.key

At the end of the block the program's model calls are steps of the run, those of a local model with their samples.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

from hud import settings
from hud.client import connect
from hud.client.client import Client
from hud.errors import (
    AgentFault,
    InfrastructureFault,
    RefusedError,
    StoreError,
    UsageError,
    located,
)
from hud.trace import SamplingParams, Step, StopReason, Trace, parse_step
from hud.trace.sampled.call_samples import MODEL_CALLS, expand_samples

T = TypeVar("T")

SECONDS = 2 * 24 * 3600.0
"""Default lifetime of a pass, longer than a rollout; it ends with its block."""
_STOP_REASONS: dict[str, StopReason] = {
    "calls": "max_steps",
    "tokens": "length",
    "cost": "max_steps",
}


class ProgramRun(Protocol):
    """A run that a program plays."""

    trace: Trace

    @property
    def trace_id(self) -> str: ...

    def record(self, step: Step) -> Step:
        """Append a finished step to the trace and make it durable."""


@dataclass(frozen=True)
class RunLimits:
    """Limits of a run's model calls; None: no limit."""

    calls: int | None = None
    tokens: int | None = None
    """Most sampled tokens."""
    cost_usd: float | None = None


@dataclass(frozen=True)
class RunAccess:
    """Access of a program to the model of its run."""

    base_url: str
    """Address without a path; each dialect has its own below it (`/v1/chat/completions`, `/v1/messages`, ...)."""
    key: str
    """Key of every dialect. It opens model calls of this run alone, until its end."""
    model: str
    """Model of the run. Every other name in a request stands for it, too."""


@asynccontextmanager
async def run_pass(
    run: ProgramRun,
    *,
    model: str,
    checkpoint: str | None = None,
    side_model: str | None = None,
    side_names: Sequence[str] = (),
    sampling: SamplingParams | Mapping[str, Any] | None = None,
    limits: RunLimits | None = None,
    trainable: bool = True,
    seconds: float = SECONDS,
    client: Client | None = None,
) -> AsyncIterator[RunAccess]:
    """Give a program access to the model of `run`; record its model calls as the run's steps at the end of the block.

    Calls under the name of `side_model` and those in `side_names` are side calls: recorded without samples. They go to `side_model`,
    a frozen model; without one, to the run's. `sampling` replaces the program's; with
    `trainable`, so do settings that allow samples. `client` None: the platform in the current settings.

    Raises `RefusedError` for an unknown model or a wrong setting. Raises `InfrastructureFault` at the end if the platform refused or failed a call, and the program did not overcome it. A
    program that failed because of a limit or of a full context has ended by it: its `AgentFault` is withdrawn, and
    `run.trace.stop_reason` set.
    """
    platform = client or connect()
    wanted = {
        "trace_id": run.trace_id,
        "model": model,
        "checkpoint": checkpoint,
        "side_model": side_model,
        "side_names": list(side_names),
        "trainable": trainable,
        "sampling": _stated(sampling),
        "limits": _stated(limits),
        "seconds": seconds,
    }
    with ExitStack() as stack:
        opened = await _opened(platform, wanted)
        if platform.embedded is not None:
            url = stack.enter_context(platform.embedded.listening())
        else:
            own = settings.load().gateway_url if client is None else None
            url = own or platform.api_url or ""
        failure: BaseException | None = None
        try:
            yield RunAccess(url.rstrip("/"), opened["key"], model)
        except BaseException as error:
            failure = error
        refusal = await _uncancelled(_end(run, platform, opened))
    failure = _outcome(run, failure, refusal)
    if failure is not None:
        raise failure


async def _opened(platform: Client, wanted: dict[str, Any]) -> dict[str, Any]:
    """Open a pass. A failure is none of the agent's: `RefusedError` for a wrong setting, else `InfrastructureFault`."""
    try:
        opened: dict[str, Any] = await platform.post("/v1/run-passes", wanted)
        return opened
    except UsageError as error:
        raise RefusedError(f"No run pass: {error}", everywhere=True) from error
    except StoreError:
        raise
    except Exception as error:
        raise InfrastructureFault(f"No run pass: {located(error)}") from error


async def _end(run: ProgramRun, platform: Client, opened: dict[str, Any]) -> dict[str, Any] | None:
    """End a pass and record the run's steps; return the worst refusal that the program did not overcome."""
    path = f"/v1/run-passes/{opened['id']}/end"
    try:
        result = await platform.post(path, {"token": opened["token"]}, retry=True)
    except StoreError:
        raise
    except Exception as error:
        refusal = {"kind": "infrastructure", "status": 503, "message": located(error)}
        run.trace.extra[MODEL_CALLS] = {"refusal": refusal}
        return refusal
    run.trace.extra[MODEL_CALLS] = {**result["metrics"], "refusal": result["refusal"]}
    unsendable: AgentFault | None = None
    for payload in expand_samples(result["steps"]):
        try:
            run.record(parse_step(payload))
        except AgentFault as error:  # Arguments of a tool call that cannot be transmitted.
            unsendable = unsendable or error
    if unsendable is not None:
        raise unsendable
    refused: dict[str, Any] | None = result["refusal"]
    return refused


def _outcome(
    run: ProgramRun, failure: BaseException | None, refusal: dict[str, Any] | None
) -> BaseException | None:
    """Return the failure of a run whose program ended with `failure`, and was refused with `refusal`."""
    if refusal is None or not isinstance(failure, Exception | None):
        return failure
    if refusal["kind"] == "infrastructure":
        if isinstance(failure, StoreError):
            return failure
        fault = InfrastructureFault(f"A model call of the program failed: {refusal['message']}")
        fault.__cause__ = failure
        return fault
    run.trace.stop_reason = _STOP_REASONS[refusal.get("limit", "tokens")]
    return None if isinstance(failure, AgentFault) else failure


async def _uncancelled(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work that a cancellation does not end."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _stated(values: SamplingParams | RunLimits | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the values that are set."""
    if values is None:
        return {}
    fields = dict(values) if isinstance(values, Mapping) else asdict(values)
    return {name: value for name, value in fields.items() if value not in (None, ())}
