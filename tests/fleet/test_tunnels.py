"""An environment that runs on the platform is driven from here, through tunnels."""

import asyncio
import json

import psutil
import pytest
from tests.fleet.deployed_server import deployed_server
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from hud.agents import ScriptedAgent
from hud.eval import HUDRuntime, NullRecorder, Task, Taskset, rollout
from hud.eval.runtimes.tunnelled import _listening, _Tunnels
from hud.trace import ToolCall

ENV = """
import asyncio
import os
from contextlib import asynccontextmanager
from hud import Environment
from hud.capabilities import Capability
from hud.environment import OpenPart, Part


class Bell(Part):
    name = "bell"

    @asynccontextmanager
    async def open(self, run):
        async def ring(reader, writer):
            writer.write((await reader.read(-1)).upper())
            writer.close()

        server = await asyncio.start_server(ring, "127.0.0.1", 0)
        opened = OpenPart()
        port = server.sockets[0].getsockname()[1]
        opened.capability = Capability("bell", "bell/1", f"tcp://127.0.0.1:{port}")
        yield opened
        server.close()


env = Environment("echo", capabilities=[Bell()])

@env.tool
def repeat(text: str) -> str:
    return text

@env.tool
async def leave() -> None:
    os._exit(3)

@env.template()
async def say(word: str = "hello"):
    answer = yield f"Say {word}."
    yield float(answer == word)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("tunnels")
    with deployed_server(root, {"echo": ENV}, workers=0, model=None) as made:
        yield made


@pytest.fixture
def here(server, monkeypatch, tmp_path):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.setenv("HUD_API_URL", server.url)
    monkeypatch.setenv("HUD_API_KEY", server.key)


def served(server):
    children = psutil.Process(server.process.pid).children(recursive=True)
    # The process that ends what an environment leaves names its command, too.
    alone = [child for child in children if "-I" not in child.cmdline()]
    return [child for child in alone if "hud.environment.channel" in child.cmdline()]


async def until(done, seconds=20.0):
    for _ in range(round(seconds / 0.05)):
        if done():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it takes too long")


@pytest.mark.slow
async def test_rollouts_with_the_environment_there_and_the_agent_here(server, here):
    words = ["a", "b", "c"]
    tasks = Taskset("t", [Task(env="echo", id="say", args={"word": word}) for word in words])

    async def play(run):
        call = {"id": "1", "name": "repeat", "arguments": {"text": run.task.args["word"]}}
        return (await run.call_tool(ToolCall(**call))).text

    job = await tasks.run(ScriptedAgent(play), runtime=HUDRuntime(), recorder=NullRecorder())
    assert [(run.reward, run.error) for run in job.runs] == [(1.0, None)] * 3
    await until(lambda: not served(server))


@pytest.mark.slow
async def test_a_call_that_ends_its_environment_there_is_its_agents_failure(server, here):
    attempts = []

    async def leave(run):
        attempts.append(run)
        await run.call_tool(ToolCall(name="leave"))

    run = await rollout(
        Task(env="echo", id="say", args={}),
        ScriptedAgent(leave),
        runtime=HUDRuntime(),
        recorder=NullRecorder(),
    )
    assert (run.reward, run.failure_kind) == (0.0, "agent"), run.error
    assert "its process on the platform has ended" in run.error
    assert len(attempts) == 1


@pytest.mark.slow
async def test_what_an_environment_there_offers_is_reached_from_here(server, here):
    heard = []

    async def ring(run):
        (bell,) = run.capabilities
        reached = await run.live.connection.reach(bell)
        assert reached.url != bell.url
        place = reached.url.removeprefix("tcp://").split(":")

        async def say(text):
            reader, writer = await asyncio.open_connection(*place)
            writer.write(text)
            writer.write_eof()
            heard.append(await reader.read(-1))
            writer.close()

        await asyncio.gather(*(say(b"x" * (1 << 20)) for _ in range(3)))
        return run.task.args["word"]

    tasks = Taskset("t", [Task(env="echo", id="say", args={"word": word}) for word in "ab"])
    job = await tasks.run(ScriptedAgent(ring), runtime=HUDRuntime(), recorder=NullRecorder())
    assert [(run.reward, run.error) for run in job.runs] == [(1.0, None)] * 2
    assert heard == [b"X" * (1 << 20)] * 6
    await until(lambda: not served(server))


@pytest.mark.slow
async def test_large_frames_pass_and_several_tunnels_reach_one_environment(server):
    headers = {"authorization": f"Bearer {server.key}"}
    with server.client() as api:
        answer = api.post("/runtime/sessions", json={"environment": "echo"})
        assert answer.status_code == 201
        session = answer.json()["id"]
        place = f"{server.url.replace('http', 'ws')}/runtime/tunnels/{session}"

        async def ask(tunnel, method, **params):
            request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            await tunnel.send(json.dumps(request).encode() + b"\n")
            heard = b""
            while not heard.endswith(b"\n"):
                heard += await tunnel.recv()
            return json.loads(heard)

        async def open_tunnel():
            """The first is opened before the environment is up: it waits."""
            tunnel = await connect(
                place, additional_headers=headers, max_size=None, compression=None
            )
            await ask(tunnel, "hello")
            return tunnel

        first, second = await open_tunnel(), await open_tunnel()
        assert (await ask(second, "tasks.list"))["result"]["tasks"][0]["id"] == "say"
        word = "x" * ((16 << 20) - 200)  # With what is around it, all that a frame may hold.
        started = await ask(first, "tasks.start", id="say", args={"word": word})
        assert started["result"]["prompt"] == f"Say {word}."
        graded = await ask(first, "tasks.grade", answer=word)
        assert graded["result"]["score"] == 1.0
        assert len(served(server)) == 1
        api.delete(f"/runtime/sessions/{session}").raise_for_status()
        await until(lambda: not served(server))
        assert api.delete(f"/runtime/sessions/{session}").json()["status"] == "unknown"
        await first.close()
        await second.close()


async def test_a_tunnel_that_waits_for_an_environment_is_told_that_its_session_ended(server):
    headers = {"authorization": f"Bearer {server.key}"}
    with server.client() as api:
        session = api.post("/runtime/sessions", json={"environment": "echo"}).json()["id"]
        place = f"{server.url.replace('http', 'ws')}/runtime/tunnels/{session}"
        tunnel = await connect(place, additional_headers=headers)
        api.delete(f"/runtime/sessions/{session}").raise_for_status()
        with pytest.raises(ConnectionClosed) as told:
            await tunnel.recv()
    assert told.value.rcvd.code in (1000, 1011), told.value.rcvd


async def test_another_team_reaches_nothing(server):
    with server.client() as api:
        made = api.post("/v2/keys", json={"name": "o", "team": "others", "scopes": ["run"]}).json()
        session = api.post("/runtime/sessions", json={"environment": "echo"}).json()["id"]
        with server.client(made["key"]) as other:
            assert other.post("/runtime/sessions", json={"environment": "echo"}).status_code == 404
            assert other.delete(f"/runtime/sessions/{session}").json()["status"] == "unknown"
        place = f"{server.url.replace('http', 'ws')}/runtime/tunnels/{session}"
        headers = {"authorization": f"Bearer {made['key']}"}
        tunnel = await connect(place, additional_headers=headers)
        with pytest.raises(ConnectionClosed) as told:
            await tunnel.recv()
        assert told.value.rcvd.code == 4003
        api.delete(f"/runtime/sessions/{session}").raise_for_status()


async def test_a_side_that_has_said_everything_still_hears_the_answer(server):
    with server.client() as api:
        session = api.post("/runtime/sessions", json={"environment": "echo"}).json()["id"]
    tunnels = _Tunnels(server.url, server.key, session)
    async with asyncio.timeout(30), _listening(tunnels) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        request = {"jsonrpc": "2.0", "id": 1, "method": "hello", "params": {}}
        writer.write(json.dumps(request).encode() + b"\n")
        writer.write_eof()
        heard = await reader.read()
        assert json.loads(heard)["id"] == 1
        writer.close()
    with server.client() as api:
        api.delete(f"/runtime/sessions/{session}").raise_for_status()


@pytest.mark.slow
async def test_an_environment_that_cannot_come_up_is_told_at_once(server, here):
    (source,) = server.home.rglob("source/env.py")
    source.write_text("raise RuntimeError('it is broken')")
    try:
        run = await rollout(
            Task(env="echo", id="say"),
            ScriptedAgent(lambda run: ""),
            runtime=HUDRuntime(),
            recorder=NullRecorder(),
        )
    finally:
        source.write_text(ENV)
    assert run.failure_kind == "infrastructure"
    assert "could not bring the environment up" in run.error


@pytest.mark.slow
async def test_stopping_the_server_ends_its_environments(tmp_path):
    with deployed_server(tmp_path, {"echo": ENV}, workers=0, model=None) as made:
        with made.client() as api:
            for _ in range(2):
                api.post("/runtime/sessions", json={"environment": "echo"}).raise_for_status()
        await until(lambda: len(served(made)) == 2)
        left = served(made)
        assert await asyncio.to_thread(made.stop) == 0
    await until(lambda: not any(process.is_running() for process in left))
