"""Subagents over the control channel, frame by frame, and for callers who cannot play them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.environment.channel.test_channel_protocol import Client

from hud.agents import ScriptedAgent
from hud.capabilities import Capability
from hud.environment import AgentTool, Environment, Task, load_environment
from hud.environment.channel import ControlServer, RemoteConnection
from hud.environment.channel.framing import BAD_PARAMS, BAD_STATE
from hud.errors import EnvironmentFault
from hud.eval import LocalRuntime
from hud.trace import ToolCall

SOURCE = Path(__file__).parents[2] / "eval" / "subagent_world.py"
world = load_environment(SOURCE)


@asynccontextmanager
async def served(environment=world):
    server = ControlServer(environment)
    listening = await asyncio.start_server(server.connected, "127.0.0.1", 0, limit=1 << 24)
    yield server, listening.sockets[0].getsockname()[1]
    listening.close()
    await server.close()


@asynccontextmanager
async def spoken():
    async with served() as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        yield server, Client(reader, writer)
        writer.close()


async def asked(client, method, **params):
    number = client.send(method, params)
    frame = await client.hear()
    assert frame["id"] == number
    return frame


async def test_what_is_delegated_is_told_with_what_is_hidden():
    async with spoken() as (_, client):
        await asked(client, "tasks.start", id="enquire", args={"expected": "sand", "strict": True})
        said = await asked(
            client, "subagents.delegate", name="ask_reader", arguments={"title": "x"}
        )
        found = said["result"]["delegation"]
        assert found["task"]["args"] == {"title": "x", "subject": "sand", "strict": True}
        assert (found["task"]["env"], found["task"]["id"], found["model"]) == (
            "reader",
            "read",
            "bookworm",
        )
        wrong = await asked(
            client, "subagents.delegate", name="ask_reader", arguments={"subject": 1}
        )
        assert wrong["result"]["refused"]["isError"]


async def test_calls_that_make_no_sense_are_refused():
    async with spoken() as (_, client):
        for method in ("subagents.delegate", "subagents.open"):
            assert (await asked(client, method))["error"]["code"] == BAD_PARAMS
            missing = (await asked(client, method, name="count_pages"))["error"]
            assert "no subagent 'count_pages'" in missing["message"]
        for method in ("tools.list", "tasks.grade", "subagents.close"):
            said = await asked(client, method, session_id="sess-1")
            assert said["error"]["code"] == BAD_STATE
        assert (await asked(client, "subagents.close"))["error"]["code"] == BAD_PARAMS


async def test_a_nested_session_is_its_callers_alone():
    async with spoken() as (_, client):
        opened = (await asked(client, "subagents.open", name="ask_reader"))["result"]
        assert opened["env"] == {"name": "reader", "version": "3.0"}
        tools = await asked(client, "tools.list", session_id=opened["session_id"])
        assert {tool["name"] for tool in tools["result"]["tools"]} == {
            "turn_page",
            "doze",
            "ask_another",
        }
        own = await asked(client, "tools.list")
        assert "ask_reader" in {tool["name"] for tool in own["result"]["tools"]}


async def test_another_connection_does_not_reach_a_nested_session():
    async with served() as (_, port):
        first = await RemoteConnection.dial("127.0.0.1", port)
        second = await RemoteConnection.dial("127.0.0.1", port)
        nested = await first.nested("ask_reader")
        with pytest.raises(EnvironmentFault, match="no subagent of this session"):
            await second.call("tools.list", {"session_id": nested.session_id})
        await first.close()
        await second.close()


async def test_closing_a_subagent_stops_what_it_does_and_leaves_the_others():
    async with served() as (server, port):
        connection = await RemoteConnection.dial("127.0.0.1", port)
        first, second = await connection.nested("ask_reader"), await connection.nested("ask_reader")
        dozing = asyncio.create_task(first.call_tool("doze", {"seconds": 60}))
        quick = asyncio.create_task(second.call_tool("doze", {"seconds": 0.3}))
        await asyncio.sleep(0.1)
        await first.close()
        with pytest.raises(EnvironmentFault):
            await dozing
        assert (await quick).result.text == "awake"
        await second.close()
        counted = await connection.call_tool("count_pages", {})
        assert counted.result.text == "0 pages, 2 readers left"
        await connection.close()
        assert list(server.sessions) == []


async def test_a_connection_that_is_lost_ends_the_subagents_in_it():
    async with served() as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        client = Client(reader, writer)
        await asked(client, "tasks.start", id="enquire", args={})
        opened = (await asked(client, "subagents.open", name="ask_reader"))["result"]
        below = {"name": "ask_another", "session_id": opened["session_id"]}
        await asked(client, "subagents.open", **below)
        assert len(list(server.sessions)) == 3
        writer.close()
        async with asyncio.timeout(5):
            while len(list(server.sessions)) > 1:  # noqa: ASYNC110  # Nothing tells of it.
                await asyncio.sleep(0.01)
        # The caller's task stays parked, to be resumed or graded; who played its subagents is gone.
        (parked,) = server.sessions
        assert parked.started


async def test_a_subagents_capabilities_are_reached_through_its_own_tunnels():
    async def echo(reader, writer):
        writer.write(b"inner " + await reader.readline())
        writer.close()

    behind = await asyncio.start_server(echo, "127.0.0.1", 0)
    address = f"tcp://127.0.0.1:{behind.sockets[0].getsockname()[1]}"
    inner, outer = Environment("inner"), Environment("outer")

    @inner.initialize
    async def offer():
        inner.add_capability(Capability("line", "echo/1", address, {}))

    @inner.template()
    async def speak():
        yield "Speak."
        yield 1.0

    outer.add_tool(AgentTool(speak, model="m"))
    async with served(outer) as (_, port):
        connection = await RemoteConnection.dial("127.0.0.1", port)
        assert connection.capabilities == []
        nested = await connection.nested("speak")
        (line,) = nested.capabilities
        reached = await nested.reach(line)
        assert reached.url != address
        reader, writer = await asyncio.open_connection("127.0.0.1", int(reached.url.split(":")[-1]))
        writer.write(b"hello\n")
        assert await reader.read() == b"inner hello\n"
        writer.close()
        await nested.close()
        await connection.close()
    behind.close()


async def reads(run):
    title = run.prompt_text.split()[2]
    page = ToolCall(id="p", name="turn_page", arguments={"title": title})
    return (await run.call_tool(page)).text.split()[0]


async def test_a_caller_that_only_calls_tools_has_the_subagent_played_for_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    made = []

    def create(slug):
        made.append(slug)
        return ScriptedAgent(reads, name=slug)

    monkeypatch.setattr("hud.eval.subagents.as_agent", create)
    task = Task(env="library", id="enquire")
    async with LocalRuntime(world)(task) as run:
        await run.start("enquire", {"expected": "sand"})
        first = await run.call_tool("ask_reader", {"title": "dune"})
        assert (first.result.text, first.result.is_error) == ("sand", False)
        wrong = await run.call_tool("ask_reader", {"subject": "sand"})
        assert wrong.result.is_error
        counted = await run.call_tool("count_pages", {})
        assert counted.result.text == "1 pages, 1 readers left"
    assert made == ["bookworm"]
