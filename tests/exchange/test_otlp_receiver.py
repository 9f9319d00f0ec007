"""Spans of OpenTelemetry become runs: whole, late, out of order, from our own exporter."""

import asyncio
import gzip
import json

import pytest
from tests.exchange.test_trajectory_import import played

import hud.client
from hud.client import connect
from hud.errors import UsageError
from hud.trace import parse_trace
from hud_integrations.otlp import attributes, otlp_traces
from hud_integrations.otlp_receiver import received_spans
from hud_integrations.otlp_receiver.spans import spans_of_json, spans_of_protobuf
from hud_integrations.shared.protobuf import data, double, integer

TRACE = "a" * 32
FIRST = 1_760_000_000_000_000_000


def said(role, text):
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def chat(number, messages, answer, *, end=True, trace=TRACE, parent="", **more):
    values = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "gpt",
        "gen_ai.input.messages": json.dumps(messages),
        "gen_ai.output.messages": json.dumps([answer]),
        "gen_ai.usage.input_tokens": 5,
        **more,
    }
    return span(number, f"chat {number}", values, end=end, trace=trace, parent=parent)


def span(number, name, values, *, end=True, trace=TRACE, parent="", events=()):
    start = FIRST + number * 1_000_000_000
    return {
        "traceId": trace,
        "spanId": f"{number + 1:016x}",
        "parentSpanId": parent,
        "name": name,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + 500_000_000) if end else "0",
        "attributes": attributes(values),
        "events": list(events),
    }


def request_of(*spans, service="shop"):
    resource = {"attributes": attributes({"service.name": service})}
    scopes = [{"scope": {"name": "test"}, "spans": list(spans)}]
    return {"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]}


def send(body, kind="application/json", encoding=None):
    async def post():
        headers = {"content-type": kind, **({"content-encoding": encoding} if encoding else {})}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await connect()._pool().post("/v1/traces", content=content, headers=headers)

    return asyncio.run(post())


def runs(name="shop"):
    async def read():
        client = connect()
        jobs = [job for job in (await client.get("/v2/jobs"))["items"] if job["name"] == name]
        rows = [
            row
            for job in jobs
            for row in (await client.get(f"/v2/jobs/{job['id']}/traces"))["items"]
        ]
        return [await client.get(f"/v2/trace/{row['trace_id']}/full") for row in rows]

    return asyncio.run(read())


CALL = {
    "role": "assistant",
    "parts": [{"type": "tool_call", "id": "c", "name": "price", "arguments": {"item": "tea"}}],
}
RESULT = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "3"}]}
EVALUATION = {
    "name": "gen_ai.evaluation.result",
    "timeUnixNano": str(FIRST),
    "attributes": attributes(
        {"gen_ai.evaluation.name": "reward", "gen_ai.evaluation.score.value": 0.5}
    ),
}


def test_spans_that_arrive_late_and_out_of_order_are_one_run(home):
    ask, answer = said("user", "Price?"), said("assistant", "3")
    root = span(
        0, "invoke_agent shop", {"gen_ai.operation.name": "invoke_agent"}, events=[EVALUATION]
    )
    second = chat(2, [ask, CALL, RESULT], answer, parent=root["spanId"])
    first = chat(1, [ask], CALL, parent=root["spanId"])
    assert send(request_of(second)).status_code == 200
    assert len(runs()) == 1
    for batch in ((first,), (root,), (first, second)):
        assert send(request_of(*batch)).status_code == 200
    (full,) = runs()
    prompt, turn, result, last = parse_trace(full["trace"]).steps
    assert prompt.messages[0].text == "Price?"
    assert turn.tool_calls[0].arguments == {"item": "tea"}
    assert (result.result.text, last.content) == ("3", "3")
    row = full["run"]
    assert (row["trace_id"], row["source"], row["foreign_id"]) == (TRACE, "otlp", TRACE)
    assert (row["reward"], row["turns"], row["prompt_tokens"]) == (0.5, 2, 10)
    assert (row["status"], row["model"]) == ("completed", "gpt")


