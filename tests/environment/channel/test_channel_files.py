"""`filetracking/1` over the control channel: what clients of other makers are told of a run's files."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from contextlib import asynccontextmanager

import pytest

from hud.environment import Environment, OpenPart, Part
from hud.environment.channel import ControlServer, RemoteConnection


class Folder(OpenPart):
    """Files in memory."""

    def __init__(self):
        self.content = {"old.txt": b"old"}

    async def follow_files(self):
        return Follower(self)


class Follower:
    def __init__(self, folder):
        self.folder, self.seen = folder, dict(folder.content)

    async def changed(self):
        now, before = dict(self.folder.content), self.seen
        self.seen = now
        names = sorted(name for name in {*now, *before} if now.get(name) != before.get(name))
        if not names:
            return {}
        patches = [{"path": name, "status": "added", "patch": "+"} for name in names]
        return {"files_changed": len(names), "patches": patches, "scan_duration_ms": 1.0}

    def files(self):
        return [
            {"path": name, "size": len(content), "content_hash": content.hex()}
            for name, content in self.seen.items()
        ]

    async def read(self, path, most):
        content = self.folder.content.get(path)
        return content if content is not None and len(content) <= most else None


class Files(Part):
    def __init__(self, name):
        self.name = name

    @asynccontextmanager
    async def open(self, run):
        yield Folder()


@asynccontextmanager
async def served(*names):
    env = Environment("papers")
    parts = [Files(name) for name in names]
    for part in parts:
        env.add(part)

    @env.template(id="write")
    async def write():
        env.opened(parts[0]).content["task.txt"] = b"the task"
        yield "Write."
        yield 1.0

    @env.tool
    def put(name: str, content: str) -> None:
        env.opened(parts[-1]).content[name] = base64.b64decode(content)

    server = ControlServer(env)
    listening = await asyncio.start_server(server.connected, "127.0.0.1", 0, limit=1 << 26)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        await server.close()


class Line:
    """One connection that asks one thing after another."""

    @classmethod
    @asynccontextmanager
    async def to(cls, port):
        self = cls()
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
        try:
            yield self
        finally:
            self.writer.close()
            with contextlib.suppress(OSError):
                await self.writer.wait_closed()
            await asyncio.sleep(0.02)

    async def ask(self, method, **params):
        request = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        self.writer.write(json.dumps(request).encode() + b"\n")
        async with asyncio.timeout(10):
            said = json.loads(await self.reader.readline())
        assert said["id"] == 7
        return said

    async def put(self, name, content):
        encoded = base64.b64encode(content).decode()
        said = await self.ask(
            "tools.call", name="put", arguments={"name": name, "content": encoded}
        )
        assert not said["result"]["result"]["isError"]


@asynccontextmanager
async def tracked(port, control):
    """The connection to a session's files, as what `hello` announced is reached."""
    bindings = (await control.ask("hello"))["result"]["bindings"]
    (binding,) = (one for one in bindings if one["protocol"] == "filetracking/1")
    async with Line.to(port) as files:
        said = await files.ask("tunnel.open", capability=binding["name"])
        assert said["result"] == {"capability": binding["name"]}
        yield files, binding


def patched(said):
    return [patch["path"] for patch in said["result"]["patches"]]


async def test_setup_and_each_change_are_told_once_and_the_last_ones_at_the_end():
    async with (
        served("shell") as port,
        Line.to(port) as control,
        tracked(port, control) as (files, binding),
    ):
        assert (binding["name"], binding["params"]) == ("filetracking", {"setup_diff": True})
        await control.ask("tasks.start", id="write")
        assert patched(await files.ask("setup")) == ["task.txt"]
        listed = (await files.ask("snapshot"))["result"]
        assert [file["path"] for file in listed["files"]] == ["old.txt", "task.txt"]
        assert listed["files_scanned"] == 2

        await control.put("notes.txt", b"n")
        first = await files.ask("diff")
        assert patched(first) == ["notes.txt"]
        assert first["result"]["files_changed"] == 1
        assert first["result"]["files_scanned"] == 3
        nothing = (await files.ask("diff"))["result"]
        assert (nothing["files_changed"], nothing["patches"]) == (0, [])

        await control.put("report.PDF", b"%PDF")
        last = (await files.ask("flush"))["result"]
        assert patched({"result": last["diff"]}) == ["report.PDF"]
        (captured,) = last["capture"]["files"]
        assert captured["file"]["data"] == base64.b64encode(b"%PDF").decode()
        assert (captured["path"], captured["status"]) == ("report.PDF", "added")
        assert captured["content_type"] == "application/pdf"
        assert last["capture"]["files_changed"] == 2
        said = await files.ask("erase")
        assert said["error"]["code"] == -32601


