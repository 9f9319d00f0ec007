"""Routes of workers; a pass opens these alone.

POST /v2/fleet/join | take | renew | release | leave | steps/{trace_id} | finish/{trace_id}
GET  /v2/fleet/queue      /v2/fleet/builds/{build_id}      /v2/fleet/packages/{digest}
"""

from __future__ import annotations

import asyncio
import re
from contextlib import ExitStack
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field
from starlette.background import BackgroundTask

from hud.errors import UsageError
from hud.platform.dependencies import StoppingPart, StorePart, Who, of_team, part
from hud.platform.environments.packed_builds import PackedBuilds
from hud.platform.leases.leased_queue import Lease
from hud.platform.rollouts.handover import Handover
from hud.platform.rollouts.nodes import Node, Nodes, holder
from hud.platform.rollouts.rollout_queue import Rollouts
from hud.trace import plain


async def _worker(who: Who) -> None:
    holder(who, "")


router = APIRouter(prefix="/v2/fleet", tags=["fleet"], dependencies=[Depends(_worker)])
WAIT_SECONDS = 5.0
POLL_SECONDS = 0.1
MOST_LABELS = 32
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")

RolloutsPart = Annotated[Rollouts, part(lambda parts: Rollouts(parts.store))]
NodesPart = Annotated[Nodes, part(lambda parts: Nodes(parts.store))]
HandoverPart = Annotated[
    Handover, part(lambda parts: Handover(parts.keys, parts.passes, parts.registry))
]
Packed = Annotated[PackedBuilds, of_team(PackedBuilds)]


def _lease(who: Who, trace_id: str, worker: str, attempt: int) -> Lease:
    return Lease(plain(trace_id), holder(who, worker), attempt)


HeldLease = Annotated[Lease, Depends(_lease)]


class Capacity(BaseModel):
    """Resources of a machine, see `hud.fleet.capacity`."""

    cpus: float = Field(default=0.0, ge=0, le=1e6)
    memory_mb: float = Field(default=0.0, ge=0, le=1e12)
    gpus: int = Field(default=0, ge=0, le=1024)
    gpu_types: list[Annotated[str, Field(max_length=100)]] = Field(default=[], max_length=64)
    images: bool = False
    platform: str | None = Field(default=None, max_length=64)


class Joining(BaseModel):
    """A worker that joins."""

    worker: str = Field(min_length=16, max_length=200)
    """Secret name of the worker: together with the pass, it identifies the holder of its leases."""
    name: str = Field(min_length=1, max_length=200)
    """Name that people see."""
    rollouts: int = Field(ge=1, le=65_536)
    """Most rollouts that it plays at a time."""
    labels: dict[str, str] = {}
    capacity: Capacity = Capacity()
    version: str = Field(default="", max_length=64)


class Load(BaseModel):
    """Counts of a worker, as it reports them."""

    running: int = Field(default=0, ge=0)
    finished: int = Field(default=0, ge=0)
    broken: int = Field(default=0, ge=0)
    failures_in_a_row: int = Field(default=0, ge=0)
    per_minute: float = Field(default=0.0, ge=0)


class Asked(BaseModel):
    """A worker asks for work."""

    worker: str
    most: int = Field(ge=1, le=256)
    free: dict[str, float] = {}
    load: Load | None = None


class Held(BaseModel):
    """Leases of a worker."""

    worker: str
    traces: list[str]
    load: Load | None = None


class Leaving(BaseModel):
    """A worker that ends in order."""

    worker: str


@router.post("/join")
def join(nodes: NodesPart, rollouts: RolloutsPart, who: Who, body: Joining) -> dict[str, Any]:
    """Register a worker; joining again changes what it says of itself, and nothing else."""
    _check(body.labels)
    node_id = nodes.join(
        who,
        body.worker,
        shown=body.name,
        labels=body.labels,
        capacity={**body.capacity.model_dump(), "rollouts": body.rollouts},
        version=body.version,
    )
    return {"node": node_id, "lease_seconds": rollouts.lease_seconds}


