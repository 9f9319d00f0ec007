"""An agent behind HTTP plays a run: its server gets the prompt, the model and the tools, and its response is the answer."""

import contextlib
import socket

import pytest
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route
from tests.agents.programs.test_program_agent import apples
from tests.platform.gateway.gateway_server import serving

from hud.agents.agent_forms import as_agent
from hud.agents.programs.run_model import ModelAccess, RunModel
from hud.errors import UsageError
from hud.eval import rollouts
from hud.eval.rollouts import rollout
from hud.processes.backoff import Backoff
from hud.trace import ToolStep
from hud.trace.recording.recorder import NullRecorder


@pytest.fixture(autouse=True)
def model(monkeypatch):
    """A model that nobody asks."""

    @contextlib.asynccontextmanager
    async def opened(self, run):
        yield ModelAccess("http://127.0.0.1:9", "a-pass")

    async def check(self):
        return

    monkeypatch.setattr(RunModel, "open", opened)
    monkeypatch.setattr(RunModel, "check", check)
    monkeypatch.setattr(rollouts, "RETRY_PAUSES", Backoff(0.001))


@contextlib.contextmanager
def agent_server(answer):
    """Serve an agent; yields its address and the list of its requests."""
    requests = []

    async def play(request):
        requests.append((request.headers["authorization"], await request.json()))
        return await answer(requests[-1][1])

    with serving(Starlette(routes=[Route("/agent", play, methods=["POST"])])) as url:
        yield f"{url}/agent", requests


async def play(task, url, **config):
    return await rollout(
        task,
        as_agent(url, {"model": "tiny", **config}),
        runtime=lambda task: task.environment.run(),
        recorder=NullRecorder(),
    )


async def test_its_answer_is_the_runs():
    async def answer(body):
        return JSONResponse({"answer": "7 apples"})

    with agent_server(answer) as (url, requests):
        run = await play(apples(), url)
    assert (run.reward, run.trace.content, run.trace.stop_reason) == (1.0, "7 apples", "done")
    ((authorization, body),) = requests
    assert authorization == "Bearer a-pass"
    assert body == {
        "run": run.trace_id,
        "prompt": 'What is at 7? It\'s "there".',
        "model": {"name": "tiny", "base_url": "http://127.0.0.1:9/v1"},
        "tools": None,
    }


async def test_it_calls_the_environments_tools():
    async def answer(body):
        async with (
            streamable_http_client(body["tools"]["mcp"]) as (read, write),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            listed = await session.list_tools()
            called = await session.call_tool(listed.tools[0].name, {"at": 7})
        return JSONResponse({"answer": called.content[0].text})

    with agent_server(answer) as (url, _):
        run = await play(apples(tool=True), url)
    assert (run.reward, run.error) == (1.0, None)
    assert [step.call.name for step in run.trace.steps if isinstance(step, ToolStep)] == ["look"]


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        (lambda: PlainTextResponse("7 apples"), "must respond with JSON"),
        (lambda: JSONResponse({"answer": 7}), "must respond with JSON"),
        (lambda: PlainTextResponse("it broke", 500), "status 500: 'it broke'"),
    ],
)
async def test_another_response_is_a_failure_of_the_agent(response, problem):
    async def answer(body):
        return response()

    with agent_server(answer) as (url, _):
        run = await play(apples(), url)
    assert (run.reward, run.failure_kind) == (0.0, "agent")
    assert problem in run.error


async def test_a_server_that_cannot_be_reached_fails_no_agent():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    run = await play(apples(), f"http://127.0.0.1:{port}")
    assert (run.reward, run.failure_kind) == (None, "infrastructure")


async def test_a_server_that_is_slow_reaches_the_agents_time_limit():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        run = await play(
            apples(), f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_seconds=0.3
        )
    assert (run.reward, run.trace.stop_reason) == (0.0, "timeout")


def test_an_address_without_a_host_is_refused():
    with pytest.raises(UsageError, match="url"):
        as_agent("http:///agent", {"model": "tiny"})
