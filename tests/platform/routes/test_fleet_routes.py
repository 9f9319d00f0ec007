"""Routes of the fleet, asked by workers that are what they say, and by workers that are not."""

from __future__ import annotations

from datetime import UTC, datetime

import httpx
import orjson
import pytest
import sqlalchemy as sa
from tests.fleet.test_rollout_queue import played, step

from hud.trace import new_id
from hud_platform.access import bodies
from hud_platform.application import create_app
from hud_platform.process.config import PlatformConfig
from hud_platform.rollouts import nodes
from hud_platform.store import tables
from hud_platform.store.reporting import enter_job
from hud_platform.store.tables import LOCAL_TEAM

AGENT = {"type": "openai_compatible", "config": {"model": "m"}}
WORKER = "a worker's secret name"


def bearer(secret):
    return {"authorization": f"Bearer {secret}"}


def deployed(platform, folder, name="echo", team=LOCAL_TEAM):
    """An environment as a build leaves it; returns the build's id."""
    environment, build, now = new_id(), new_id(), datetime.now(UTC)
    (folder / "source").mkdir(parents=True)
    (folder / "source" / "env.py").write_text(
        "from hud import Environment\nenv = Environment('echo')\n"
    )
    with platform.store.begin() as connection:
        row = {"id": environment, "team_id": team, "name": name, "created_at": now}
        connection.execute(sa.insert(tables.environments).values(**row))
        row = {
            "id": build,
            "team_id": team,
            "environment_id": environment,
            "status": "SUCCEEDED",
            "version": 1,
            "folder": str(folder),
            "manifest": {"name": name, "entry": "env.py", "tasks": []},
            "created_at": now,
        }
        connection.execute(sa.insert(tables.builds).values(**row))
    return build


class Fleet:
    """A platform, its admin, and workers with passes."""

    def __init__(self, api, platform):
        self.api, self.platform = api, platform
        self.admin = bearer(platform.keys.mint("admin", LOCAL_TEAM, scopes=("admin",))[1])

    async def new_pass(self, name="spot", admin=None):
        made = await self.api.post(
            "/v2/fleet-passes", json={"name": name}, headers=admin or self.admin
        )
        assert made.status_code == 200, made.text
        return bearer(made.json()["key"])

    async def join(self, key, worker=WORKER, **more):
        body = {"worker": worker, "name": "node", "rollouts": 8, **more}
        return await self.api.post("/v2/fleet/join", json=body, headers=key)

    async def take(self, key, worker=WORKER, most=8, **more):
        body = {"worker": worker, "most": most, **more}
        answer = await self.api.post("/v2/fleet/take", json=body, headers=key)
        assert answer.status_code == 200, answer.text
        return answer.json()["items"]

    async def submit(self, admin=None, **more):
        trace = new_id()
        body = {"trace_id": trace, "env": "echo", "task": "say", "agent": AGENT, **more}
        answer = await self.api.post("/v2/rollouts/submit", json=body, headers=admin or self.admin)
        assert answer.status_code == 200, answer.text
        return trace

    async def post_events(self, key, events, *parts, worker=WORKER):
        head = {"worker": worker, "parts": parts}
        body = orjson.dumps(head) + b"\n" + events
        return await self.api.post("/v2/fleet/events", content=body, headers=key)

    async def bring(self, key, trace, events, *, over=True, worker=WORKER, attempt=1):
        """Return the answer for the one part of a request that brings events."""
        part = {"trace_id": trace, "attempt": attempt, "size": len(events), "over": over}
        answer = await self.post_events(key, events, part, worker=worker)
        assert answer.status_code == 200, answer.text
        (result,) = answer.json()["results"]
        return result

    async def reward(self, trace):
        return (await self.api.get(f"/v2/trace/{trace}", headers=self.admin)).json()["reward"]

    async def nodes(self):
        answer = await self.api.get("/v2/fleet-nodes", headers=self.admin)
        return answer.json()["items"]


@pytest.fixture
async def fleet(tmp_path, monkeypatch):
    monkeypatch.setattr("hud_platform.routes.fleet.WAIT_SECONDS", 0.0)
    app = create_app(PlatformConfig(tmp_path / "home", keys=True))
    platform = app.state.parts
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://platform") as api:
        yield Fleet(api, platform)
    platform.close()


