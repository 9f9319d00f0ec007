"""Spans of clients become steps, tokens and counts of their trace, in whatever order they come."""

import asyncio
import base64
import gzip
import itertools
import json
import zlib

import httpx
import pytest

from hud.trace import dashed, new_id
from hud_platform.application import create_app
from hud_platform.process.config import PlatformConfig
from hud_platform.store import telemetry_admission as intake
from hud_platform.store.attachments import LARGE_CHARACTERS

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
    app.state.parts.close()


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


async def test_tool_calls_of_sent_steps_are_counted_once(api):
    trace = new_id()
    texts = ["fine", "KeyError", "clock: no answer within 3 s."]
    steps = [
        span(
            {
                "step_id": number,
                "source": "tool",
                "call": {"id": "a", "name": "clock", "arguments": {}},
                "result": {"content": [{"type": "text", "text": text}], flag: text != "fine"},
            }
        )
        for number, (text, flag) in enumerate(
            zip(texts, ["isError", "isError", "is_error"], strict=True), 1
        )
    ]
    await send(api, trace, *steps[:1])
    await send(api, trace, *steps)
    run = (await whole(api, trace))["run"]
    assert (run["tool_calls"], run["tool_errors"], run["tool_time_outs"]) == (3, 1, 1)


async def test_ids_may_be_dashed_or_any_text(api):
    trace = new_id()
    await send(api, dashed(trace), span(agent_step(1)))
    assert len((await whole(api, trace))["trace"]["steps"]) == 1
    await send(api, "my own name", span(agent_step(1)))
    await send(api, "my own name", span(agent_step(2)))
    await api.post("/v2/trace/my own name/exit", json={"status": "error", "error": "gone"})
    found = await whole(api, "my own name")
    assert (found["run"]["step_count"], found["run"]["error"]) == (2, "gone")


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
    assert (await send(api, trace, robot, timed))["new"] == 0
    assert (await whole(api, trace))["trace"]["steps"] == []
    kept = (await api.get(f"/v2/trace/{trace}/spans")).json()
    assert kept == {"items": [robot, timed], "total": 2}
    page = (await api.get(f"/v2/trace/{trace}/spans?limit=1&offset=1")).json()
    assert page == {"items": [timed], "total": 2}


async def test_files_of_other_spans_come_back(api):
    trace, data = new_id(), "A" * LARGE_CHARACTERS
    video = {"segment": {"type": "video", "data": data, "mimeType": "video/mp4"}}
    await send(api, trace, span(video, schema="hud.robot.step.v1"))
    (kept,) = (await api.get(f"/v2/trace/{trace}/spans")).json()["items"]
    assert kept["attributes"]["hud.payload"] == video


async def test_a_second_step_of_a_number_is_kept_beside_the_first(api):
    trace = new_id()
    first, second, third = (span(agent_step(1, text)) for text in ("one", "two", "three"))
    assert (await send(api, trace, first, second))["new"] == 2
    assert (await send(api, trace, third, second))["new"] == 1
    found = await whole(api, trace)
    assert [step["content"] for step in found["trace"]["steps"]] == ["one"]
    assert found["run"]["completion_tokens"] == 2
    kept = (await api.get(f"/v2/trace/{trace}/spans")).json()["items"]
    assert [one["attributes"]["hud.payload"]["content"] for one in kept] == ["two", "three"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "strange",
    [
        span(schema="hud.step.v1"),
        span("nonsense", schema="hud.step.v1"),
        span({"step_id": 2**40, "source": "agent"}),
        span(agent_step(2, sample={"prompt_token_ids": [[1]], "output_token_ids": ["x"]})),
        span(agent_step(2, sample={"prompt_token_ids": [2**70]})),
        span(name="x", start_time="yesterday"),
        span(name="\x00", span_id="n\x00"),
        {"attributes": 3},
        {},
    ],
)
async def test_a_strange_span_takes_no_other_down(api, strange):
    trace = new_id()
    assert (await send(api, trace, strange, span(agent_step(1))))["new"] == 2
    assert [step["step_id"] for step in (await whole(api, trace))["trace"]["steps"]] == [1]
    assert (await api.get(f"/v2/trace/{trace}/spans")).json()["items"] == [strange]