def test_a_span_without_an_end_is_a_run_in_progress(home):
    send(request_of(chat(0, [said("user", "a")], said("assistant", "b"), end=False)))
    assert runs()[0]["run"]["status"] == "running"
    send(request_of(chat(0, [said("user", "a")], said("assistant", "b"))))
    assert runs()[0]["run"]["status"] == "completed"


def test_traces_of_one_conversation_are_one_run(home):
    one, two = said("user", "Tea?"), said("user", "Salt?")
    yes = said("assistant", "Yes")
    named = {"gen_ai.conversation.id": "talk-1"}
    later = chat(1, [one, yes, two], yes, trace="b" * 32)
    # The conversation of a trace becomes known with its second span.
    send(request_of(later))
    assert runs()[0]["run"]["trace_id"] == "b" * 32
    send(request_of(span(5, "agent", named, trace="b" * 32)))
    send(request_of(chat(0, [one], yes, **named)))
    (full,) = runs()
    assert full["run"]["foreign_id"] == "talk-1"
    steps = parse_trace(full["trace"]).steps
    assert [step.source for step in steps] == ["user", "agent", "user", "agent"]


def test_a_failed_call_is_a_failed_run(home):
    failed = chat(0, [said("user", "a")], said("assistant", ""))
    failed["status"] = {"code": 2, "message": "rate limit"}
    send(request_of(failed))
    row = runs()[0]["run"]
    assert (row["failure_kind"], row["error"], row["reward"]) == (
        "infrastructure",
        "rate limit",
        None,
    )


def test_the_receiver_is_the_inverse_of_our_exporter(tmp_path, monkeypatch):
    monkeypatch.delenv("HUD_API_URL", raising=False)
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "one"))
    job = played()

    async def exported():
        client = connect()
        fulls = [await client.get(f"/v2/trace/{run.trace_id}/full") for run in job.runs]
        return [(full, otlp_traces(full["run"], full["trace"])) for full in fulls]

    fulls = asyncio.run(exported())
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "two"))
    for _, body in fulls:
        assert send(body).status_code == 200
    again = {full["run"]["trace_id"]: full for full in runs("openhud")}
    for full, _ in fulls:
        ours, theirs = full["run"], again[full["run"]["trace_id"]]["run"]
        same = (
            "group_id",
            "attempt",
            "slug",
            "model",
            "reward",
            "status",
            "failure_kind",
            "content",
        )
        assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}
        assert [shown(step) for step in steps_of(full)] == [
            shown(step) for step in steps_of(again[ours["trace_id"]])
        ]
    for home in ("one", "two"):
        hud.client.disconnect(tmp_path / home)


def steps_of(full):
    acting = ("user", "agent", "tool", "subagent")
    return [step for step in parse_trace(full["trace"]).steps if step.source in acting]


def shown(step):
    """Return what of a step OTLP holds."""
    call, result = getattr(step, "call", None), getattr(step, "result", None)
    nested = getattr(step, "subagent", None)
    return (
        step.source,
        [(message.role, message.text) for message in step.messages],
        getattr(step, "content", None),
        getattr(step, "reasoning", None),
        getattr(step, "tool_calls", None),
        call,
        result and (result.text, result.is_error),
        nested and [shown(inner) for inner in nested.steps],
        step.started_at if step.source in ("agent", "tool") else None,
    )


def test_a_run_that_was_recorded_here_stays_as_it_is(home):
    job = played()
    full = asyncio.run(connect().get(f"/v2/trace/{job.runs[0].trace_id}/full"))
    assert send(otlp_traces(full["run"], full["trace"])).status_code == 200
    assert asyncio.run(connect().get(f"/v2/trace/{job.runs[0].trace_id}/full")) == full


def proto_value(value):
    if isinstance(value, bool):
        return integer(2, int(value))
    if isinstance(value, int):
        return integer(3, value)
    if isinstance(value, float):
        return double(4, value)
    if isinstance(value, list):
        return data(5, b"".join(data(1, proto_value(element)) for element in value))
    return data(1, value)


def fixed64(number, value):
    return bytes([number << 3 | 1]) + value.to_bytes(8, "little")


