"""The control channel between the two of us: our environments under the official client, official ones under ours."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import hud
from hud.agents import OpenAIChatAgent
from hud.agents.types import OpenAIChatConfig
from hud.eval import Runtime, Task, Taskset

pytestmark = pytest.mark.slow

BOOKS = '{"emma": 1815, "ulysses": 1922}'
OURS = f'''\
from hud.environment import Environment

env = Environment("shelf", version="2.0.0")
BOOKS = {BOOKS}


@env.tool
def year_of(title: str) -> str:
    """Return the year in which a book came out."""
    if title.lower() not in BOOKS:
        raise ValueError(f"no book {{title!r}}")
    env.state.asked = [*getattr(env.state, "asked", []), title]
    return str(BOOKS[title.lower()])


@env.template(id="when", description="Say when a book came out.")
async def when(title: str):
    answer = yield f"In which year did {{title}} come out?"
    # Another run's questions would be in the list, too.
    yield 1.0 if str(BOOKS[title.lower()]) in answer and env.state.asked == [title] else 0.0


@env.template(id="guess")
async def guess():
    answer = yield "Which number?"
    yield float(answer == "7")
'''
THEIRS = f'''\
import asyncio, socket
from fastmcp import FastMCP
from hud import Environment
from hud.capabilities import Capability

tools = FastMCP("shelf")
BOOKS = {BOOKS}


@tools.tool
def year_of(title: str) -> str:
    """Return the year in which a book came out."""
    return str(BOOKS[title.lower()])


env = Environment("shelf", version="1.5.0")
running = []


@env.initialize
async def begin():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serving = tools.run_async(transport="http", host="127.0.0.1", port=port, show_banner=False)
    running.append(asyncio.create_task(serving))
    for _ in range(200):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            break
        except OSError:
            await asyncio.sleep(0.05)
    env.add_capability(Capability.mcp(name="tools", url=f"http://127.0.0.1:{{port}}/mcp"))


@env.template(id="when", description="Say when a book came out.")
async def when(title: str):
    answer = yield f"In which year did {{title}} come out?"
    yield 1.0 if str(BOOKS[title.lower()]) in str(answer) else 0.0


@env.template(id="fall")
async def fall():
    yield "Fall."
    raise RuntimeError("the grader fell over")
'''
OUR_DESK = """\
from hud.environment import Environment

env = Environment("desk")
shell = env.workspace()


@env.template(id="note")
async def note(word: str):
    await shell.write("todo.txt", "Write it down.\\n")
    yield f"Write {word} into note.txt."
    yield 1.0 if (await shell.read("note.txt")).decode().strip() == word else 0.0
"""
THEIR_DESK = """\
from hud import Environment

env = Environment("desk")
shell = env.workspace("/tmp/placeholder", track_files=True)


@env.template(id="note")
async def note(word: str):
    (shell.root / "todo.txt").write_text("Write it down.\\n")
    yield f"Write {word} into note.txt."
    yield 1.0 if (shell.root / "note.txt").read_text().strip() == word else 0.0
"""
OUR_BROWSER = """\
from hud.environment import Environment

env = Environment("web")
browser = env.browser()


@env.template(id="look")
async def look():
    yield "Look."
    yield 1.0
"""
OUR_SCREEN = '''\
import asyncio
import os
import socket
from contextlib import asynccontextmanager
from hud.capabilities import Capability
from hud.environment import Environment, OpenPart, Part


class Screen(Part):
    """A display of each run's own, as large as the run's number says."""

    name = "screen"
    runs = 0

    @asynccontextmanager
    async def open(self, run):
        Screen.runs += 1
        reading, writing = os.pipe()
        size = f"{320 + 16 * Screen.runs}x240x24"
        display = await asyncio.create_subprocess_exec(
            "Xvfb", "-displayfd", str(writing), "-screen", "0", size, "-nolisten", "tcp", pass_fds=(writing,)
        )
        os.close(writing)
        with os.fdopen(reading) as said:
            number = (await asyncio.to_thread(said.readline)).strip()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        shown = await asyncio.create_subprocess_exec(
            "x11vnc", "-display", f":{number}", "-rfbport", str(port), "-localhost", "-passwd", "secret",
            "-forever", "-shared", "-quiet", "-noxdamage",
        )
        for _ in range(200):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            except OSError:
                await asyncio.sleep(0.05)
        opened = OpenPart()
        opened.capability = Capability.rfb(url=f"rfb://127.0.0.1:{port}", password="secret", display=0)
        try:
            yield opened
        finally:
            shown.kill()  # It may hang where it is asked to end.
            display.terminate()
            await asyncio.gather(shown.wait(), display.wait())


env = Environment("screens", capabilities=[Screen()])


@env.template(id="look")
async def look():
    yield "Look."
    yield 1.0
'''
AGENT = """\
from hud.agents import OpenAIChatAgent
from hud.agents.types import OpenAIChatConfig