@router.post("/take")
async def take(
    request: Request,
    rollouts: RolloutsPart,
    nodes: NodesPart,
    handover: HandoverPart,
    stopping: StoppingPart,
    who: Who,
    body: Asked,
) -> dict[str, Any]:
    """Give a worker rollouts that fit it, waiting a few seconds for some; each comes with a pass of its own."""
    node = await asyncio.to_thread(_heard, nodes, who, body.worker, body.load)
    until = asyncio.get_running_loop().time() + WAIT_SECONDS
    while True:
        if await request.is_disconnected():  # Whatever it took would be lost until its leases end.
            return {}
        taken = await asyncio.to_thread(rollouts.take_for, node, body.most, body.free)
        late = asyncio.get_running_loop().time() > until
        if taken or late or stopping.is_set() or node.state == "draining":
            break
        await asyncio.sleep(POLL_SECONDS)
    here = who.key_id is None
    items = await asyncio.to_thread(handover.all, taken, here=here) if taken else []
    if taken and await request.is_disconnected():
        await asyncio.to_thread(rollouts.release, node.worker, [one.trace_id for one in taken])
    return {"items": items, "lease_seconds": rollouts.lease_seconds, "state": node.state}


@router.post("/renew")
def renew(rollouts: RolloutsPart, nodes: NodesPart, who: Who, body: Held) -> dict[str, Any]:
    """Hold rollouts longer; says which to cancel and which are lost, and the state that people gave the node."""
    node = _heard(nodes, who, body.worker, body.load)
    cancelled, lost = rollouts.renew(node.worker, body.traces)
    return {"cancel": cancelled, "lost": lost, "state": node.state}


@router.post("/release")
def release(rollouts: RolloutsPart, who: Who, body: Held) -> dict[str, bool]:
    """Give rollouts back that were not played to their end."""
    rollouts.release(holder(who, body.worker), body.traces)
    return {"released": True}


@router.post("/leave")
def leave(nodes: NodesPart, rollouts: RolloutsPart, who: Who, body: Leaving) -> dict[str, bool]:
    """Note that a worker ended in order; what it still holds goes back into the queue."""
    node = nodes.of(who, body.worker)
    rollouts.release_all(node.worker)
    nodes.leave(node)
    return {"left": True}


@router.post("/steps/{trace_id}")
async def steps(
    request: Request,
    rollouts: RolloutsPart,
    lease: HeldLease,
    first: bool,
) -> dict[str, bool]:
    """Take over what an attempt recorded so far, as journal lines; `taken` is false where it lost its lease."""
    events = await request.body()
    return {"taken": await asyncio.to_thread(rollouts.stream, lease, events, first=first)}


@router.post("/finish/{trace_id}")
async def finish(
    request: Request,
    rollouts: RolloutsPart,
    lease: HeldLease,
    again: bool = False,
    first: bool = True,
) -> dict[str, bool]:
    """Take over the rest of what an attempt recorded, and end it; `taken` is false where it came too late."""
    events = await request.body()
    taken = await asyncio.to_thread(rollouts.finish, lease, events, again=again, first=first)
    return {"taken": taken}


@router.get("/queue")
def queue(nodes: NodesPart, rollouts: RolloutsPart, who: Who) -> dict[str, int]:
    """Rollouts that workers with this pass hold (`running`), and those that wait and that one of them could play.

    A program that places workers scales by it. While no worker joined within the last hour, all that wait are counted.
    """
    team = None if who.key_id is None else who.team_id
    return {
        "waiting": rollouts.waiting_for(team, nodes.offers_by(who.key_id)),
        "running": rollouts.held_by(who.key_id),
    }


@router.get("/builds/{build_id}")
def build(packed: Packed, build_id: str) -> dict[str, Any]:
    """Digest and size of a build; it is packed when the first worker asks for it."""
    return packed.describe(build_id)


@router.get("/packages/{digest}")
def package(packed: Packed, store: StorePart, digest: str) -> FileResponse:
    """A packed build (tar.gz), also from the middle on (Range)."""
    key = packed.find(digest)
    stack = ExitStack()
    path = stack.enter_context(store.blobs.local(key))
    return FileResponse(path, media_type="application/gzip", background=BackgroundTask(stack.close))


def _heard(nodes: Nodes, who: Who, worker: str, load: Load | None) -> Node:
    node = nodes.of(who, worker)
    if load is not None:
        nodes.heard(node, load.model_dump())
    return node


def _check(labels: dict[str, str]) -> None:
    """Raise `UsageError` for labels that are not short names with short values."""
    if len(labels) > MOST_LABELS:
        raise UsageError(f"A node has at most {MOST_LABELS} labels.")
    for name, value in labels.items():
        if not _LABEL.fullmatch(name) or not _LABEL.fullmatch(value):
            raise UsageError(
                f"The label {name!r}={value!r} is not right: names and values are letters, digits, dots, dashes and "
                "slashes, at most 63."
            )
