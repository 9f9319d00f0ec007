"""Traces that are small where they are written and large where they are read: no answer takes more memory than its bound."""

import hashlib
import json

import httpx
import pytest

from hud import exact_json
from hud.trace import new_id
from hud.trace.recording.journal import encode_event
from hud_platform.application import create_app
from hud_platform.process.config import PlatformConfig
from hud_platform.store import attachments, records
from hud_platform.store.tables import LOCAL_TEAM

TEXT = "A" * attachments.LARGE_CHARACTERS
NAME = f"{LOCAL_TEAM}/attachments/{hashlib.sha256(TEXT.encode()).hexdigest()}"


@pytest.fixture
async def api(tmp_path):
    app = create_app(PlatformConfig(tmp_path))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://platform") as client:
        yield client
    app.state.parts.close()


async def ingest(api, *events):
    lines = b"".join(
        encode_event(kind, trace, step, exact_json.dumps(payload))
        for kind, trace, step, payload in events
    )
    answer = await api.post("/v2/ingest", content=lines)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def entered(api):
    trace = new_id()
    (await api.post(f"/v2/trace/{trace}/enter", json={})).raise_for_status()
    return trace


def said(number, block):
    message = {"role": "user", "content": [block]}
    return {"step_id": number, "source": "user", "messages": [message]}


def sampled(prompt, extends):
    columns = {"prompt": prompt, "output": [1], "logprobs": [-1.0], "extends": extends}
    return {**columns, "checkpoint": None, "swaps": [], "temperature": 1.0, "pictures": []}


async def test_a_step_cannot_name_the_attachment_of_another_one(api):
    trace = await entered(api)
    image = {"type": "image", "mime_type": "image/png"}
    await ingest(
        api,
        (b"S", trace, 0, said(0, {**image, "data": TEXT})),
        (b"S", trace, 1, said(1, {**image, "hud.blob": NAME})),
    )
    span = {"span_id": "a" * 16, "name": "x", "attributes": {"files": [{"hud.blob": NAME}] * 9}}
    answer = await api.post(f"/trace/{trace}/telemetry-upload", json={"telemetry": [span]})
    assert answer.status_code == 200
    whole = (await api.get(f"/v2/trace/{trace}/full")).text
    spans = (await api.get(f"/v2/trace/{trace}/spans")).text
    assert (whole.count(TEXT), spans.count(TEXT)) == (1, 0)


async def test_prompts_that_extend_one_another_have_a_size_together(api, monkeypatch):
    monkeypatch.setattr(records, "MOST_BYTES", 8 * 50_000)
    small, large = await entered(api), await entered(api)
    for trace, turns in ((small, 3), (large, 9)):
        turn = {"source": "agent", "content": "x"}
        steps = [(b"S", trace, number, {"step_id": number, **turn}) for number in range(turns)]
        samples = [(b"T", trace, number, sampled([], 0)) for number in range(1, turns)]
        first = (b"T", trace, 0, sampled([7] * 10_000, None))
        assert not (await ingest(api, first, *samples, *steps))["damaged"]
    whole = (await api.get(f"/v2/trace/{small}/full")).json()["trace"]
    assert [len(step["sample"]["prompt_token_ids"]) for step in whole["steps"]] == [
        10_000,
        10_001,
        10_001,
    ]
    for answer in (
        await api.get(f"/v2/trace/{large}/full"),
        await api.get(f"/v2/trace/{large}/events"),
        await api.post("/v2/trace/full", json={"trace_ids": [large]}),
    ):
        assert answer.status_code == 400
        assert f"/trace/{large}/raw.json" in answer.json()["detail"]
    pages = json.loads((await api.get(f"/trace/{large}/raw.json")).text)
    assert len(pages["steps"]) == 9


async def test_a_large_trace_is_refused_before_it_is_read(api, monkeypatch):
    monkeypatch.setattr(records, "MOST_BYTES", 100_000)
    trace = await entered(api)
    for number in range(3):
        step = {"step_id": number, "source": "agent", "content": "x" * 40_000}
        await ingest(api, (b"S", trace, number, step))
    monkeypatch.setattr(records, "_by_trace", None)
    answer = await api.get(f"/v2/trace/{trace}/full")
    assert (answer.status_code, "is not read whole" in answer.text) == (400, True)


