"""What a HUD client reports and asks about jobs and runs."""

import json

import httpx
import pytest

from hud.trace import dashed, new_id
from hud.trace.recording.journal import encode_event
from hud_platform.application import create_app
from hud_platform.process.config import PlatformConfig


@pytest.fixture
async def client(tmp_path):
    app = create_app(PlatformConfig(tmp_path))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://platform/v2") as client:
        yield client
    app.state.parts.close()


@pytest.fixture
def job():
    return new_id()


async def entered(client, job, trace, **more):
    await client.post(f"/trace/job/{job}/enter", json={"name": "greetings", "group": 2})
    body = {"job_id": job, "task_slug": "greet-1", **more}
    return await client.post(f"/trace/{trace}/enter", json=body)


GRADE = {"score": 0.5, "content": "half", "done": True}


async def test_a_reported_run_is_read_back(client, job):
    trace = new_id()
    await entered(client, job, trace, model="tiny", group_id=dashed(job))
    assert (await client.get(f"/trace/{trace}")).json()["status"] == "running"
    assert (await client.get(f"/jobs/{job}")).json()["status"] == "running"
    body = {"status": "completed", "reward": 0.5, "evaluation_result": GRADE, "metadata": {"a": 1}}
    await client.post(f"/trace/{trace}/exit", json={**body, "stop_reason": "done"})
    run = (await client.get(f"/trace/{dashed(trace)}")).json()
    assert (run["status"], run["reward"], run["slug"], run["model"]) == (
        "completed",
        0.5,
        "greet-1",
        "tiny",
    )
    assert run["evaluation_result"] == GRADE
    assert (run["group_id"], run["extra"], run["stop_reason"]) == (job, {"a": 1}, "done")
    shown = (await client.get(f"/jobs/{job}")).json()
    assert (shown["name"], shown["status"], shown["runs"], shown["reward"]) == (
        "greetings",
        "completed",
        1,
        0.5,
    )


async def test_reports_may_come_in_any_order_and_twice(client, job):
    trace = new_id()
    ending = {"status": "completed", "reward": 1.0, "evaluation_result": {"score": 1.0}}
    for _ in range(2):
        await client.post(f"/trace/{trace}/exit", json=ending)
        await entered(client, job, trace)
    run = (await client.get(f"/trace/{trace}")).json()
    assert (run["status"], run["reward"], run["job_id"]) == ("completed", 1.0, job)
    assert (await client.get("/jobs")).json()["total"] == 1


@pytest.mark.parametrize("grade", [None, {"score": 0.0, "isError": True}])
async def test_the_zero_of_a_run_without_a_grade_is_no_reward(client, job, grade):
    trace = new_id()
    await entered(client, job, trace)
    ending = {"status": "error", "reward": 0.0, "error": "boom", "evaluation_result": grade}
    await client.post(f"/trace/{trace}/exit", json=ending)
    run = (await client.get(f"/trace/{trace}")).json()
    assert (run["status"], run["reward"], run["error"]) == ("error", None, "boom")
    assert (await client.get(f"/jobs/{job}")).json()["reward"] is None


async def test_pages_say_how_many_there_are(client, job):
    traces = [new_id() for _ in range(5)]
    for trace in traces:
        await entered(client, job, trace)
    page = (await client.get(f"/jobs/{job}/traces?limit=2&offset=4")).json()
    assert (page["total"], page["limit"], page["offset"]) == (5, 2, 4)
    assert [run["id"] for run in page["items"]] == traces[4:]
    assert page["items"][0].keys() >= {"id", "status", "reward", "start_time", "error"}