@pytest.fixture
def build(fleet, tmp_path):
    return deployed(fleet.platform, tmp_path / "build")


async def test_a_pass_is_made_listed_and_revoked_and_no_key_is_one(fleet):
    key = await fleet.new_pass("spot")
    assert (await fleet.join(key)).status_code == 200
    listed = (await fleet.api.get("/v2/fleet-passes", headers=fleet.admin)).json()["items"]
    assert [one["name"] for one in listed] == ["spot"]
    assert (await fleet.join(fleet.admin)).status_code == 403
    refused = await fleet.api.delete("/v2/fleet-passes/admin", headers=fleet.admin)
    assert refused.status_code == 404
    revoked = await fleet.api.delete("/v2/fleet-passes/spot", headers=fleet.admin)
    assert revoked.status_code == 200
    assert (await fleet.join(key)).status_code == 401
    log = sa.select(tables.audit.c.action).order_by(tables.audit.c.created_at)
    assert fleet.platform.store.values(log) == ["pass created", "pass revoked"]


@pytest.mark.parametrize("secret", ["hud_nonsense", "hudpass_e30.0"])
async def test_a_wrong_pass_joins_nothing(fleet, secret):
    assert (await fleet.join(bearer(secret))).status_code == 401


async def test_a_worker_joins_before_it_takes(fleet, build):
    key = await fleet.new_pass()
    asked = {"worker": WORKER, "most": 1}
    answer = await fleet.api.post("/v2/fleet/take", json=asked, headers=key)
    assert (answer.status_code, "join again" in answer.json()["detail"]) == (404, True)


async def test_a_rollout_is_handed_over_with_the_build_that_was_newest_as_it_was_submitted(
    fleet, build, tmp_path
):
    key = await fleet.new_pass()
    await fleet.join(key)
    builds, before = tables.builds, tables.builds.c.id == build
    for _ in range(2):  # The second is handed over by what is known from the first.
        await fleet.submit()
    for _ in range(2):
        (given,) = await fleet.take(key, most=1)
        assert given["environments"]["echo"]["build_id"] == build
    row = dict(fleet.platform.store.row(sa.select(builds).where(before))._mapping)
    fleet.platform.store.write(sa.insert(builds).values(**row | {"id": new_id(), "version": 2}))
    await fleet.submit()
    (given,) = await fleet.take(key, most=1)
    assert given["environments"]["echo"]["build_id"] != build


async def test_the_lease_of_another_worker_cannot_be_used(fleet, build):
    key, other = await fleet.new_pass("one"), await fleet.new_pass("two")
    await fleet.join(key)
    await fleet.join(other, worker="another secret name")
    trace = await fleet.submit()
    (given,) = await fleet.take(key)
    assert given["trace_id"] == trace
    shown = fleet.platform.store.value(sa.select(tables.rollouts.c.worker))
    # Another name, another pass with the right name, and the name that the store and pages know.
    for forger, name in (
        (key, "another secret name"),
        (other, WORKER),
        (other, shown),
        (key, shown),
    ):
        for over, events in ((True, played(trace, reward=0.9)), (False, step(trace, 1, "x"))):
            result = await fleet.bring(forger, trace, events, over=over, worker=name)
            assert (result["taken"], result["status"]) == (False, 403)
            assert "never held" in result["detail"]
        held = {"worker": name, "traces": [trace]}
        if name == "another secret name":
            continue
        renewed = await fleet.api.post("/v2/fleet/renew", json=held, headers=forger)
        assert renewed.status_code == 404
        await fleet.api.post("/v2/fleet/release", json=held, headers=forger)
    assert await fleet.reward(trace) is None
    assert await fleet.bring(key, trace, played(trace, reward=0.5)) == {"taken": True}
    assert await fleet.reward(trace) == 0.5