@pytest.mark.parametrize(
    "usage", [["x"], {"prompt_tokens": "many", "completion_tokens": -3}, {"cached_tokens": 1e300}]
)
async def test_counts_that_are_none_count_as_none(api, usage):
    trace = new_id()
    await send(api, trace, span(agent_step(1, usage=usage)))
    run = (await whole(api, trace))["run"]
    assert (run["turns"], run["prompt_tokens"], run["completion_tokens"]) == (1, 0, 0)


async def test_the_same_spans_sent_many_times_at_once_count_once(api):
    trace = new_id()
    spans = [span(agent_step(number)) for number in range(1, 21)]
    answers = await asyncio.gather(*(send(api, trace, *spans) for _ in range(8)))
    assert sorted(answer["new"] for answer in answers) == [0] * 7 + [20]
    run = (await whole(api, trace))["run"]
    assert (run["step_count"], run["prompt_tokens"]) == (20, 60)


async def test_more_than_fits_is_asked_to_come_again(api, monkeypatch):
    monkeypatch.setattr(intake, "MOST_BYTES", 100_000)
    came, go_on = asyncio.Event(), asyncio.Event()
    body = json.dumps({"telemetry": [span(agent_step(1, "x" * 80_000))]}).encode()

    async def slowly():
        yield body[:-1]
        came.set()
        await go_on.wait()
        yield body[-1:]

    first = asyncio.create_task(api.post(f"/trace/{new_id()}/telemetry-upload", content=slowly()))
    await came.wait()
    refused = await api.post(f"/trace/{new_id()}/telemetry-upload", content=body)
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    go_on.set()
    assert (await first).status_code == 200
    again = await api.post(f"/trace/{new_id()}/telemetry-upload", content=body)
    assert again.status_code == 200


async def test_an_upload_alone_may_be_larger_than_what_many_share(api, monkeypatch):
    monkeypatch.setattr(intake, "MOST_BYTES", 1000)
    assert (await send(api, new_id(), span(agent_step(1, "x" * 5000))))["new"] == 1


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity"])
async def test_bodies_may_be_packed(api, encoding):
    trace = new_id()
    body = json.dumps({"telemetry": [span(agent_step(1))]}).encode()
    packed = {"gzip": gzip.compress, "deflate": zlib.compress, "identity": bytes}[encoding](body)
    answer = await api.post(
        f"/trace/{trace}/telemetry-upload", content=packed, headers={"content-encoding": encoding}
    )
    assert answer.json() == {"received": 1, "new": 1}


@pytest.mark.parametrize(
    ("body", "headers", "said"),
    [
        (b"nonsense", {}, "telemetry"),
        (b'{"telemetry": 3}', {}, "telemetry"),
        (b'{"telemetry": ["no span"]}', {}, "telemetry"),
        (b"nonsense", {"content-encoding": "gzip"}, "not valid gzip"),
        (b"x", {"content-encoding": "br"}, "not supported"),
        (
            gzip.compress(b'{"telemetry": []}', mtime=0)[:-9],
            {"content-encoding": "gzip"},
            "in the middle",
        ),
    ],
)
async def test_what_is_no_upload_is_refused_with_a_sentence(api, body, headers, said):
    answer = await api.post(f"/trace/{new_id()}/telemetry-upload", content=body, headers=headers)
    assert answer.status_code == 400
    assert said in answer.json()["detail"]


async def test_usage_events_are_dropped(api):
    for prefix in ("", "/v3/api"):
        assert (await api.post(f"{prefix}/sdk-events/cli", json={"events": []})).status_code == 200


async def test_overlong_names_and_errors_are_cut_as_lists_show_many_at_once(api):
    job, trace = new_id(), new_id()
    named = {"name": "n" * 2_000_000}
    assert (await api.post(f"/v2/trace/job/{job}/enter", json=named)).status_code == 200
    entered = {"job_id": job, "task_slug": "s" * 2_000_000, "model": "m" * 2_000_000}
    assert (await api.post(f"/v2/trace/{trace}/enter", json=entered)).status_code == 200
    ended = {"status": "error", "error": "e" * 2_000_000}
    assert (await api.post(f"/v2/trace/{trace}/exit", json=ended)).status_code == 200
    listed = await api.get("/v2/jobs")
    assert listed.json()["items"][0]["name"] == "n" * 999 + "…"
    assert len(listed.content) < 10_000
    assert len((await api.get(f"/v2/jobs/{job}/traces")).content) < 120_000