agent = OpenAIChatAgent(
    OpenAIChatConfig(model="stand-in", base_url="{model}", api_key="none", max_steps=6)
)
"""


@pytest.fixture
def stand_in():
    """A model that asks the first tool for what the prompt is about, and answers with what the tool said."""

    class Model(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            serving.asked.append(body)
            message = serving.answer(body)
            calls = message.get("tool_calls")
            reply = {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1,
                "model": body["model"],
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": None, **message},
                        "finish_reason": "tool_calls" if calls else "stop",
                    }
                ],
                "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
            }
            encoded = json.dumps(reply).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        def log_message(self, *_):
            pass

    serving = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    serving.daemon_threads = True
    serving.asked = []
    serving.answer = look_up
    serving.url = f"http://127.0.0.1:{serving.server_port}/v1"
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    yield serving
    serving.shutdown()
    serving.server_close()


def text_of(message):
    content = message["content"]
    return content if isinstance(content, str) else content[0]["text"]


def call(name, **arguments):
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"tool_calls": [{"id": "call_1", "type": "function", "function": function}]}


def look_up(body):
    """Ask for the year of the book in the prompt, and say it."""
    told = [text_of(message) for message in body["messages"] if message["role"] == "tool"]
    if told:
        return {"content": f"It was {told[-1]}."}
    (asked,) = (text_of(message) for message in body["messages"] if message["role"] == "user")
    title = asked.split("did ")[1].split(" come")[0]
    (name,) = (tool["function"]["name"] for tool in body["tools"] if "year_of" in str(tool))
    return call(name, title=title)


@contextlib.contextmanager
def announced(command, folder, environment=None):
    """Run a command that serves an environment; gives its address."""
    log = folder / "served.err"
    with log.open("w") as said:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
    try:
        for line in process.stdout:
            if line.startswith("HUD_SERVE_PORT="):
                yield f"tcp://127.0.0.1:{int(line.split('=')[1])}"
                break
        else:
            pytest.fail(f"it serves nothing: {log.read_text()}")
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


@pytest.fixture
def ours(tmp_path):
    """Serves an environment of ours, in a process of its own."""
    folder = tmp_path / "ours"
    folder.mkdir()

    @contextlib.contextmanager
    def serve(source):
        (folder / "world.py").write_text(source)
        with announced(
            [sys.executable, "-m", "hud.environment.channel", "world.py"], folder
        ) as url:
            yield url

    return serve


@pytest.fixture
def theirs(official):
    """Serves an environment with the official command."""

    @contextlib.contextmanager
    def serve(source):
        official.write("world.py", source)
        command = [f"{official.environment['PATH'].split(':')[0]}/hud", "serve", "world.py"]
        with announced([*command, "-p", "0"], official.folder, official.environment) as url:
            yield url

    return serve


PLAY = """
import asyncio, json
from hud import HUDRuntime, Runtime, Task, Taskset

tasks = [Task(env="shelf", id="when", args={{"title": title}}, slug=title.lower()) for title in ("Emma", "Ulysses")]


async def main():
    job = await Taskset("shelf", tasks).run(agent, runtime={runtime}, group=3, max_concurrent=6)
    print(json.dumps([
        [run.slug, run.reward, run.trace.status, run.trace.content, [step.source for step in run.trace.steps]]
        for run in job.runs
    ]))


asyncio.run(main())
"""


def test_an_environment_of_ours_is_played_by_the_official_agents(official, ours, stand_in):
    with ours(OURS) as url:
        script = AGENT.format(model=stand_in.url) + PLAY.format(runtime=f"Runtime({url!r})")
        runs = official.python(script)
    steps = ["task", "user", "agent", "tool", "agent", "task"]
    assert sorted(runs) == sorted(
        [slug, 1.0, "completed", f"It was {year}.", steps]
        for slug, year in (("emma", 1815), ("ulysses", 1922))
        for _ in range(3)
    )
    (tool,) = stand_in.asked[0]["tools"]
    assert tool["function"]["description"] == "Return the year in which a book came out."
    assert tool["function"]["parameters"]["required"] == ["title"]


def test_its_tools_are_reached_where_the_platform_runs_it(official, stand_in):
    official.write("env.py", OURS)
    assert official.json("deploy", ".", "--yes", "--no-env")["success"]
    script = AGENT.format(model=stand_in.url) + PLAY.format(runtime="HUDRuntime()")
    runs = official.python(script)
    assert [run[1:3] for run in runs] == [[1.0, "completed"]] * 6
    # Its tunnels wait for environments that come up; it prints a traceback for each that is refused.
    assert "Unhandled exception in client_connected_cb" not in official.errors


def test_the_official_raw_client_says_what_it_means_to_our_channel(official, ours):
    with ours(OURS) as url:
        # Two programs, one after the other: the first leaves its task behind.
        asked = official.json("task", "start", "guess", "--url", url)
        assert asked == {"prompt": "Which number?"}
        graded = official.json("task", "grade", "guess", "--answer", "7", "--url", url)
        assert graded["score"] == 1.0
        said = official.python(f"""