async def test_events_tell_what_was_said_and_done(client, job):
    trace = new_id()
    call = {"id": "1", "name": "add", "arguments": {"a": 1}}
    steps = [
        b'{"source":"user","messages":[{"role":"user","content":"hello"}]}',
        b'{"source":"agent","content":"hm","tool_calls":[{"id":"1","name":"add","arguments":{"a":1}}]}',
        b'{"source":"tool","call":{"id":"1","name":"add","arguments":{"a":1}},'
        b'"result":{"content":[{"type":"text","text":"no"}],"isError":true}}',
    ]
    lines = [encode_event(b"S", trace, n, step) for n, step in enumerate(steps, 1)]
    assert (await client.post("/ingest", content=b"".join(lines))).json() == {
        "events": 3,
        "damaged": [],
    }
    await entered(client, job, trace)
    events = (await client.get(f"/trace/{trace}/events")).json()["events"]
    assert [event["kind"] for event in events] == ["environment", "agent_message", "tool_call"]
    assert events[1]["tool_calls"] == [call]
    assert (events[2]["tool_name"], events[2]["result_text"], events[2]["error"]) == (
        "add",
        "no",
        "no",
    )


async def test_events_that_cannot_be_understood_are_numbered_and_the_others_stored(client, job):
    trace = new_id()
    good = encode_event(b"S", trace, 1, b'{"source":"system"}')
    bad = [
        b"no event at all\n",
        encode_event(b"?", trace, 1, b"{}"),
        encode_event(b"T", trace, 1, b'{"prompt":[99999999999]}'),
        encode_event(b"E", trace, 0, b"[1"),
    ]
    answer = (await client.post("/ingest", content=b"".join([*bad, good]))).json()
    assert answer == {"events": 1, "damaged": [0, 1, 2, 3]}
    await entered(client, job, trace)
    assert len((await client.get(f"/trace/{trace}/full")).json()["trace"]["steps"]) == 1


async def test_an_event_that_fits_no_table_is_counted_out(client):
    payload = b'{"name":null,"taskset_id":null,"group_size":1,"pid":1,"process_started":"1","host":"x","at":1}'
    answer = await client.post("/ingest", content=encode_event(b"J", new_id(), 0, payload))
    assert answer.json() == {"events": 0, "damaged": [0]}


@pytest.mark.parametrize(
    "changes",
    [
        {"task": ["buy"]},
        {"task": 1},
        {"grade": "1.0"},
        {"extra": [1]},
        {"status": "won"},
        {"status": None},
        {"reward": 1e300},
        {"reward": float("inf")},
        {"reward": "1"},
        {"started_at": 2**63 - 1},
        {"ended_at": -(2**62)},
        {"ended_at": 2**70},
    ],
    ids=str,
)
async def test_a_run_that_no_page_could_show_is_counted_out(client, job, changes):
    run = {"job_id": job, "slug": "buy", "status": "completed", "reward": 1.0, **changes}
    answer = await client.post(
        "/ingest", content=encode_event(b"E", new_id(), 0, json.dumps(run).encode())
    )
    assert answer.json() == {"events": 0, "damaged": [0]}


async def test_rewards_beyond_all_sums_are_no_measurement(client, job):
    trace = new_id()
    await entered(client, job, trace)
    end = {"reward": 1e300, "evaluation_result": {"reward": 10**400}}
    assert (await client.post(f"/trace/{trace}/exit", json=end)).status_code == 200
    assert (await client.get(f"/trace/{trace}")).json()["reward"] is None


@pytest.mark.parametrize(
    "payload",
    [b"[]", b'"x"', b"1", b"null", b"{", b'{"a":NaN}', b'{"a":"\\ud800"}', b"[" * 100_000],
    ids=lambda payload: payload[:12],
)
@pytest.mark.parametrize("kind", [b"S", b"E", b"R", b"T", b"J", b"Z"])
async def test_a_line_that_is_no_object_is_counted_out(client, job, kind, payload):
    trace = new_id()
    await entered(client, job, trace)
    answer = await client.post("/ingest", content=encode_event(kind, trace, 1, payload))
    assert answer.json() == {"events": 0, "damaged": [0]}
    assert (await client.get(f"/trace/{trace}/full")).status_code == 200
    assert (await client.get(f"/trace/{trace}/events")).status_code == 200


