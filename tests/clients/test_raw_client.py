"""`hud.connect`: a served environment by hand."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager

import pytest

import hud
from hud.capabilities import Capability
from hud.clients import HudProtocolError
from hud.environment import Environment, OpenPart, Part
from hud.environment.channel import ControlServer
from hud.errors import InfrastructureFault, NotFoundError, UsageError


class Echo(Part):
    """A server of each run's own that says what it is told."""

    def __init__(self, name):
        self.name = name

    @asynccontextmanager
    async def open(self, run):
        async def repeat(reader, writer):
            writer.write(self.name.encode() + b":" + await reader.read(1 << 16))
            writer.close()

        server = await asyncio.start_server(repeat, "127.0.0.1", 0)
        opened = OpenPart()
        port = server.sockets[0].getsockname()[1]
        opened.capability = Capability(self.name, "echo/1", f"tcp://127.0.0.1:{port}")
        try:
            yield opened
        finally:
            server.close()


@asynccontextmanager
async def served(*parts):
    env = Environment("letters", version="3.1.0")
    for part in parts:
        env.add(part)

    @env.tool
    def spell(word: str) -> str:
        return "-".join(word)

    @env.template(id="count", description="Count letters.")
    async def count(word: str):
        answer = yield f"How many letters has {word}?"
        yield float(answer == str(len(word)))

    server = ControlServer(env)
    listening = await asyncio.start_server(server.connected, "127.0.0.1", 0)
    try:
        yield f"tcp://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()
        await server.close()


async def say(capability, text):
    host, port = capability.url.removeprefix("tcp://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(text.encode())
    writer.write_eof()
    async with asyncio.timeout(10):
        heard = (await reader.read(-1)).decode()
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return heard


async def test_a_task_is_listed_started_and_graded():
    async with served() as url, hud.connect(hud.Runtime(url)) as client:
        assert client.manifest.session_id.startswith("sess-")
        assert client.manifest.protocol_version == "hud/1.0"
        server = client.manifest.server_info
        assert (server.name, server.version) == ("letters", "3.1.0")
        (task,) = await client.list_tasks()
        assert (task["id"], task["description"]) == ("count", "Count letters.")
        started = await client.start_task("count", {"word": "tree"})
        assert started == {"prompt": "How many letters has tree?"}
        assert (await client.grade({"answer": "4"}))["score"] == 1.0
        await client.start_task("count", {"word": "oak"})
        await client.cancel()
        with pytest.raises(HudProtocolError) as refused:
            await client.grade({"answer": "3"})
        assert (refused.value.code, refused.value.message) == (-32600, "no task in progress")


async def test_what_the_environment_refuses_is_told_with_its_code():
    async with served() as url, hud.connect(url) as client:
        for task, args, code in (("nothing", {}, -32602), ("count", {"tree": 1}, -32000)):
            with pytest.raises(HudProtocolError) as refused:
                await client.start_task(task, args)
            assert refused.value.code == code
        with pytest.raises(HudProtocolError, match="unknown session sess-gone"):
            await client.hello("sess-gone")
        # It is no worse for it.
        assert "tree" in (await client.start_task("count", {"word": "tree"}))["prompt"]


async def test_a_task_that_was_left_is_taken_over_by_its_session():
    async with served(Echo("bell")) as url:
        async with hud.connect(url) as one, hud.connect(url) as two:
            for client, word in ((one, "oak"), (two, "maple")):
                await client.start_task("count", {"word": word})
            left = one.manifest.session_id
        async with hud.connect(url) as three:
            manifest = await three.hello(left)
            assert manifest.session_id == left
            assert await say(three.binding("bell"), "hi") == "bell:hi"
            assert (await three.grade({"answer": "3"}))["score"] == 1.0


async def test_what_is_offered_is_reached_by_name_or_protocol():
    async with served(Echo("bell")) as url, hud.connect(url) as client:
        there = client.manifest.bindings[0]
        for reference in ("bell", "echo", "echo/1"):
            here = client.binding(reference)
            assert here.url != there.url
            assert await say(here, reference) == f"bell:{reference}"
        with pytest.raises(NotFoundError, match=r"no 'ssh'; it offers bell \(echo/1\)"):
            client.binding("ssh")
        with pytest.raises(NotFoundError, match="speaks echo/1; there are clients for"):
            await client.open("bell")


async def test_a_protocol_that_two_have_is_ambiguous():
    async with served(Echo("bell"), Echo("horn")) as url, hud.connect(url) as client:
        with pytest.raises(UsageError, match="'echo' may be any of bell, horn"):
            client.binding("echo")
        assert await say(client.binding("horn"), "hi") == "horn:hi"


async def test_the_environment_s_tools_are_among_it():
    async with served() as url, hud.connect(url) as one, hud.connect(url) as two:
        for client in (one, two):
            tools = await client.open("mcp")
            assert await client.open("environment-tools") is tools
            assert [spec.name for spec in await tools.list_tools()] == ["spell"]
            result = await tools.call_tool("spell", {"word": "oak"})
            assert result.content[0].text == "o-a-k"


async def test_nobody_there_is_told_when_the_time_is_up():
    runtime = hud.Runtime("tcp://127.0.0.1:1", params={"ready_timeout": 0.3})
    with pytest.raises(InfrastructureFault, match="No environment answers"):
        async with hud.connect(runtime):
            pass


async def test_the_names_that_guides_import():
    from hud.capabilities import Capability, CDPClient, MCPClient, RFBClient, SSHClient
    from hud.clients import HudClient, Manifest, ServerInfo, connect
    from hud.environment import Mount, Workspace, bind, serve

    clients = {
        CDPClient: "cdp/1.3",
        MCPClient: "mcp/2025-11-25",
        RFBClient: "rfb/3.8",
        SSHClient: "ssh/2",
    }
    assert {client: client.protocol for client in clients} == clients
    assert hud.connect is connect
    assert all((Capability, HudClient, Manifest, Mount, ServerInfo, Workspace, serve))
    env = Environment("letters", version="3.1.0")
    async with await bind(env) as listening:
        url = f"tcp://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        async with hud.connect(url) as client:
            assert await client.list_tasks() == []
