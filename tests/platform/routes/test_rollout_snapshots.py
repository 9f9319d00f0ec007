"""Snapshots of rollouts on the platform: of the lease's holder alone, bounded, handed over, and deleted with the end."""

from __future__ import annotations

from base64 import b64decode

import orjson
import pytest
import sqlalchemy as sa
from tests.fleet.test_rollout_queue import played
from tests.platform.routes.test_fleet_routes import WORKER, build, fleet  # noqa: F401

from hud.trace import dashed, new_id
from hud_platform.store import tables

SNAPSHOT = b"files and steps"


async def keep(fleet, key, trace, data=SNAPSHOT, *, attempt=1, worker=WORKER):  # noqa: F811
    head = orjson.dumps({"worker": worker, "trace_id": trace, "attempt": attempt})
    return await fleet.api.post("/v2/fleet/snapshot", content=head + b"\n" + data, headers=key)


async def last(fleet, key, trace, *, attempt=1, worker=WORKER):  # noqa: F811
    body = {"worker": worker, "trace_id": trace, "attempt": attempt}
    return await fleet.api.post("/v2/fleet/snapshot/last", json=body, headers=key)


def stored(fleet):  # noqa: F811
    """The files of all snapshots, and their rows."""
    folder = fleet.platform.config.home / "blobs"
    files = [path for path in folder.rglob("*") if path.is_file() and "snapshots" in path.parts]
    rows = fleet.platform.store.rows(sa.select(tables.rollout_snapshots))
    return [path.read_bytes() for path in files], rows


@pytest.fixture
async def held(fleet, build):  # noqa: F811
    """A worker's key, and the rollout that it holds."""
    key = await fleet.new_pass()
    await fleet.join(key)
    trace = await fleet.submit()
    (lease,) = await fleet.take(key)
    assert (lease["trace_id"], lease["snapshot"]) == (trace, False)
    return key, trace


async def test_the_next_attempt_gets_the_last_snapshot(fleet, held):  # noqa: F811
    key, trace = held
    for data in (b"the first", b"the second", b"the second", SNAPSHOT):
        assert (await keep(fleet, key, trace, data)).status_code == 200
    files, (row,) = stored(fleet)
    assert (files, row.taken, row.attempt) == ([SNAPSHOT], 4, 1)
    record = await fleet.api.get(f"/v2/rollouts/{dashed(trace)}", headers=fleet.admin)
    shown = record.json()["snapshot"]
    assert (shown["taken"], shown["attempt"], shown["bytes"]) == (4, 1, len(SNAPSHOT))
    await fleet.api.post(
        "/v2/fleet/release", json={"worker": WORKER, "traces": [trace]}, headers=key
    )
    (lease,) = await fleet.take(key)
    assert (lease["attempt"], lease["snapshot"]) == (2, True)
    answer = await last(fleet, key, trace, attempt=2)
    assert b64decode(answer.json()["data"]) == SNAPSHOT
    # The attempt before has lost its lease: it keeps nothing, and reads nothing.
    assert (await keep(fleet, key, trace, b"late", attempt=1)).status_code == 409
    assert (await last(fleet, key, trace, attempt=1)).status_code == 409
    assert stored(fleet)[0] == [SNAPSHOT]


async def test_progress_is_not_ended_by_the_number_of_preemptions(fleet, held):  # noqa: F811
    key, trace = held
    rollouts = tables.rollouts
    fleet.platform.store.write(sa.update(rollouts).values(preemptions=15))
    await keep(fleet, key, trace)
    assert fleet.platform.store.value(sa.select(rollouts.c.preemptions)) == 0


async def test_nobody_else_keeps_or_reads_one(fleet, held):  # noqa: F811
    key, trace = held
    await keep(fleet, key, trace)
    other = await fleet.new_pass("two")
    await fleet.join(other, worker="another secret name")
    shown = fleet.platform.store.value(sa.select(tables.rollouts.c.worker))
    for forger, name in ((other, WORKER), (other, "another secret name"), (key, shown)):
        for request in (
            keep(fleet, forger, trace, b"forged", worker=name),
            keep(fleet, forger, trace, b"", worker=name),
            last(fleet, forger, trace, worker=name),
        ):
            assert (await request).status_code in (403, 404, 409)
    assert (await last(fleet, fleet.admin, trace)).status_code == 403
    assert (await keep(fleet, key, new_id())).status_code == 409
    assert stored(fleet)[0] == [SNAPSHOT]


async def test_one_is_deleted_when_its_rollout_has_ended(fleet, held):  # noqa: F811
    key, trace = held
    await keep(fleet, key, trace)
    snapshots = fleet.platform.fleet.snapshots
    snapshots.sweep()
    assert stored(fleet)[0] == [SNAPSHOT]
    assert await fleet.bring(key, trace, played(trace, reward=0.5)) == {"taken": True}
    snapshots.sweep()
    assert stored(fleet) == ([], [])
    assert (await keep(fleet, key, trace)).status_code == 409
    assert stored(fleet) == ([], [])


async def test_one_is_dropped_by_its_holder_and_with_its_age(fleet, held):  # noqa: F811
    key, trace = held
    await keep(fleet, key, trace)
    assert (await keep(fleet, key, trace, b"")).json() == {"kept": False}
    assert stored(fleet) == ([], [])
    await keep(fleet, key, trace)
    old = tables.rollout_snapshots.c.taken_at
    fleet.platform.store.write(
        sa.update(tables.rollout_snapshots).values({old: sa.type_coerce(0, sa.BigInteger)})
    )
    fleet.platform.fleet.snapshots.sweep()
    assert stored(fleet) == ([], [])


async def test_wrong_requests_are_refused(fleet, held, monkeypatch):  # noqa: F811
    key, trace = held
    for body in (b"", b"{}", b"[]\nx", b'{"worker": 1}\nx', b"\xff\xfe\n"):
        answer = await fleet.api.post("/v2/fleet/snapshot", content=body, headers=key)
        assert (answer.status_code, "first line" in answer.json()["detail"]) == (400, True)
    monkeypatch.setattr("hud_platform.rollouts.rollout_snapshots.MOST_BYTES", 4)
    answer = await keep(fleet, key, trace)
    assert (answer.status_code, "at most" in answer.json()["detail"]) == (400, True)