import asyncio, json
from hud import Runtime, connect
from hud.clients import HudProtocolError


async def main():
    async with connect(Runtime("{url}")) as one:
        env = one.manifest.server_info
        tasks = await one.list_tasks()
        started = await one.start_task("when", {{"title": "Emma"}})
        tools = await one.open("mcp")
        (tool,) = await tools.list_tools()
        right = await tools.call_tool(tool.name, {{"title": "Emma"}})
        wrong = await tools.call_tool(tool.name, {{"title": "Nothing"}})
        session = one.manifest.session_id
    # It hung up without a word: the task is parked, and waits for whoever names it.
    refused = []
    async with connect(Runtime("{url}")) as two:
        await two.hello(session)
        grade = await two.grade({{"answer": "1815"}})
        for task, args in (("when", {{"name": "Emma"}}), ("nothing", {{}})):
            try:
                await two.start_task(task, args)
            except HudProtocolError as error:
                refused.append([error.code, error.message])
        try:
            await two.grade({{"answer": "1815"}})
        except HudProtocolError as error:
            refused.append([error.code, error.message])
    print(json.dumps({{
        "env": [env.name, env.version], "tasks": tasks, "started": started, "grade": grade, "refused": refused,
        "right": [right.content[0].text, right.isError], "wrong": wrong.isError,
    }}))


asyncio.run(main())
""")
    assert said["env"] == ["shelf", "2.0.0"]
    task, _ = said["tasks"]
    assert (task["id"], task["description"]) == ("when", "Say when a book came out.")
    assert task["args"]["required"] == ["title"]
    assert said["started"] == {"prompt": "In which year did Emma come out?"}
    assert said["right"] == ["1815", False]
    assert said["wrong"] is True
    assert said["grade"]["score"] == 1.0
    (wrong, unknown, nothing) = said["refused"]
    assert wrong[0] == -32000
    assert "title" in wrong[1]
    assert unknown[0] == -32602
    assert nothing == [-32600, "no task in progress"]


@pytest.fixture
def agent(stand_in):
    """An agent of ours that the stand-in plays."""
    return OpenAIChatAgent(
        OpenAIChatConfig(model="stand-in", base_url=stand_in.url, api_key="none", max_steps=6)
    )


async def test_an_official_environment_is_played_by_our_agents(theirs, agent):
    titles = ("Emma", "Ulysses")
    tasks = [Task(env="shelf", id="when", args={"title": title}, slug=title) for title in titles]
    with theirs(THEIRS) as url:
        job = await Taskset("shelf", tasks).run(
            agent, runtime=Runtime(url), group=3, max_concurrent=6
        )
        broken = await Taskset("falls", [Task(env="shelf", id="fall")]).run(
            quiet, runtime=Runtime(url)
        )
    years = {"Emma": 1815, "Ulysses": 1922}
    for run in job.runs:
        assert (run.error, run.reward, run.trace.content) == (
            None,
            1.0,
            f"It was {years[run.slug]}.",
        )
        sources = [step.source for step in run.trace.steps]
        assert sources == ["task", "user", "agent", "tool", "agent", "task"]
        assert run.trace.steps[3].result.content[0].text == str(years[run.slug])
    assert len(job.runs) == 6
    (run,) = broken.runs
    assert run.failure_kind == "environment"
    assert "the grader fell over" in run.error
    assert run.reward is None


async def quiet(run):
    """Say nothing."""
    assert run.prompt == "Fall."


def write_down(body):
    """Write the word of the prompt where it asks for it, by the shell."""
    if any(message["role"] == "tool" for message in body["messages"]):
        return {"content": "Done."}
    (asked,) = (text_of(message) for message in body["messages"] if message["role"] == "user")
    word = asked.split("Write ")[1].split(" into")[0]
    return call("bash", command=f"cat todo.txt && echo {word} > note.txt")


def test_a_workspace_of_ours_is_worked_in_by_the_official_agents(official, ours, server, stand_in):
    stand_in.answer = write_down
    with ours(OUR_DESK) as url:
        script = (
            AGENT.format(model=stand_in.url)
            + """
import asyncio, json
from hud import Runtime, Task, Taskset

