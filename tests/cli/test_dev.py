"""`hud dev`: official clients use an environment over MCP while it is written, and a save reaches them."""

import asyncio
import contextlib
import os
import re
import sys
from pathlib import Path

import pytest
from mcp import Client, MCPError, types
from mcp.client.stdio import StdioServerParameters, stdio_client

from hud.capabilities import Capability
from hud.capabilities.mcp import MCPClient

SOURCE = '''
from hud import Environment
from hud.trace import ImageContent

env = Environment("Letters & words", version="1.2.0")

@env.initialize
def begin():
    env.state.words = []

@env.tool
def count(word: str, letter: str = "r") -> int:
    """Count how often a letter occurs in a word."""
    env.state.words.append(word)
    return word.count(letter)

@env.tool
def words() -> list[str]:
    """Return the words that were counted in this run."""
    print("somebody asks for the words")
    return env.state.words

@env.tool
def crash():
    """End the environment's process."""
    import os
    os._exit(9)

@env.template(id="count", description="How many letters a word has.")
async def counting(word: str, times: int = 1):
    answer = yield f"How many letters are in {word * times!r}?"
    yield float(answer == str(len(word * times)))
'''
MORE = (
    SOURCE
    + '''
@env.tool
def shout(word: str) -> str:
    """Say it louder."""
    return word.upper()
'''
)


class Dev:
    """A running `hud dev`, and what it says."""

    def __init__(self, process):
        self.process = process
        self.said = ""
        self.url = ""
        self._reading = asyncio.create_task(self._read())

    async def _read(self):
        while piece := await self.process.stderr.read(4096):
            self.said += piece.decode()

    async def says(self, pattern, *, times=1):
        """Wait until it said `pattern` so many times; returns the last match."""
        async with asyncio.timeout(60):
            while len(found := list(re.finditer(pattern, self.said))) < times:
                assert not self._reading.done(), self.said
                await asyncio.sleep(0.02)
        return found[times - 1]


@contextlib.asynccontextmanager
async def developing(folder, *options, source="env.py"):
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "hud.cli.main", "dev", source, "-p", "0", *options),
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    dev = Dev(process)
    try:
        dev.url = (await dev.says(r"at (http://127\.0\.0\.1:\d+)/mcp"))[1]
        yield dev
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
        await dev._reading


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "env.py").write_text(SOURCE)
    return tmp_path


async def listed(client):
    return [tool.name for tool in (await client.list_tools()).tools]


def text(result):
    return "".join(block.text for block in result.content)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_official_client_hears_of_a_save_and_keeps_its_connection(folder, mode):
    heard = asyncio.Event()

    async def hear(message):
        if isinstance(message, types.ToolListChangedNotification):
            heard.set()

    async def subscribe(client):
        async with client.listen(tools_list_changed=True) as events:
            async for _ in events:
                heard.set()

    async with (
        developing(folder, source="env:env") as dev,
        Client(f"{dev.url}/mcp", mode=mode, message_handler=hear) as client,
    ):
        assert await listed(client) == ["count", "words", "crash"]
        tool = (await client.list_tools()).tools[0]
        assert tool.description == "Count how often a letter occurs in a word."
        assert tool.input_schema["required"] == ["word"]
        told = await client.call_tool("count", {"word": "strawberry"})
        assert (text(told), told.is_error) == ("3", False)
        assert text(await client.call_tool("words", {})) == '["strawberry"]'
        listening = asyncio.create_task(subscribe(client)) if mode == "auto" else None
        await asyncio.sleep(0.2)

        (folder / "env.py").write_text(MORE)
        await asyncio.wait_for(heard.wait(), 60)
        assert await listed(client) == ["count", "words", "crash", "shout"]
        assert text(await client.call_tool("shout", {"word": "tea"})) == "TEA"
        assert text(await client.call_tool("words", {})) == "[]"  # A fresh run of the new version.

        (folder / "env.py").write_text(MORE + "\ndef (\n")
        await dev.says(
            r"env\.py was saved, but not loaded: .*env\.py:\d+: .* The last good version goes on\."
        )
        assert "shout" in await listed(client)
        assert text(await client.call_tool("shout", {"word": "tea"})) == "TEA"

        (folder / "env.py").write_text(SOURCE)
        await dev.says("is loaded afresh", times=2)
        assert "shout" not in await listed(client)
        if listening is not None:
            listening.cancel()


