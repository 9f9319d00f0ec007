"""Capabilities over the control channel: announced in `hello`, reached through tunnels, each session its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from contextlib import asynccontextmanager

import httpx
import pytest
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client

from hud.capabilities import Capability
from hud.environment import Environment, OpenPart, Part
from hud.environment.channel import ControlServer, RemoteConnection
from hud.errors import EnvironmentFault, InfrastructureFault, UsageError


class Line(Part):
    """A server of each run's own that says the run's number before what it is told."""

    name = "line"

    def __init__(self):
        self.runs = 0
        self.open_now = 0

    @asynccontextmanager
    async def open(self, run):
        self.runs += 1
        number, writers = self.runs, []

        async def repeat(reader, writer):
            writers.append(writer)
            writer.write(f"{number}:".encode())
            while chunk := await reader.read(1 << 16):
                writer.write(chunk)
                await writer.drain()
            writer.write(b"!")
            writer.close()

        server = await asyncio.start_server(repeat, "127.0.0.1", 0)
        opened = OpenPart()
        port = server.sockets[0].getsockname()[1]
        opened.capability = Capability("line", "line/1", f"line://guest@127.0.0.1:{port}/path?a=b")
        self.open_now += 1
        try:
            yield opened
        finally:
            self.open_now -= 1
            server.close()
            for writer in writers:
                writer.close()


def environment(*parts, **options):
    env = Environment("lines", **options)
    for part in parts:
        env.add(part)

    @env.tool
    async def peek(seconds: float = 0.0) -> str:
        """Look at a letter."""
        await asyncio.sleep(seconds)
        env.state.peeks = getattr(env.state, "peeks", 0) + 1
        return f"r{env.state.peeks}"

    @env.tool
    def fall() -> str:
        raise ValueError("no letters left")

    @env.template(id="count")
    async def count():
        answer = yield "How many r?"
        yield float(answer == "3")

    return env


@asynccontextmanager
async def served(env):
    server = ControlServer(env)
    listening = await asyncio.start_server(server.connected, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        await server.close()


class Foreign:
    """A client that knows the documented methods only."""

    def __init__(self, port):
        self.port = port
        self.streams = []

    async def __aenter__(self):
        self.control = await self.dial()
        self.said = (await self.call("hello"))["result"]
        return self

    async def __aexit__(self, *_):
        for _, writer in self.streams:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        await asyncio.sleep(0.02)

    async def dial(self):
        stream = await asyncio.open_connection("127.0.0.1", self.port)
        self.streams.append(stream)
        return stream

    async def call(self, method, stream=None, **params):
        reader, writer = stream or self.control
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        writer.write(json.dumps(request).encode() + b"\n")
        async with asyncio.timeout(10):
            return json.loads(await reader.readline())

    async def tunnel(self, name, **params):
        stream = await self.dial()
        return stream, await self.call("tunnel.open", stream, capability=name, **params)

    @property
    def names(self):
        return [binding["name"] for binding in self.said["bindings"]]


async def hear(stream, size):
    async with asyncio.timeout(10):
        return (await stream[0].readexactly(size)).decode()


async def test_a_tunnel_carries_both_ways_and_says_when_one_side_has_said_everything():
    async with served(environment(Line())) as port, Foreign(port) as client:
        assert client.names == ["line", "environment-tools"]
        stream, said = await client.tunnel("line")
        assert said["result"] == {"capability": "line"}
        assert await hear(stream, 2) == "1:"
        big = b"x" * (3 << 20)
        stream[1].write(big)
        stream[1].write_eof()
        assert await stream[0].read(-1) == big + b"!"


async def test_each_session_s_tunnels_reach_its_own_run():
    line = Line()
    async with served(environment(line)) as port:
        async with Foreign(port) as one, Foreign(port) as two:
            assert one.names[0] == "line"
            assert two.names[0] == f"line-{two.said['session_id']}"
            for client, number in ((one, "1:"), (two, "2:"), (one, "1:")):
                stream, _ = await client.tunnel(client.names[0])
                assert await hear(stream, 2) == number
            # A heartbeat says what was said before.
            again = await two.call("hello", session_id=two.said["session_id"])
            assert again["result"]["bindings"] == two.said["bindings"]
        async with Foreign(port) as three:
            assert three.names[0] == "line"
            assert line.open_now == 1


async def test_our_own_client_names_its_session_so_names_stay_as_they_are():
    async with served(environment(Line())) as port:
        connections = [await RemoteConnection.dial("127.0.0.1", port) for _ in range(3)]
        for number, connection in enumerate(connections, 1):
            (capability,) = connection.capabilities
            assert capability.name == "line"
            reached = await connection.reach(capability)
            assert reached.url.startswith("line://guest@127.0.0.1:")
            assert reached.url.endswith("/path?a=b")
            assert reached.url != capability.url
            assert await connection.reach(capability) == reached
            place = int(reached.url.split(":")[2].split("/")[0])
            for _ in range(2):
                stream = await asyncio.open_connection("127.0.0.1", place)
                assert await hear(stream, 2) == f"{number}:"
                stream[1].close()
            await connection.close()
            with pytest.raises(OSError, match="refused|Connect"):
                await asyncio.open_connection("127.0.0.1", place)


async def test_a_tunnel_by_a_name_that_several_sessions_have_is_refused_with_the_cure():
    async with served(environment(Line())) as port:
        ours = [await RemoteConnection.dial("127.0.0.1", port) for _ in range(2)]
        ids = [connection.session_id for connection in ours]
        stranger = Foreign(port)
        _, said = await stranger.tunnel("line")
        assert said["error"]["code"] == -32600
        assert all(session in said["error"]["message"] for session in ids)
        assert "session_id" in said["error"]["message"]
        stream, said = await stranger.tunnel("line", session_id=ids[1])
        assert await hear(stream, 2) == "2:"
        _, said = await stranger.tunnel("line", session_id="sess-gone")
        assert said["error"] == {
            "code": -32600,
            "message": "tunnel.open: unknown session sess-gone",
        }
        _, said = await stranger.tunnel("shell", session_id=ids[0])
        assert said["error"]["code"] == -32000
        assert "no capability 'shell' (there are: line)" in said["error"]["message"]
        await ours[0].close()
        stream, said = await stranger.tunnel("line")  # Now there is only one.
        assert await hear(stream, 2) == "2:"
        await ours[1].close()


async def test_a_capability_that_does_not_answer_is_the_environment_s_fault():
    env = environment()
    env.add_capability(Capability.ssh("shell", url="ssh://127.0.0.1:1"))
    env.add_capability(Capability.ssh("nowhere", url="ssh:"))
    async with served(env) as port:
        connection = await RemoteConnection.dial("127.0.0.1", port)
        shell, nowhere = connection.capabilities
        with pytest.raises(EnvironmentFault, match=r"'shell' does not answer at 127\.0\.0\.1:1"):
            await connection.reach(shell)
        with pytest.raises(EnvironmentFault, match="no host and port"):
            await connection.reach(nowhere)
        await connection.close()


async def test_a_server_that_is_gone_is_the_machinery_s_fault():
    async with served(environment(Line())) as port:
        connection = await RemoteConnection.dial("127.0.0.1", port)
        (capability,) = connection.capabilities
        connection.endpoint = ("127.0.0.1", 1)
        with pytest.raises(InfrastructureFault, match="opens no tunnel to 'line'"):
            await connection.reach(capability)
        await connection.close()


async def test_addresses_with_a_certificate_are_reached_by_their_name():
    env = environment()
    env.add_capability(Capability.mcp(url="https://tools.example.com/mcp"))
    async with served(env) as port:
        connection = await RemoteConnection.dial("127.0.0.1", port)
        (capability,) = connection.capabilities
        assert await connection.reach(capability) == capability
        await connection.close()


async def test_what_a_hook_offers_is_its_own_run_s():
    env = environment()
    runs = []

    @env.initialize
    def begin():
        runs.append(len(runs) + 1)
        env.add_capability(Capability.ssh("shell", url=f"ssh://127.0.0.1:{runs[-1]}"))
        with pytest.raises(UsageError, match="already has a capability 'shell'"):
            env.add_capability(Capability.ssh("shell", url="ssh://127.0.0.1:9"))

    async with served(env) as port:
        for number in (1, 2):
            connection = await RemoteConnection.dial("127.0.0.1", port)
            (capability,) = connection.capabilities
            assert capability.url == f"ssh://127.0.0.1:{number}"
            await connection.close()
    assert env.capabilities == []


async def test_a_run_that_does_not_come_up_fails_each_time_without_being_tried_again():
    env = environment()
    tries = []

    @env.initialize
    def begin():
        tries.append(1)
        raise ValueError("no power")

    async with served(env) as port:
        with pytest.raises(EnvironmentFault, match="no power"):
            await RemoteConnection.dial("127.0.0.1", port)
        assert len(tries) == 1
        client = Foreign(port)
        stream = await client.dial()
        for method, params in (("hello", {}), ("tasks.start", {"id": "count"})):
            said = await client.call(method, stream, **params)
            assert "no power" in said["error"]["message"]
        assert len(tries) == 2


async def test_a_run_goes_on_coming_up_when_the_call_that_needs_it_is_cancelled():
    env = environment()
    tries = []

    @env.initialize
    async def begin():
        tries.append(1)
        await asyncio.sleep(0.3)

    async with served(env) as port:
        client = Foreign(port)
        reader, writer = await client.dial()
        for number, method in enumerate(("tasks.start", "tasks.cancel", "tasks.start"), 1):
            request = {"jsonrpc": "2.0", "id": number, "method": method, "params": {"id": "count"}}
            writer.write(json.dumps(request).encode() + b"\n")
        async with asyncio.timeout(10):
            said = [json.loads(await reader.readline()) for _ in range(3)]
        assert [frame["id"] for frame in said] == [1, 2, 3]
        assert "interrupted" in said[0]["error"]["message"]
        assert said[2]["result"] == {"prompt": "How many r?"}
        assert tries == [1]


async def test_a_run_that_comes_up_when_its_client_hangs_up_is_brought_down():
    env = environment()
    begun, ended = asyncio.Event(), asyncio.Event()

    @env.initialize
    async def begin():
        begun.set()
        await asyncio.sleep(30)

    @env.shutdown
    async def end():
        ended.set()

    async with served(env) as port:
        client = Foreign(port)
        _, writer = await client.dial()
        writer.write(b'{"jsonrpc": "2.0", "id": 1, "method": "tools.list"}\n')
        async with asyncio.timeout(10):
            await begun.wait()
            writer.close()
            await ended.wait()


@pytest.mark.slow
@pytest.mark.parametrize("left", [False, True])
async def test_a_server_that_is_told_to_end_brings_its_runs_down(tmp_path, left):
    (tmp_path / "env.py").write_text("""
