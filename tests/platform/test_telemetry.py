"""Spans of clients become steps, tokens and counts of their trace, in whatever order they come."""

import base64
import gzip
import itertools
import json

import httpx
import pytest

from hud.platform.application import PlatformConfig, create_app
from hud.platform.store.attachments import LARGE_CHARACTERS
from hud.trace import dashed, new_id

_span_ids = itertools.count(1)


def span(payload=None, schema="hud.step.v1", **more):
    attributes = {"hud.task_run_id": "x"}
    if payload is not None:
        attributes |= {"hud.schema": schema, "hud.payload": payload}
    return {
        "name": "step",
        "trace_id": "0" * 32,
        "span_id": f"{next(_span_ids):016x}",
        "parent_span_id": None,
        "kind": "INTERNAL",
        "start_time": "2026-01-02T03:04:05.678Z",
        "end_time": "2026-01-02T03:04:06Z",
        "status_code": "OK",
        "status_message": None,
        "attributes": attributes,
        "events": [],
        **more,
    }


def agent_step(number, text="hello", **more):
    return {
        "step_id": number,
        "source": "agent",
        "content": text,
        "tool_calls": [],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
        "sample": {
            "prompt_token_ids": [1, 2, 3],
            "output_token_ids": [4, 5],
            "output_logprobs": [-0.5, -0.25],
        },
        **more,
    }


@pytest.fixture
async def api(tmp_path):
    app = create_app(PlatformConfig(tmp_path))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://platform") as client:
        yield client
    app.state.platform.close()


async def send(api, trace_id, *spans, prefix="/v3/api"):
    answer = await api.post(
        f"{prefix}/trace/{trace_id}/telemetry-upload", json={"telemetry": list(spans)}
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


async def whole(api, trace_id):
    return (await api.get(f"/v2/trace/{trace_id}/full")).json()


@pytest.mark.parametrize("prefix", ["", "/v3/api"])
async def test_steps_and_tokens_come_back_as_they_were_sent(api, prefix):
    trace = new_id()
    await send(api, trace, span(agent_step(1)), prefix=prefix)
    found = (await whole(api, trace))["trace"]["steps"]
    assert found[0]["content"] == "hello"
    assert found[0]["sample"]["output_token_ids"] == [4, 5]
    assert found[0]["sample"]["output_logprobs"] == [-0.5, -0.25]


async def test_repetitions_change_nothing_and_order_does_not_matter(api):
    trace = new_id()
    later, earlier = span(agent_step(2, "second")), span(agent_step(1, "first"))
    end = {"status": "completed", "reward": 1.0, "evaluation_result": {"score": 1.0}}
    await api.post(f"/v2/trace/{trace}/exit", json=end)
    assert (await send(api, trace, later))["new"] == 1
    assert (await send(api, trace, earlier, later))["new"] == 1
    assert (await send(api, trace, earlier, later))["new"] == 0
    await api.post(f"/v2/trace/{trace}/enter", json={"task_slug": "a-task"})
    found = await whole(api, trace)
    assert [step["content"] for step in found["trace"]["steps"]] == ["first", "second"]
    run = found["run"]
    assert (run["status"], run["reward"], run["slug"]) == ("completed", 1.0, "a-task")
    assert (run["step_count"], run["turns"]) == (2, 2)
    assert (run["prompt_tokens"], run["completion_tokens"]) == (6, 4)


async def test_ids_may_be_dashed_or_any_text(api):
    trace = new_id()
    await send(api, dashed(trace), span(agent_step(1)))
    assert len((await whole(api, trace))["trace"]["steps"]) == 1
    await send(api, "my own name", span(agent_step(1)))
    await send(api, "my own name", span(agent_step(2)))


async def test_large_attachments_leave_the_step_and_come_back(api, tmp_path):
    trace = new_id()
    image = base64.b64encode(b"\x89PNG" * LARGE_CHARACTERS).decode()
    result = {"content": [{"type": "image", "mimeType": "image/png", "data": image}]}
    steps = [span({"step_id": n, "source": "tool", "result": result}) for n in (1, 2)]
    await send(api, trace, *steps)
    found = (await whole(api, trace))["trace"]["steps"]
    assert [step["result"]["content"][0]["data"] == image for step in found] == [True, True]
    kept = [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]
    assert len(kept) == 1, "the same screenshot twice is kept once"


async def test_a_client_cannot_name_blobs_of_other_teams(api):
    trace = new_id()
    stolen = {"step_id": 1, "source": "tool", "result": {"hud.blob": f"{'1' * 32}/attachments/a"}}
    await send(api, trace, span(stolen))
    (step,) = (await whole(api, trace))["trace"]["steps"]
    assert step["result"] == {}


async def test_other_spans_are_kept(api):
    trace = new_id()
    robot = span({"tick": 1}, schema="hud.robot.step.v1")
    timed = span(name="my.function")
    assert (await send(api, trace, robot, timed))["new"] == 2
    assert (await whole(api, trace))["trace"]["steps"] == []


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
async def test_bodies_may_be_packed(api, encoding):
    trace = new_id()
    body = json.dumps({"telemetry": [span(agent_step(1))]}).encode()
    packed = gzip.compress(body) if encoding == "gzip" else body
    answer = await api.post(
        f"/trace/{trace}/telemetry-upload", content=packed, headers={"content-encoding": encoding}
    )
    assert answer.json() == {"received": 1, "new": 1}


@pytest.mark.parametrize(
    ("body", "headers", "said"),
    [
        (b"nonsense", {}, "telemetry"),
        (b'{"telemetry": 3}', {}, "telemetry"),
        (b'{"telemetry": [{"attributes": {"hud.schema": "hud.step.v1"}}]}', {}, "no span"),
        (b"nonsense", {"content-encoding": "gzip"}, "no gzip"),
        (b"x", {"content-encoding": "br"}, "not understood"),
    ],
)
async def test_what_is_no_upload_is_refused_with_a_sentence(api, body, headers, said):
    answer = await api.post(f"/trace/{new_id()}/telemetry-upload", content=body, headers=headers)
    assert answer.status_code == 400
    assert said in answer.json()["detail"]


async def test_usage_events_are_dropped(api):
    for prefix in ("", "/v3/api"):
        assert (await api.post(f"{prefix}/sdk-events/cli", json={"events": []})).status_code == 200