async def test_attachments_count_to_the_size_of_their_trace(api, monkeypatch):
    monkeypatch.setattr(records, "MOST_BYTES", 100_000)
    trace = await entered(api)
    image = {"type": "image", "mime_type": "image/png", "data": TEXT}
    for number in range(4):
        await ingest(api, (b"S", trace, number, said(number, image)))
    assert (await api.get(f"/v2/trace/{trace}/full")).status_code == 400


async def test_traces_of_one_request_are_read_one_after_the_other(api, monkeypatch):
    monkeypatch.setattr(records, "PART_BYTES", 100_000)
    traces = [await entered(api) for _ in range(6)]
    for trace in traces:
        step = {"step_id": 0, "source": "agent", "content": "x" * 40_000}
        await ingest(api, (b"S", trace, 0, step))
    read, by_trace = [], records._by_trace

    def counted(store, table, trace_ids):
        read.append(len(trace_ids))
        return by_trace(store, table, trace_ids)

    monkeypatch.setattr(records, "_by_trace", counted)
    answer = await api.post("/v2/trace/full", json={"trace_ids": traces})
    assert [item["run"]["trace_id"] for item in answer.json()["items"]] == traces
    assert max(read) == 2


async def test_pages_of_spans_have_a_size(api, monkeypatch):
    monkeypatch.setattr(records, "MOST_BYTES", 100_000)
    trace = await entered(api)
    spans = [{"span_id": f"{n:016x}", "name": "x", "attributes": {"data": TEXT}} for n in range(9)]
    await api.post(f"/trace/{trace}/telemetry-upload", json={"telemetry": spans})
    refused = await api.get(f"/v2/trace/{trace}/spans")
    assert (refused.status_code, "(limit)" in refused.text) == (400, True)
    page = (await api.get(f"/v2/trace/{trace}/spans?limit=2&offset=4")).json()
    assert (len(page["items"]), page["total"]) == (2, 9)


async def test_a_journal_line_of_many_lists_is_left_out(api, monkeypatch):
    monkeypatch.setattr(exact_json, "MOST_CONTAINERS", 1000)
    trace = await entered(api)
    many = {"step_id": 0, "source": "agent", "content": "x", "extra": {"a": [[]] * 1000}}
    few = {"step_id": 1, "source": "agent", "content": "y"}
    answer = await ingest(api, (b"S", trace, 0, many), (b"S", trace, 1, few))
    assert answer == {"events": 1, "damaged": [0]}


async def test_a_sample_that_extends_none_is_left_out(api):
    trace = await entered(api)
    step = {"step_id": 0, "source": "agent", "content": "x"}
    await ingest(api, (b"T", trace, 0, sampled([5], 3)), (b"S", trace, 0, step))
    answer = await api.get(f"/v2/trace/{trace}/full")
    assert answer.status_code == 200
    assert "sample" not in answer.json()["trace"]["steps"][0]


@pytest.mark.parametrize("levels", [200, 252, 400])
async def test_a_journal_line_that_is_nested_deep_spoils_no_list(api, levels):
    job, trace = new_id(), new_id()
    await api.post(f"/v2/trace/job/{job}/enter", json={})
    nested: list = []
    for _ in range(levels):
        nested = [nested]
    run = {
        "job_id": job,
        "extra": {"a": "NESTED"},
        "status": "completed",
        "attempt": 0,
        "started_at": 1,
    }
    payload = exact_json.dumps(run).replace(b'"NESTED"', b"[" * levels + b"]" * levels)
    lines = encode_event(b"E", trace, 0, payload)
    step = exact_json.dumps({"step_id": 0, "source": "agent", "content": "NESTED"})
    lines += encode_event(b"S", trace, 0, step.replace(b'"NESTED"', b"[" * levels + b"]" * levels))
    answer = (await api.post("/v2/ingest", content=lines)).json()
    recorded = [trace] if not answer["damaged"] else []
    for path in (f"/v2/jobs/{job}/traces", "/v2/jobs", f"/jobs/{job}"):
        assert (await api.get(path)).status_code == 200, path
    good = await entered(api)
    answer = await api.post("/v2/trace/full", json={"trace_ids": [good, *recorded]})
    assert answer.status_code == 200, answer.text