import asyncio
from hud.environment import Environment
from pathlib import Path

env = Environment("last")


@env.shutdown
async def end():
    print("ENDING", flush=True)
    await asyncio.sleep(0.3)
    Path("ended").touch()


@env.template
async def wait():
    yield "Wait."
    yield 1.0
""")
    command = (sys.executable, "-m", "hud.environment.channel", "env.py")
    process = await asyncio.create_subprocess_exec(
        *command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE
    )
    port = int((await process.stdout.readline()).split(b"=")[1])
    async with Foreign(port) as client:
        await client.call("tasks.start", id="wait")
        if left:
            # It is being brought down already, for its client says goodbye.
            client.control[1].write(b'{"jsonrpc": "2.0", "id": 2, "method": "bye"}\n')
            assert await process.stdout.readline() == b"ENDING\n"
        process.terminate()
        async with asyncio.timeout(20):
            assert await process.wait() == 0
    assert (tmp_path / "ended").exists()


@asynccontextmanager
async def mcp_session(binding):
    headers = {"authorization": f"Bearer {binding['params']['auth_token']}"}
    async with (
        httpx.AsyncClient(headers=headers, timeout=10) as http,
        streamable_http_client(binding["url"], http_client=http) as streams,
        ClientSession(streams[0], streams[1]) as session,
    ):
        await session.initialize()
        yield session


@pytest.mark.slow
async def test_the_environment_s_tools_are_an_mcp_server_for_clients_that_know_no_tools_call():
    async with served(environment()) as port, Foreign(port) as one, Foreign(port) as two:
        (binding,) = one.said["bindings"]
        async with mcp_session(binding) as session:
            tools = (await session.list_tools()).tools
            assert [tool.name for tool in tools] == ["peek", "fall"]
            assert tools[0].description == "Look at a letter."
            assert tools[0].input_schema["properties"]["seconds"]["type"] == "number"
            for count in (1, 2):
                result = await session.call_tool("peek", {})
                assert (result.content[0].text, result.is_error) == (f"r{count}", False)
            result = await session.call_tool("fall", {})
            assert result.is_error
            assert "no letters left" in result.content[0].text
            assert (await session.call_tool("nothing", {})).is_error
        async with mcp_session(two.said["bindings"][0]) as session:
            assert (await session.call_tool("peek", {})).content[0].text == "r1"


async def test_one_session_s_tools_are_closed_to_the_others_and_to_strangers():
    async with served(environment()) as port, Foreign(port) as one, Foreign(port) as two:
        (first,), (second,) = one.said["bindings"], two.said["bindings"]
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        async with httpx.AsyncClient(timeout=10) as http:
            for url, token in (
                (first["url"], second["params"]["auth_token"]),
                (first["url"], "guess"),
                (first["url"].replace("sess-", "sess-0"), first["params"]["auth_token"]),
                (first["url"].removesuffix("/mcp"), first["params"]["auth_token"]),
            ):
                headers = {"authorization": f"Bearer {token}"}
                assert (await http.post(url, json=ping, headers=headers)).status_code == 401
        # Through a tunnel, as clients elsewhere come.
        stream, said = await one.tunnel("environment-tools")
        assert "result" in said
        stream[1].write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert b"401" in await stream[0].read(-1)


async def test_tools_calls_overlap_and_nothing_listens_after_the_server():
    async with served(environment()) as port, Foreign(port) as client:
        (binding,) = client.said["bindings"]
        async with mcp_session(binding) as session:
            calls = (session.call_tool("peek", {"seconds": 0.5}) for _ in range(5))
            started = asyncio.get_running_loop().time()
            assert not any(result.is_error for result in await asyncio.gather(*calls))
            assert asyncio.get_running_loop().time() - started < 5 * 0.5
    place = int(binding["url"].split(":")[2].split("/")[0])
    with pytest.raises(OSError, match="refused|Connect"):
        await asyncio.open_connection("127.0.0.1", place)


async def test_our_own_client_is_announced_no_second_way_to_the_tools():
    async with served(environment()) as port:
        connection = await RemoteConnection.dial("127.0.0.1", port)
        assert connection.capabilities == []
        assert [tool.name for tool in await connection.list_tools()] == ["peek", "fall"]
        await connection.close()
