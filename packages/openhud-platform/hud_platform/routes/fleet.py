"""Routes of workers; a pass opens these alone.

POST /v2/fleet/join | take | renew | release | leave | events | snapshot | snapshot/last
GET  /v2/fleet/queue      /v2/fleet/builds/{build_id}      /v2/fleet/packages/{digest}
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from contextlib import ExitStack
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import FileResponse, Response
from pydantic import BaseModel, Field, ValidationError
from starlette.background import BackgroundTask

from hud import exact_json
from hud.errors import HudError, UsageError
from hud.trace import plain
from hud_platform.access import Identity
from hud_platform.dependencies import StoppingPart, StorePart, Who, of_team, part
from hud_platform.environments.packed_builds import PackedBuilds
from hud_platform.leases.leased_queue import Lease
from hud_platform.rollouts.brought_events import Answer, Brought, store_events
from hud_platform.rollouts.fleet import Fleet
from hud_platform.rollouts.nodes import Node, Nodes, holder


async def _worker(who: Who) -> None:
    holder(who, "")


router = APIRouter(prefix="/v2/fleet", tags=["fleet"], dependencies=[Depends(_worker)])
WAIT_SECONDS = 5.0
POLL_SECONDS = 0.1
"""Between two looks for what was submitted to this server."""
LOOK_SECONDS = 1.0
"""Between two looks for what another server put into the queue, and for leases that ran out."""
MOST_LABELS = 32
MOST_NAMED = 65_536
"""Rollouts in one request about leases: as many as a worker may play at a time."""
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")

FleetPart = Annotated[Fleet, part(lambda parts: parts.fleet)]
TraceId = Annotated[str, Field(max_length=64, pattern="^[0-9A-Za-z-]*$")]
"""Id of a rollout: it stands in the server's log where a request is refused."""
NodesPart = Annotated[Nodes, part(lambda parts: parts.fleet.nodes)]
Packed = Annotated[PackedBuilds, of_team(PackedBuilds)]


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


Count = Annotated[int, Field(ge=0, lt=2**53)]


class Load(BaseModel):
    """Counts of a worker, as it reports them."""

    running: Count = 0
    finished: Count = 0
    broken: Count = 0
    failures_in_a_row: Count = 0
    per_minute: float = Field(default=0.0, ge=0, le=1e12)


class Asked(BaseModel):
    """A worker asks for work."""

    worker: str
    most: int = Field(ge=0, le=256)
    """Most rollouts that it plays at once; 0: the request does not wait for any."""
    ahead: int = Field(default=0, ge=0, le=256)
    """Most rollouts beyond `most` that it will begin in a moment; given where many wait."""
    free: dict[str, float] = {}
    load: Load | None = None


class Held(BaseModel):
    """Leases of a worker."""

    worker: str
    traces: list[TraceId] = Field(max_length=MOST_NAMED)
    load: Load | None = None


class Released(BaseModel):
    """Leases that a worker gives back."""

    worker: str
    traces: list[TraceId] = Field(max_length=MOST_NAMED)
    begun: bool = True
    """False: no attempt was begun, and none is counted."""


class OneLease(BaseModel):
    """A worker's lease of one rollout."""

    worker: str
    trace_id: TraceId
    attempt: int = Field(ge=1, lt=2**31)

    def of(self, who: Identity) -> Lease:
        """Return the lease, if `who` may hold one."""
        return Lease(plain(self.trace_id), holder(who, self.worker), self.attempt)


class Leaving(BaseModel):
    """A worker that ends in order."""

    worker: str


class Part(BaseModel):
    """One attempt of a request that brings events: the next `size` bytes of its body are of this attempt."""

    trace_id: TraceId
    attempt: int = Field(ge=1, lt=2**31)
    size: int = Field(ge=0)
    over: bool
    again: bool = False
    first: bool = True


class Events(BaseModel):
    """First line of a request that brings events."""

    worker: str
    parts: list[Part] = Field(min_length=1, max_length=512)


@router.post("/join")
def join(fleet: FleetPart, who: Who, body: Joining) -> dict[str, Any]:
    """Register a worker; joining again changes what it says of itself, and nothing else."""
    _check(body.labels)
    node_id = fleet.nodes.join(
        who,
        body.worker,
        shown=body.name,
        labels=body.labels,
        capacity={**body.capacity.model_dump(), "rollouts": body.rollouts},
        version=body.version,
    )
    return {"node": node_id, "lease_seconds": fleet.rollouts.lease_seconds}


@router.post("/take")
async def take(
    request: Request, fleet: FleetPart, stopping: StoppingPart, who: Who, body: Asked
) -> Response:
    """Give a worker rollouts that fit it, waiting a few seconds for some; each comes with a pass of its own."""
    here = who.key_id is None

    def look(node: Node) -> list[dict[str, Any]]:
        return fleet.take(node, body.most, body.ahead, body.free, here=here)

    def begin() -> tuple[Node, list[dict[str, Any]]]:
        node = _heard(fleet.nodes, who, body.worker, body.load)
        return node, look(node)

    now = asyncio.get_running_loop().time
    began, seen = now(), fleet.rollouts.changes
    node, items = await asyncio.to_thread(begin)
    looked = now()
    while not items and body.most and node.state != "draining" and now() < began + WAIT_SECONDS:
        if stopping.is_set():
            break
        await asyncio.sleep(POLL_SECONDS)
        if fleet.rollouts.changes == seen and now() < looked + LOOK_SECONDS:
            continue
        if await request.is_disconnected():  # What it took would be lost until its leases end.
            return _json({})
        looked, seen = now(), fleet.rollouts.changes
        items = await asyncio.to_thread(look, node)
    if items and await request.is_disconnected():
        held = [rollout["trace_id"] for rollout in items]
        await asyncio.to_thread(fleet.rollouts.release, node.worker, held, begun=False)
    seconds = fleet.rollouts.lease_seconds
    return _json({"items": items, "lease_seconds": seconds, "state": node.state})