async def test_a_worker_says_nothing_of_rollouts_that_it_does_not_hold(fleet, build):
    key = await fleet.new_pass()
    await fleet.join(key)
    mine, victim = await fleet.submit(), await fleet.submit()
    (given,) = await fleet.take(key, most=1)
    assert given["trace_id"] == mine
    result = await fleet.bring(key, mine, played(mine) + played(victim, reward=0.9))
    assert (result["status"], "none of this rollout's" in result["detail"]) == (400, True)
    assert await fleet.reward(victim) is None
    report = {"status": "completed", "reward": 1.0, "evaluation_result": {"score": 1.0}}
    for secret in (given["pass"], key["authorization"][7:]):
        answer = await fleet.api.post(
            f"/v2/trace/{victim}/exit", json=report, headers=bearer(secret)
        )
        assert answer.status_code == 403
    assert await fleet.reward(victim) is None


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"nonsense", b'{"worker": "w", "parts": []}\n', b"\xff\n", b"[" * 100_000],
)
async def test_a_body_of_events_that_is_none_is_refused(fleet, body):
    key = await fleet.new_pass()
    await fleet.join(key)
    answer = await fleet.api.post("/v2/fleet/events", content=body, headers=key)
    assert (answer.status_code, "first line" in answer.text) == (400, True)


async def test_events_that_are_not_as_long_as_they_are_said_to_be_are_refused(fleet, build):
    key = await fleet.new_pass()
    await fleet.join(key)
    trace = await fleet.submit()
    await fleet.take(key)
    events = played(trace)
    for size in (0, len(events) - 1, len(events) + 1, 2**60):
        part = {"trace_id": trace, "attempt": 1, "size": size, "over": True}
        assert (await fleet.post_events(key, events, part)).status_code == 400
    assert await fleet.reward(trace) is None


async def test_an_oversized_result_is_refused_before_it_is_read(fleet, build, monkeypatch):
    monkeypatch.setattr(bodies, "FLEET", 1000)
    key = await fleet.new_pass()
    await fleet.join(key)
    trace = await fleet.submit()
    await fleet.take(key)
    events = played(trace, *["word" * 20] * 50)
    part = {"trace_id": trace, "attempt": 1, "size": len(events), "over": True}
    assert (await fleet.post_events(key, events, part)).status_code == 413
    assert await fleet.reward(trace) is None


async def test_a_team_s_pass_reaches_nothing_of_another_team(fleet, build, tmp_path):
    made = await fleet.api.post(
        "/v2/keys",
        json={"name": "o", "team": "others", "scopes": ["admin"]},
        headers=fleet.admin,
    )
    theirs = await fleet.new_pass("theirs", bearer(made.json()["key"]))
    ours = await fleet.new_pass("ours")
    await fleet.join(theirs)
    await fleet.join(ours)
    trace = await fleet.submit()
    assert await fleet.take(theirs) == []
    about = await fleet.api.get(f"/v2/fleet/builds/{build}", headers=ours)
    digest = about.json()["digest"]
    for path in (f"builds/{build}", f"packages/{digest}"):
        assert (await fleet.api.get(f"/v2/fleet/{path}", headers=theirs)).status_code == 404
        assert (await fleet.api.get(f"/v2/fleet/{path}", headers=ours)).status_code == 200
    assert [one["trace_id"] for one in await fleet.take(ours)] == [trace]
    assert (await fleet.bring(theirs, trace, played(trace)))["status"] == 403
    assert [one["name"] for one in await fleet.nodes()] == ["node"]


async def test_the_paths_of_the_server_are_not_told_to_other_machines(fleet, build):
    key = await fleet.new_pass()
    await fleet.join(key)
    await fleet.submit()
    (given,) = await fleet.take(key)
    environment = given["environments"]["echo"]
    assert (environment["source"], environment["python"]) == (None, None)