async def test_advance_forgets_the_setup_and_pictures_of_the_setup_are_not_handed_over():
    async with (
        served("shell") as port,
        Line.to(port) as control,
        tracked(port, control) as (files, _),
    ):
        await control.put("before.png", b"1")
        await control.put("changed.png", b"1")
        assert (await files.ask("advance"))["result"] == {"advanced": True}
        await control.put("changed.png", b"2")
        last = (await files.ask("flush"))["result"]
        assert patched({"result": last["diff"]}) == ["changed.png"]
        (captured,) = last["capture"]["files"]
        assert (captured["path"], captured["status"]) == ("changed.png", "modified")


async def test_what_is_too_much_to_hand_over_is_counted():
    async with (
        served("shell") as port,
        Line.to(port) as control,
        tracked(port, control) as (files, _),
    ):
        await control.put("large.png", b"x" * (5 << 20))
        await control.put("larger.png", b"x" * ((5 << 20) + 1))
        for number in range(21):
            await control.put(f"{number}.png", b"x")
        capture = (await files.ask("flush"))["result"]["capture"]
        assert capture["files_eligible"] == 23
        assert capture["files_captured"] == len(capture["files"]) == 20
        assert capture["files_skipped"] == 3
        assert capture["truncated"] is True
        assert "larger.png" not in [file["path"] for file in capture["files"]]


async def test_each_session_hears_of_its_own_files_and_folders_are_told_apart():
    async with (
        served("one", "two") as port,
        Line.to(port) as first,
        Line.to(port) as second,
        tracked(port, first) as (files, binding),
        tracked(port, second) as (others, other),
    ):
        assert binding["name"] == "filetracking"
        assert other["name"].startswith("filetracking-sess-")
        await first.put("mine.txt", b"m")
        assert patched(await files.ask("diff")) == ["two/mine.txt"]
        assert patched(await others.ask("diff")) == []


async def test_our_own_client_has_it_with_each_step_instead():
    async with served("shell") as port:
        connection = await RemoteConnection.dial("127.0.0.1", port)
        assert connection.capabilities == []
        await connection.close()


async def test_nothing_is_announced_where_there_are_no_files():
    async with served() as port, Line.to(port) as control:
        bindings = (await control.ask("hello"))["result"]["bindings"]
        assert [binding["protocol"] for binding in bindings] == ["mcp/2025-11-25"]


@asynccontextmanager
async def foreign(port):
    """A connection that takes the environment for one of another maker's, and has started its task."""
    connection = await RemoteConnection.dial("127.0.0.1", port, client=None)
    connection.foreign = True
    await connection.start("write", {})
    try:
        yield connection
    finally:
        await connection.close()


async def put(connection, name):
    await connection.call_tool("put", {"name": name, "content": "eA=="})


async def test_of_another_maker_s_environment_we_ask_what_each_step_changed():
    async with served("shell") as port, foreign(port) as connection:
        assert await connection.observe() == {}  # The setup's are not the agent's.
        await put(connection, "a.txt")
        await put(connection, "b.txt")
        seen = await asyncio.gather(*(connection.observe() for _ in range(5)))
        (told,) = [one["files"] for one in seen if one]
        assert [patch["path"] for patch in told["patches"]] == ["a.txt", "b.txt"]
        assert await connection.observe() == {}


@pytest.mark.parametrize("way", ["raises", "hangs up"])
async def test_a_run_goes_on_where_its_files_are_no_longer_told(way, monkeypatch, caplog):
    async with served("shell") as port, foreign(port) as connection:

        async def changed(self):
            if way == "raises":
                raise OSError("the disk is gone")
            connection._files._writer.transport.abort()
            await asyncio.sleep(0.05)

        monkeypatch.setattr(Follower, "changed", changed)
        assert await connection.observe() == {}
        assert "changes of its files are no longer recorded" in caplog.text
        caplog.clear()
        assert await connection.observe() == {}
        assert caplog.text == ""
        assert (await connection.grade("", None))["score"] == 1.0


async def test_a_run_starts_where_its_files_cannot_be_asked_for(monkeypatch, caplog):
    async def nothing(self):
        raise OSError("no")

    monkeypatch.setattr(Follower, "changed", nothing)
    async with served("shell") as port, foreign(port) as connection:
        assert "no longer recorded: OSError: no" in caplog.text
        assert await connection.observe() == {}