@pytest.mark.parametrize("at", [2**63 - 1, -(2**62), 2**70, 10**400, 1.5])
async def test_a_job_of_no_date_is_counted_out(client, at):
    """It would fail every list of the team's jobs."""
    job = {"name": "x", "taskset_id": None, "group_size": 1, "pid": 1, "process_started": "1"}
    lines = [
        encode_event(b"J", new_id(), 0, json.dumps({**job, "host": "x", "at": at}).encode()),
        encode_event(b"Z", new_id(), 0, json.dumps({"status": "completed", "at": at}).encode()),
    ]
    answer = await client.post("/ingest", content=b"".join(lines))
    assert answer.json() == {"events": 0, "damaged": [0, 1]}
    assert (await client.get("/jobs")).status_code == 200


@pytest.mark.parametrize("planned", ['"4"', "true", "-1", "99999999999", "[4]"])
async def test_a_plan_that_is_no_count_is_counted_out(client, planned):
    payload = (
        '{"name":"x","taskset_id":null,"group_size":1,"pid":1,"process_started":"1","host":"x",'
        f'"at":1,"planned":{planned}}}'
    )
    answer = await client.post("/ingest", content=encode_event(b"J", new_id(), 0, payload.encode()))
    assert answer.json() == {"events": 0, "damaged": [0]}


async def test_a_job_may_be_reported_with_the_number_of_its_planned_runs(client):
    job = new_id()
    body = {"name": "x", "planned": 12}
    assert (await client.post(f"/trace/job/{job}/enter", json=body)).status_code == 200
    assert (await client.get(f"/jobs/{job}")).json()["planned"] == 12
    assert (await client.post(f"/trace/job/{job}/enter", json={"planned": -1})).status_code == 422


@pytest.mark.parametrize("path", ["/jobs/abcd", "/jobs/%25", "/trace/ffffffff", "/trace/x/events"])
async def test_what_is_unknown_is_told(client, path):
    answer = await client.get(path)
    assert answer.status_code == 404
    assert answer.json()["detail"].startswith("There is no ")


async def test_a_start_that_several_share_is_told(client):
    for last in "01":
        await entered(client, "ab" * 15 + "0" + last, new_id())
    assert (await client.get("/jobs/abab")).json()["detail"].startswith("Several jobs begin with")
    assert (await client.get("/jobs/" + "ab" * 15 + "00")).status_code == 200


async def test_a_bad_page_is_told(client):
    answer = await client.get("/jobs?limit=0")
    assert (answer.status_code, answer.json()["detail"].split(":")[0]) == (422, "limit")


async def test_many_whole_traces_come_in_order_as_each_alone_and_up_to_a_size(
    client, job, monkeypatch
):
    """A large one ends an answer; the next one asks for the rest."""
    traces = [new_id() for _ in range(5)]
    for number, trace in enumerate(traces):
        await entered(client, job, trace)
        step = json.dumps({"step_id": 1, "source": "agent", "content": f"answer {number} " * 99})
        await client.post("/ingest", content=encode_event(b"S", trace, 1, step.encode()))
    asked = {"trace_ids": [traces[3], dashed(traces[0]), *traces[1:3], traces[4]]}
    items = (await client.post("/trace/full", json=asked)).json()["items"]
    assert [item["run"]["id"] for item in items] == [traces[place] for place in (3, 0, 1, 2, 4)]
    for item in items:
        alone = (await client.get(f"/trace/{item['run']['id']}/full")).json()
        assert item == {"run": alone["run"], "trace": alone["trace"]}
    monkeypatch.setattr("hud_platform.routes.traces.FULL_BYTES", len(json.dumps(items[0])))
    first = (await client.post("/trace/full", json=asked)).json()["items"]
    assert first == items[:2]
    unknown = await client.post("/trace/full", json={"trace_ids": [traces[0], new_id()]})
    assert unknown.status_code == 404
    assert (await client.post("/trace/full", json={"trace_ids": []})).status_code == 422