async def test_rollouts_go_to_nodes_that_meet_what_they_require(fleet, build):
    key = await fleet.new_pass()
    small = {"cpus": 2.0, "memory_mb": 4096, "gpus": 0}
    large = {"cpus": 16.0, "memory_mb": 65536, "gpus": 2, "gpu_types": ["NVIDIA H100 80GB HBM3"]}
    await fleet.join(key, labels={"market": "spot"}, capacity=small)
    await fleet.join(key, "a large one's secret", labels={"market": "on-demand"}, capacity=large)
    steady = await fleet.submit(runtime_config={"labels": {"market": "on-demand"}})
    gpu = [
        await fleet.submit(runtime_config={"resources": {"gpu": {"type": "H100", "count": 1}}})
        for _ in range(3)
    ]
    cores = await fleet.submit(runtime_config={"resources": {"cpu": 2, "memory_mb": 1024}})
    plain = await fleet.submit()
    assert {one["trace_id"] for one in await fleet.take(key)} == {cores, plain}
    took = await fleet.take(key, "a large one's secret")
    assert {one["trace_id"] for one in took} == {steady, *gpu[:2]}
    assert await fleet.take(key, "a large one's secret", free={"gpus": 0}) == []
    again = await fleet.take(key, "a large one's secret", free={"gpus": 1})
    assert [one["trace_id"] for one in again] == [gpu[2]]


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"resources": {"gpu": {"type": "B200"}}}, "lacks gpus=1"),
        ({"resources": {"cpu": 64}}, "lacks cpus=64"),
        ({"labels": {"zone": "b"}}, "lacks label zone=b"),
        ({"resources": {"storage_mb": 5}}, "storage_mb"),
    ],
)
async def test_what_no_node_has_is_refused_when_it_is_submitted(fleet, build, config, told):
    await fleet.join(await fleet.new_pass(), labels={"zone": "a"}, capacity={"cpus": 4.0})
    body = {"env": "echo", "task": "say", "agent": AGENT, "trace_id": new_id()}
    answer = await fleet.api.post(
        "/v2/rollouts/submit", json={**body, "runtime_config": config}, headers=fleet.admin
    )
    assert (answer.status_code, told in answer.json()["detail"]) == (400, True), answer.text


async def test_many_are_submitted_in_one_request_and_one_that_is_refused_costs_no_other(
    fleet, build
):
    job, theirs = new_id(), new_id()
    with fleet.platform.store.begin() as connection:
        enter_job(connection, "another team", theirs, "theirs", 1, None)
    one = {"env": "echo", "task": "say", "agent": AGENT, "job_id": job}
    first, twice, foreign, last = (new_id() for _ in range(4))
    asked = [
        {**one, "trace_id": first},
        {**one, "trace_id": twice},
        {**one, "trace_id": twice},
        {**one, "trace_id": "no id"},
        {**one, "trace_id": new_id(), "env": "nowhere"},
        {**one, "trace_id": foreign, "job_id": theirs},
        {**one, "trace_id": last, "runtime_config": {"resources": {"storage_mb": 5}}},
    ]
    for _ in range(2):  # Submitting again changes nothing.
        answer = await fleet.api.post(
            "/v2/rollouts/submit_many", json={"rollouts": asked}, headers=fleet.admin
        )
        results = answer.json()["results"]
        assert results[:3] == [{"status": "queued"}] * 3
        assert [one["refused"] for one in results[3:]] == [400, 404, 409, 400]
        assert "nowhere" in results[4]["detail"]
    key = await fleet.new_pass()
    await fleet.join(key)
    assert {one["trace_id"] for one in await fleet.take(key)} == {first, twice}
    found = await fleet.api.get(f"/v2/jobs/{job}", headers=fleet.admin)
    assert (found.json()["runs"], found.json()["status"]) == (2, "running")


@pytest.mark.parametrize("count", [0, 513])
async def test_a_request_submits_at_least_one_rollout_and_at_most_512(fleet, build, count):
    one = {"trace_id": new_id(), "env": "echo", "task": "say", "agent": AGENT}
    answer = await fleet.api.post(
        "/v2/rollouts/submit_many", json={"rollouts": [one] * count}, headers=fleet.admin
    )
    assert answer.status_code == 422


async def test_a_cordoned_node_takes_nothing_and_a_draining_one_is_told(fleet, build):
    key = await fleet.new_pass()
    node = (await fleet.join(key)).json()["node"]
    trace = await fleet.submit()

    async def act(action):
        answer = await fleet.api.post(f"/v2/fleet-nodes/{node}/{action}", headers=fleet.admin)
        assert answer.status_code == 200, answer.text

    await act("cordon")
    assert await fleet.take(key) == []
    assert [one["status"] for one in await fleet.nodes()] == ["cordoned"]
    await act("open")
    assert [one["trace_id"] for one in await fleet.take(key)] == [trace]
    await act("drain")
    held = {"worker": WORKER, "traces": [trace], "load": {"failures_in_a_row": 7, "running": 1}}
    renewed = await fleet.api.post("/v2/fleet/renew", json=held, headers=key)
    assert renewed.json() == {"cancel": [], "lost": [], "state": "draining"}
    (shown,) = await fleet.nodes()
    assert (shown["alarm"], shown["running"]) == ("Its last 7 rollouts all broke.", 1)
    answer = await fleet.api.post(f"/v2/fleet-nodes/{node}/cordon", headers=key)
    assert answer.status_code == 403


