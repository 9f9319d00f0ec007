"""Spans of OpenTelemetry's instrumentations of the openai package become runs: `scripts/setup-integration opentelemetry`."""

import asyncio
import json
import os
import subprocess
import sys
import textwrap
import threading

import pytest

pytest.importorskip("opentelemetry.sdk", reason="scripts/setup-integration opentelemetry")
pytest.importorskip("openai", reason="scripts/setup-integration opentelemetry")

import httpx
import uvicorn

from hud.trace import parse_trace
from hud_platform.application import create_app
from hud_platform.process.config import PlatformConfig

PROGRAM = """
    import json, sys
    import httpx, openai
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from {module} import OpenAIInstrumentor

    provider = TracerProvider(resource=Resource.create({{"service.name": "shop"}}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    OpenAIInstrumentor().instrument(tracer_provider=provider)

    CALL = {{"id": "c1", "type": "function", "function": {{"name": "price", "arguments": '{{"item": "tea"}}'}}}}
    ANSWERS = [
        {{"role": "assistant", "content": None, "tool_calls": [CALL]}},
        {{"role": "assistant", "content": "It costs 3."}},
    ]

    def answer(request):
        asked = json.loads(request.content)
        message = ANSWERS[any(one["role"] == "tool" for one in asked["messages"])]
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        return httpx.Response(200, json={{
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-1",
            "choices": [{{"index": 0, "message": message, "finish_reason": reason}}],
            "usage": {{"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}},
        }})

    client = openai.OpenAI(
        api_key="k", base_url="http://model/v1",
        http_client=httpx.Client(transport=httpx.MockTransport(answer)),
    )
    tools = [{{"type": "function", "function": {{"name": "price", "parameters": {{"type": "object"}}}}}}]
    messages = [
        {{"role": "system", "content": "You keep a shop."}},
        {{"role": "user", "content": "What does tea cost?"}},
    ]
    with trace.get_tracer("shop").start_as_current_span("answer a customer"):
        while True:
            turn = client.chat.completions.create(model="gpt", messages=messages, tools=tools)
            message = turn.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                break
            messages.append({{"role": "tool", "tool_call_id": "c1", "content": "3"}})
    provider.shutdown()
"""


@pytest.fixture
def server(tmp_path):
    """The address of a platform."""
    application = create_app(PlatformConfig(tmp_path / "home"))
    serving = uvicorn.Server(uvicorn.Config(application, port=0, log_level="warning"))
    thread = threading.Thread(target=serving.run)
    thread.start()
    while not serving.started:
        threading.Event().wait(0.05)
    yield f"http://127.0.0.1:{serving.servers[0].sockets[0].getsockname()[1]}"
    serving.should_exit = True
    thread.join()


@pytest.mark.parametrize(
    "module",
    ["opentelemetry.instrumentation.genai.openai", "opentelemetry.instrumentation.openai"],
)
def test_a_client_s_calls_are_one_run_with_its_steps(server, tmp_path, module):
    pytest.importorskip(module)
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM.format(module=module)))
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": server,
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "span_only",
        "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
    }
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stderr.lower(), done.stderr
    (full,) = asyncio.run(recorded(server))
    prompt, turn, result, last = parse_trace(full["trace"]).steps
    assert [(message.role, message.text) for message in prompt.messages] == [
        ("system", "You keep a shop."),
        ("user", "What does tea cost?"),
    ]
    assert [(call.name, call.arguments) for call in turn.tool_calls] == [("price", {"item": "tea"})]
    assert (result.call.name, result.result.text, last.content) == ("price", "3", "It costs 3.")
    row = full["run"]
    assert (row["source"], row["turns"], row["prompt_tokens"]) == ("otlp", 2, 18)
    assert (row["model"], row["slug"], row["status"]) == ("gpt-1", "answer a customer", "completed")


async def recorded(server):
    async with httpx.AsyncClient(base_url=server) as http:
        (job,) = (await http.get("/v2/jobs")).json()["items"]
        assert job["name"] == "shop"
        rows = (await http.get(f"/v2/jobs/{job['id']}/traces")).json()["items"]
        return [json.loads((await http.get(f"/v2/trace/{row['id']}/full")).text) for row in rows]
