"""Traces in the conventions of OpenTelemetry, as its own packages read them: `scripts/setup-integration trackers`."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

pytest.importorskip("opentelemetry.sdk", reason="scripts/setup-integration trackers")

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from tests.integrations import letters

from hud import Taskset
from hud.agents import ScriptedAgent
from hud.cli.main import run as run_hud
from hud.trace import AgentStep, Sample, ToolCall
from hud.trace.steps import SubagentStep, Trace, Usage
from hud_integrations.otlp import otlp_traces

NAMES = {
    value
    for name, value in vars(gen_ai_attributes).items()
    if name.startswith("GEN_AI_") and isinstance(value, str)
}
"""Attributes of the released conventions."""
NEWER = {"gen_ai.evaluation.name", "gen_ai.evaluation.score.value", "gen_ai.evaluation.explanation"}
OPERATIONS = {one.value for one in gen_ai_attributes.GenAiOperationNameValues}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def parsed(line):
    """Return a request as OpenTelemetry's own messages: ids of JSON are hexadecimal, not base64 as of protobuf."""
    for scope in line["resourceSpans"][0]["scopeSpans"]:
        for span in scope["spans"]:
            for name in ("traceId", "spanId", "parentSpanId"):
                if name in span:
                    span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    return ParseDict(line, ExportTraceServiceRequest())


def attributes_of(span):
    found = {}
    for one in span.attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        found[one.key] = (
            [item.string_value for item in value.values] if kind == "array_value" else value
        )
    return found


async def play(run):
    call = ToolCall(id="1", name="spell", arguments={"word": "red"})
    run.record(
        AgentStep(
            content="Spelling.",
            tool_calls=[call],
            model="tiny",
            finish_reason="tool_calls",
            usage=Usage(prompt_tokens=5, completion_tokens=2),
            sample=Sample(prompt_token_ids=[1], output_token_ids=[2], output_logprobs=[-1.0]),
        )
    )
    await run.call_tool(ToolCall(id="2", name="nothing", arguments={}))
    return (await run.call_tool(call)).text


async def test_opentelemetry_reads_the_traces_of_a_job(tmp_path):
    tasks = [letters.tasks[0], letters.broken(word="red")]
    job = await Taskset("letters", tasks).run(ScriptedAgent(play))
    assert run_hud(["export", job.id, "--to", "otlp", "-o", "traces.jsonl"]) == 0
    requests = [
        parsed(json.loads(line)) for line in (tmp_path / "traces.jsonl").read_text().splitlines()
    ]
    traces = {
        request.resource_spans[0].scope_spans[0].spans[0].trace_id.hex(): request
        for request in requests
    }
    spans = list(traces[job.runs[0].trace_id].resource_spans[0].scope_spans[0].spans)
    assert [span.name for span in spans] == [
        "invoke_agent agent",
        "chat tiny",
        "execute_tool nothing",
        "execute_tool spell",
    ]
    root, chat, unknown, spell = spans
    assert {span.parent_span_id for span in spans[1:]} == {root.span_id}
    assert len({span.span_id for span in spans}) == 4
    assert chat.kind == Span.SPAN_KIND_CLIENT
    for span in spans:
        found = attributes_of(span)
        own = {name for name in found if not name.startswith(("openhud.", "error."))}
        assert own <= NAMES | NEWER
        assert found["gen_ai.operation.name"] in OPERATIONS
        assert root.start_time_unix_nano <= span.start_time_unix_nano
        assert span.start_time_unix_nano <= span.end_time_unix_nano <= root.end_time_unix_nano
    assert attributes_of(chat)["gen_ai.usage.input_tokens"] == 5
    assert attributes_of(chat)["gen_ai.response.finish_reasons"] == ["tool_calls"]
    assert json.loads(attributes_of(spell)["gen_ai.tool.call.arguments"]) == {"word": "red"}
    assert attributes_of(spell)["gen_ai.tool.call.result"] == "r e d"
    assert unknown.status.code == Status.STATUS_CODE_ERROR
    (event,) = root.events
    assert event.name == "gen_ai.evaluation.result"
    assert attributes_of(event)["gen_ai.evaluation.score.value"] == pytest.approx(
        job.runs[0].reward
    )
    (failed, *_) = traces[job.runs[1].trace_id].resource_spans[0].scope_spans[0].spans
    assert failed.status.code == Status.STATUS_CODE_ERROR
    assert attributes_of(failed)["error.type"] == "grader"
    assert not failed.events


def test_a_subagent_is_an_agent_in_the_trace():
    inner, outer = Trace(trace_id="b" * 32), Trace(trace_id="a" * 32)
    inner.record(AgentStep(content="yes", model="small"))
    outer.record(SubagentStep(subagent=inner, extra={"tool": "helper", "model": "small"}))
    names = (
        "model",
        "content",
        "job_id",
        "group_id",
        "slug",
        "reward",
        "failure_kind",
        "attempt",
        "stop_reason",
        "task",
    )
    run = dict.fromkeys(names) | {"trace_id": "a" * 32}
    request = parsed(otlp_traces(run, outer.model_dump(mode="json")))
    root, helper, chat = request.resource_spans[0].scope_spans[0].spans
    assert (helper.name, helper.parent_span_id) == ("invoke_agent helper", root.span_id)
    assert (chat.name, chat.parent_span_id) == ("chat small", helper.span_id)
    assert chat.trace_id == root.trace_id


class Collector(BaseHTTPRequestHandler):
    """Takes export requests over HTTP, in JSON."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.taken.append((self.path, self.headers["content-type"], json.loads(body)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


async def test_a_collector_takes_them(capsys):
    job = await Taskset("letters", letters.tasks[:2]).run(ScriptedAgent(play))
    server = HTTPServer(("127.0.0.1", 0), Collector)
    server.taken = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        assert run_hud(["export", job.id, "--to", "otlp", "--endpoint", url]) == 0
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert [(path, kind) for path, kind, _ in server.taken] == [
        ("/v1/traces", "application/json")
    ] * 2
    assert parsed(server.taken[0][2]).resource_spans
    assert run_hud(["export", job.id, "--to", "otlp", "--endpoint", url]) == 1
    assert "took 0 runs, and then failed" in capsys.readouterr().err
    assert run_hud(["export", job.id, "--endpoint", url]) == 2