async def test_a_worker_holds_no_more_than_it_has_room_for_and_those_ahead(fleet, build):
    key = await fleet.new_pass()
    await fleet.join(key, rollouts=1)
    traces = {await fleet.submit() for _ in range(30)}
    taken = []
    for most in (256, 8, 1):
        taken += await fleet.take(key, most=most, ahead=256)
    assert len(taken) == 9  # One that it plays, four ahead, and four that are not brought yet.
    given = [one["trace_id"] for one in taken]
    body = {"worker": WORKER, "traces": given, "begun": False}
    await fleet.api.post("/v2/fleet/release", json=body, headers=key)
    (node,) = await fleet.nodes()
    assert node["preemptions"] == 9
    assert len(await fleet.take(key, most=1)) == 1
    assert set(given) <= traces


async def test_ahead_are_given_rollouts_of_which_many_wait_and_given_back_they_count_no_attempt(
    fleet, build
):
    key = await fleet.new_pass()
    await fleet.join(key, rollouts=2)
    traces = [await fleet.submit() for _ in range(16)]
    taken = await fleet.take(key, most=2, ahead=2)
    assert [one["trace_id"] for one in taken] == traces[:4]
    # Now other nodes might go short.
    assert [one["trace_id"] for one in await fleet.take(key, most=1, ahead=2)] == traces[4:5]
    assert await fleet.take(key, most=0, ahead=2) == []
    for trace, begun in ((traces[2], False), (traces[3], True)):
        body = {"worker": WORKER, "traces": [trace], "begun": begun}
        answer = await fleet.api.post("/v2/fleet/release", json=body, headers=key)
        assert answer.status_code == 200
        path = f"/v2/rollouts/{trace}"
        found = (await fleet.api.get(path, headers=fleet.admin)).json()
        assert (found["status"], found["preemptions"]) == ("queued", int(begun))
        assert [one["outcome"] for one in found["attempts"]] == ["handed back"] * begun


@pytest.mark.parametrize("labels", [{"a b": "c"}, {"a": ""}, {"a": "<script>"}])
async def test_labels_that_are_none_are_refused(fleet, labels):
    assert (await fleet.join(await fleet.new_pass(), labels=labels)).status_code == 400


async def test_a_pass_signs_nobody_in(fleet):
    key = (await fleet.new_pass())["authorization"][7:]
    answer = await fleet.api.post("/signin", data={"key": key, "next": "/jobs"})
    assert answer.status_code == 403


async def test_the_queue_counts_what_workers_with_a_pass_could_play_and_what_they_hold(
    fleet, build
):
    key, other = await fleet.new_pass("one"), await fleet.new_pass("two")

    async def queue(secret):
        answer = await fleet.api.get("/v2/fleet/queue", headers=secret)
        assert answer.status_code == 200, answer.text
        return answer.json()

    await fleet.join(other, "a steady one's secret", labels={"market": "on-demand"})
    await fleet.submit(runtime_config={"labels": {"market": "on-demand"}})
    for _ in range(3):
        await fleet.submit()
    # Nothing is known of machines that have not joined.
    assert await queue(key) == {"waiting": 4, "running": 0}
    await fleet.join(key, labels={"market": "spot"})
    assert await queue(key) == {"waiting": 3, "running": 0}
    await fleet.take(key, most=2)
    assert await queue(key) == {"waiting": 1, "running": 2}
    assert await queue(other) == {"waiting": 2, "running": 0}
    assert (await fleet.api.get("/v2/fleet/queue", headers=fleet.admin)).status_code == 403


async def test_the_queue_of_another_team_is_not_counted(fleet, build):
    made = await fleet.api.post(
        "/v2/keys",
        json={"name": "o", "team": "others", "scopes": ["admin"]},
        headers=fleet.admin,
    )
    theirs = await fleet.new_pass("theirs", bearer(made.json()["key"]))
    await fleet.submit()
    answer = await fleet.api.get("/v2/fleet/queue", headers=theirs)
    assert answer.json() == {"waiting": 0, "running": 0}