tasks = [Task(env="desk", id="note", args={"word": word}, slug=word) for word in ("red", "green")]


async def main():
    job = await Taskset("desk", tasks).run(agent, runtime=Runtime(URL), max_concurrent=2)
    print(json.dumps([[run.slug, run.reward, run.trace.error, run.trace_id] for run in job.runs]))


asyncio.run(main())
"""
        )
        runs = official.python(script.replace("URL", repr(url)))
    assert [run[:3] for run in runs] == [["red", 1.0, None], ["green", 1.0, None]]
    for word, _, _, trace_id in runs:
        steps = server.get(f"/v2/trace/{trace_id}/full")["trace"]["steps"]
        (step,) = (step for step in steps if step["source"] == "tool")
        assert "Write it down." in step["result"]["content"][0]["text"]
        # What the task laid out, and what the agent changed, each session's alone.
        spans = server.get(f"/v2/trace/{trace_id}/spans")["items"]
        told = {span["name"]: span["attributes"]["hud.payload"] for span in spans}
        (laid_out,) = told["filetracking.setup"]["patches"]
        assert (laid_out["path"], laid_out["status"]) == ("todo.txt", "added")
        assert told["filetracking.snapshot"]["files_scanned"] == 1
        (changed,) = told["filetracking.diff"]["patches"]
        assert changed["path"] == "note.txt"
        assert f"+{word}" in changed["patch"]


@pytest.fixture
def their_desk(official):
    folder = official.folder / "desk"
    folder.mkdir()
    return THEIR_DESK.replace("/tmp/placeholder", str(folder))


async def test_an_official_workspace_is_worked_in_by_our_agents(
    theirs, their_desk, stand_in, agent
):
    stand_in.answer = write_down
    with theirs(their_desk) as url:
        task = Task(env="desk", id="note", args={"word": "red"})
        job = await Taskset("desk", [task]).run(agent, runtime=Runtime(url))
    (run,) = job.runs
    assert (run.error, run.reward) == (None, 1.0)
    (step,) = (step for step in run.trace.steps if step.source == "tool")
    assert "Write it down." in step.result.content[0].text
    (patch,) = step.extra["files"]["patches"]
    assert (patch["path"], patch["status"]) == ("note.txt", "added")
    assert "+red" in patch["patch"]


async def test_a_browser_of_ours_is_driven_from_elsewhere_by_their_client_and_by_ours(
    official, ours
):
    if shutil.which("chromium") is None:
        pytest.skip("there is no chromium here: scripts/setup-worlds")
    with ours(OUR_BROWSER) as url:
        titles = official.python(f"""
import asyncio, json
from hud import Runtime, connect


async def main():
    titles = []
    async with connect(Runtime("{url}")) as one, connect(Runtime("{url}")) as two:
        browsers = [await client.open("cdp") for client in (one, two)]
        for browser, title in zip(browsers, ("red", "green")):
            await browser.send("Page.navigate", {{"url": f"data:text/html,<title>{{title}}</title>"}})
        for browser in browsers:
            for _ in range(100):
                said = await browser.send("Runtime.evaluate", {{"expression": "document.title"}})
                if said["result"]["value"]:
                    break
                await asyncio.sleep(0.1)
            picture = await browser.send("Page.captureScreenshot")
            titles.append([said["result"]["value"], len(picture["data"]) > 1000])
    print(json.dumps(titles))


asyncio.run(main())
""")
        assert titles == [["red", True], ["green", True]]
        async with hud.connect(url) as client:
            browser = await client.open("cdp")
            await browser.goto("data:text/html,<title>blue</title>")
            assert await browser.evaluate("document.title") == "blue"
            assert (await browser.screenshot()).startswith(b"\x89PNG")


async def test_screens_of_ours_are_seen_from_elsewhere_by_their_client_and_by_ours(official, ours):
    if shutil.which("Xvfb") is None or shutil.which("x11vnc") is None:
        pytest.skip("there is no Xvfb or x11vnc here: scripts/setup-worlds")
    with ours(OUR_SCREEN) as url:
        sizes = official.python(f"""
import asyncio, io, json
from hud import Runtime, connect
from PIL import Image


async def main():
    sizes = []
    async with connect(Runtime("{url}")) as one, connect(Runtime("{url}")) as two:
        for client in (one, two):
            screen = await client.open("rfb")
            picture = await screen.conn.screenshot()
            sizes.append([picture.shape[1], picture.shape[0]])
    print(json.dumps(sizes))


asyncio.run(main())
""")
        async with hud.connect(url) as client:
            screen = await client.open("rfb")
            assert screen.size == (368, 240)
            assert (await screen.screenshot()).startswith(b"\x89PNG")
    assert sizes == [[336, 240], [352, 240]]