def test_protobuf_and_gzip_are_read_like_json(home):
    values = {"a": "é", "b": True, "c": -7, "d": 0.5, "e": ["x", 2]}
    pairs = b"".join(
        data(9, data(1, key) + data(2, proto_value(value))) for key, value in values.items()
    )
    event = fixed64(1, FIRST) + data(2, "happened") + data(3, data(1, "k") + data(2, data(1, "v")))
    message = b"".join(
        [
            data(1, bytes.fromhex(TRACE)),
            data(2, bytes.fromhex("01" * 8)),
            data(4, bytes.fromhex("02" * 8)),
            *(data(5, "chat"), fixed64(7, FIRST), fixed64(8, FIRST + 9), pairs, data(11, event)),
            data(15, data(2, "bad") + integer(3, 2)),
        ]
    )
    resource = data(1, data(1, data(1, "service.name") + data(2, data(1, "shop"))))
    body = data(1, resource + data(2, data(1, data(1, "scope")) + data(2, message)))
    as_json = request_of(
        {
            **{"traceId": TRACE, "spanId": "01" * 8, "parentSpanId": "02" * 8, "name": "chat"},
            **{"startTimeUnixNano": str(FIRST), "endTimeUnixNano": str(FIRST + 9)},
            "attributes": attributes(values),
            "events": [
                {
                    "name": "happened",
                    "timeUnixNano": str(FIRST),
                    "attributes": attributes({"k": "v"}),
                }
            ],
            "status": {"code": 2, "message": "bad"},
        }
    )
    as_json["resourceSpans"][0]["scopeSpans"][0]["scope"]["name"] = "scope"
    assert spans_of_protobuf(body) == spans_of_json(json.dumps(as_json).encode())
    answer = send(gzip.compress(body), "application/x-protobuf", "gzip")
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"{", "application/json"),
        (
            b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "zz", "spanId": "1"}]}]}]}',
            "application/json",
        ),
        (b"\x0a\xff", "application/x-protobuf"),
        (
            json.dumps(request_of({**span(0, "x", {}), "startTimeUnixNano": "9" * 40})).encode(),
            "application/json",
        ),
        (
            json.dumps(
                request_of(chat(0, [], said("assistant", "a"), **{"openhud.attempt": "x"}))
            ).encode(),
            "application/json",
        ),
        (b"{}", "text/plain"),
    ],
)
def test_another_body_is_refused_with_a_sentence(home, body, kind):
    answer = send(body, kind)
    assert answer.status_code == 400, answer.text
    assert answer.json()


def test_indexed_attributes_of_other_instrumentations_are_read(home):
    llm = {
        "openinference.span.kind": "LLM",
        "llm.model_name": "gpt",
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "Price?",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.tool_calls.0.tool_call.id": "c",
        "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "price",
        "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": '{"a": 1}',
        "llm.token_count.prompt": 4,
    }
    send(request_of(span(0, "ChatCompletion", llm)))
    (full,) = runs()
    prompt, turn = parse_trace(full["trace"]).steps
    assert (prompt.messages[0].text, turn.tool_calls[0].arguments) == ("Price?", {"a": 1})
    assert (full["run"]["model"], full["run"]["prompt_tokens"]) == ("gpt", 4)


def test_spans_without_a_model_make_no_run(home):
    assert send(request_of(span(0, "GET /", {"http.method": "GET"}))).status_code == 200
    assert runs() == []


def test_too_many_spans_are_refused():
    with pytest.raises(UsageError, match="at most 50,000 spans"):
        spans_of_json(json.dumps(request_of(*[span(0, "x", {})] * 50_001)).encode())


def test_a_conversation_that_grows_without_end_is_refused(home, monkeypatch):
    """Each upload reads all spans of its conversation: memory would grow with it."""
    monkeypatch.setattr(received_spans, "MOST_BYTES", 5000)
    first = chat(0, [said("user", "hi")], said("assistant", "a" * 2000))
    assert send(request_of(first)).status_code == 200
    answer = send(request_of(chat(1, [said("user", "hi")], said("assistant", "b" * 5000))))
    assert (answer.status_code, "together" in answer.text) == (400, True)
    assert len(runs()) == 1