@pytest.mark.slow
async def test_each_session_has_a_run_of_its_own_and_a_crash_ends_nothing_else(folder):
    async with developing(folder) as dev:
        first = await MCPClient.connect(Capability.mcp(url=f"{dev.url}/mcp"))
        second = await MCPClient.connect(Capability.mcp(url=f"{dev.url}/mcp"))
        try:
            assert [tool.name for tool in await first.list_tools()] == ["count", "words", "crash"]
            await first.call_tool("count", {"word": "tea"})
            assert (await first.call_tool("words", {})).text == '["tea"]'
            assert (await second.call_tool("words", {})).text == "[]"
            await dev.says("somebody asks for the words")
            crashed = await first.call_tool("crash", {})
            assert crashed.is_error
            assert "its process exited with 9" in crashed.text
            assert (await first.call_tool("words", {})).text == "[]"
            assert "It is started again." in dev.said
            assert (await second.call_tool("count", {"word": "x"})).text in ("0", crashed.text)
        finally:
            await first.close()
            await second.close()


@pytest.mark.slow
async def test_over_standard_input_and_output_prints_do_no_harm(folder):
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "hud.cli.main", "dev", "env.py", "--stdio"],
        cwd=folder,
        env=dict(os.environ),
    )
    heard = asyncio.Event()

    async def hear(message):
        if isinstance(message, types.ToolListChangedNotification):
            heard.set()

    with open(folder / "said", "w") as said:  # noqa: ASYNC230 (a child writes to it)
        async with Client(
            stdio_client(server, errlog=said), mode="legacy", message_handler=hear
        ) as client:
            await client.call_tool("count", {"word": "tea"})
            assert text(await client.call_tool("words", {})) == '["tea"]'
            prompts = (await client.list_prompts()).prompts
            assert [(prompt.name, prompt.description) for prompt in prompts] == [
                ("count", "How many letters a word has.")
            ]
            assert [(each.name, each.required) for each in prompts[0].arguments] == [
                ("word", True),
                ("times", False),
            ]
            prompt = await client.get_prompt("count", {"word": "tea", "times": "2"})
            assert prompt.messages[0].content.text == "How many letters are in 'teatea'?"
            with pytest.raises(MCPError, match="unknown task 'no'"):
                await client.get_prompt("no", {})
            (folder / "env.py").write_text(MORE)
            await asyncio.wait_for(heard.wait(), 60)
            assert text(await client.call_tool("shout", {"word": "tea"})) == "TEA"
    assert "somebody asks for the words" in Path(folder / "said").read_text()  # noqa: ASYNC240


@pytest.mark.slow
async def test_it_says_how_coding_agents_are_pointed_at_it_and_what_it_watches(folder):
    data = folder / "data"
    data.mkdir()
    (data / "words.txt").write_text("tea")
    async with developing(folder, "-w", str(data)) as dev:
        await dev.says("cursor://")
        assert f"claude mcp add --transport http Letters-words {dev.url}/mcp" in dev.said
        assert "claude mcp add Letters-words -- hud dev env.py --stdio" in dev.said
        assert f'{{"mcpServers": {{"Letters-words": {{"url": "{dev.url}/mcp"}}}}}}' in dev.said
        (folder / "notes.txt").write_text("The environment may write here.")
        (data / "words.txt").write_text("salt")
        saved = await dev.says(r"(\S+) was saved")
        assert saved[1] == "words.txt"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["none.py"], "There is no file none.py."),
        (["broken.py"], r"broken\.py:1: "),
        (
            ["env.py", "--port", "{taken}"],
            "cannot be listened on: Address already in use. Choose another --port",
        ),
    ],
)
async def test_what_cannot_be_served_says_why_and_exits_with_2(folder, arguments, problem):
    (folder / "broken.py").write_text("def (")
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    taken = server.sockets[0].getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "hud.cli.main", "dev", *(each.format(taken=taken) for each in arguments)),
        cwd=folder,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await asyncio.wait_for(process.communicate(), 60)
    server.close()
    assert process.returncode == 2
    assert re.search(problem, said.decode())