@router.post("/renew")
def renew(fleet: FleetPart, who: Who, body: Held) -> dict[str, Any]:
    """Hold rollouts longer; says which to cancel and which are lost, and the state that people gave the node."""
    node = _heard(fleet.nodes, who, body.worker, body.load)
    cancelled, lost = fleet.rollouts.renew(node.worker, body.traces)
    return {"cancel": cancelled, "lost": lost, "state": node.state}


@router.post("/release")
def release(fleet: FleetPart, who: Who, body: Released) -> dict[str, bool]:
    """Give rollouts back that were not played to their end."""
    fleet.rollouts.release(holder(who, body.worker), body.traces, begun=body.begun)
    return {"released": True}


@router.post("/leave")
def leave(fleet: FleetPart, who: Who, body: Leaving) -> dict[str, bool]:
    """Note that a worker ended in order; what it still holds goes back into the queue."""
    node = fleet.nodes.of(who, body.worker)
    fleet.rollouts.release_all(node.worker)
    fleet.nodes.leave(node)
    return {"left": True}


@router.post("/events")
async def events(request: Request, fleet: FleetPart, who: Who) -> Response:
    """Take over what attempts recorded, and end those that are over: in one request for many.

    The body is one line of JSON (`Events`), and the journal lines of its parts, one after the other. The answer has a result
    for each part: `taken`, false where its lease is lost; or the `status` and `detail` of a refusal.
    """
    brought = _brought(who, await request.body())
    answers = await asyncio.to_thread(store_events, fleet.rollouts, brought)
    return _json({"results": [_result(answer) for answer in answers]})


@router.get("/queue")
def queue(fleet: FleetPart, who: Who) -> dict[str, int]:
    """Rollouts that workers with this pass hold (`running`), and those that wait and that one of them could play.

    A program that places workers scales by it. While no worker joined within the last hour, all that wait are counted.
    """
    team = None if who.key_id is None else who.team_id
    return {
        "waiting": fleet.rollouts.waiting_for(team, fleet.nodes.offers_by(who.key_id)),
        "running": fleet.rollouts.held_by(who.key_id),
    }


@router.post("/snapshot")
async def keep_snapshot(request: Request, fleet: FleetPart, who: Who) -> dict[str, bool]:
    """Store a rollout's snapshot in place of the one before; without data, delete it.

    The body is one line of JSON (`OneLease`), and the snapshot.
    """
    line, _, data = (await request.body()).partition(b"\n")
    try:
        lease = OneLease.model_validate_json(line).of(who)
    except ValidationError as error:
        raise UsageError(
            f"The first line of the body is not right: {error.errors()[0]['msg']}."
        ) from error
    if data:
        await asyncio.to_thread(fleet.snapshots.keep, lease, data)
    else:
        await asyncio.to_thread(fleet.snapshots.drop, lease)
    return {"kept": bool(data)}


@router.post("/snapshot/last")
def last_snapshot(fleet: FleetPart, who: Who, body: OneLease) -> Response:
    """The last snapshot of a rollout that the worker holds, as base64 in `data`; null where there is none."""
    data = fleet.snapshots.last(body.of(who))
    return _json({"data": None if data is None else b64encode(data).decode()})


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


def _brought(who: Identity, body: bytes) -> list[Brought]:
    """Return the parts of a request that brings events. Raises `UsageError` for a body that does not consist of them."""
    line, _, rest = body.partition(b"\n")
    try:
        head = Events.model_validate_json(line)
    except ValidationError as error:
        raise UsageError(
            f"The first line of the body is not right: {error.errors()[0]['msg']}."
        ) from error
    if len(rest) != sum(part.size for part in head.parts):
        raise UsageError("The body is not as long as its parts.")
    worker, brought, start = holder(who, head.worker), [], 0
    for attempt_part in head.parts:
        lines = rest[start : start + attempt_part.size]
        start += attempt_part.size
        lease = Lease(plain(attempt_part.trace_id), worker, attempt_part.attempt)
        brought.append(
            Brought(
                lease,
                lines,
                over=attempt_part.over,
                again=attempt_part.again,
                first=attempt_part.first,
            )
        )
    return brought


def _result(answer: Answer) -> dict[str, Any]:
    if isinstance(answer, HudError):
        return {"taken": False, "status": answer.status, "detail": str(answer)}
    return {"taken": answer}


def _json(value: Any) -> Response:
    """Return a response of plain data, which FastAPI would copy and check first."""
    return Response(exact_json.dumps(value), media_type="application/json")


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