ODD_IDS = {"a line of its own": "x\nRefused: nothing", "long": "x" * 100_000, "no text": "\0"}


@pytest.mark.parametrize("trace", ODD_IDS.values(), ids=ODD_IDS)
@pytest.mark.parametrize("path", ["renew", "release", "events"])
async def test_an_id_that_is_none_is_refused_and_stands_in_no_log(
    fleet, build, caplog, path, trace
):
    key = await fleet.new_pass()
    await fleet.join(key)
    if path == "events":
        part = {"trace_id": trace, "attempt": 1, "size": 0, "over": True}
        answer = await fleet.post_events(key, b"", part)
    else:
        body = {"worker": WORKER, "traces": [trace]}
        answer = await fleet.api.post(f"/v2/fleet/{path}", json=body, headers=key)
    assert answer.status_code in (400, 422), answer.text
    assert len(answer.text) < 1000
    assert trace not in caplog.text


@pytest.mark.parametrize("path", ["renew", "release"])
async def test_a_request_names_no_more_rollouts_than_a_worker_may_play(fleet, build, path):
    key = await fleet.new_pass()
    await fleet.join(key)
    body = {"worker": WORKER, "traces": ["x"] * 65_537}
    answer = await fleet.api.post(f"/v2/fleet/{path}", json=body, headers=key)
    assert answer.status_code == 422, answer.text[:200]


async def test_ids_that_a_worker_does_not_hold_change_nothing(fleet, build):
    key = await fleet.new_pass()
    await fleet.join(key)
    trace = await fleet.submit()
    (taken,) = await fleet.take(key)
    before = fleet.platform.fleet.rollouts.changes
    for traces in ([new_id() for _ in range(100)], [], [trace, trace, new_id()]):
        assert fleet.platform.fleet.rollouts.changes == before
        body = {"worker": WORKER, "traces": traces, "begun": False}
        answer = await fleet.api.post("/v2/fleet/release", json=body, headers=key)
        assert answer.status_code == 200
    assert taken["trace_id"] == trace
    assert fleet.platform.fleet.rollouts.changes == before + 1


@pytest.mark.parametrize("number", [10**30, 2**63, 2**31])
async def test_numbers_that_no_database_holds_are_refused(fleet, build, number):
    key = await fleet.new_pass()
    await fleet.join(key)
    for field in ("running", "finished", "broken", "failures_in_a_row", "per_minute"):
        sent = {"worker": WORKER, "most": 0, "load": {field: number}}
        answer = await fleet.api.post("/v2/fleet/take", json=sent, headers=key)
        assert answer.status_code in (200, 422), (field, answer.text)
    assert len(await fleet.nodes()) == 1
    submission = {"trace_id": new_id(), "env": "echo", "task": "say", "agent": AGENT}
    for attempt in (number, -number):
        sent = {**submission, "attempt": attempt}
        answer = await fleet.api.post("/v2/rollouts/submit", json=sent, headers=fleet.admin)
        assert answer.status_code == 422, answer.text


@pytest.mark.parametrize("load", ['{"running": %s}' % ("9" * 400), '{"per_minute": 1e999}'])
async def test_a_load_that_no_machine_has_is_refused(fleet, load):
    """Its digits were shown by the page of the fleet, which failed for the whole team."""
    key = await fleet.new_pass()
    assert (await fleet.join(key)).status_code == 200
    body = f'{{"worker": "{WORKER}", "traces": [], "load": {load}}}'.encode()
    kind = {"content-type": "application/json"}
    answer = await fleet.api.post("/v2/fleet/renew", content=body, headers={**key, **kind})
    assert answer.status_code in (400, 422)


async def test_the_longest_silent_nodes_of_a_pass_make_room(fleet, monkeypatch):
    """A pass joined without end: the page of 30,000 nodes took a gigabyte."""
    monkeypatch.setattr(nodes, "MOST_NODES", 3)
    key, other = await fleet.new_pass("one"), await fleet.new_pass("other")
    assert (await fleet.join(other)).status_code == 200
    for number in range(5):
        assert (await fleet.join(key, f"{number}" * 16, name=f"n{number}")).status_code == 200
    shown = (await fleet.api.get("/v2/fleet-nodes", headers=fleet.admin)).json()["items"]
    assert {node["name"] for node in shown} == {"node", "n2", "n3", "n4"}
