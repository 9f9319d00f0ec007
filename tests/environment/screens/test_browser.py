"""Browsers: each run has its own, what is seen is kept once, and one that breaks takes its run alone with it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.server
import os
import shutil
import signal
import tempfile
import threading
from pathlib import Path
from urllib.parse import quote

import pytest

import hud.client
from hud.agents.native.computer import ComputerTool
from hud.capabilities.browser.cdp import CDPClient
from hud.capabilities.browser.tabs import MOST_TABS
from hud.environment import Environment
from hud.environment.current_run import entered
from hud.environment.screens import chromium
from hud.errors import EnvironmentFault, UsageError
from hud.eval import NullRecorder, Taskset
from hud.trace import ToolCall, ToolStep
from hud_platform.store.attachments import LARGE_CHARACTERS

pytestmark = pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("chromium", "bwrap")),
    reason="needs Chromium and bubblewrap (scripts/setup-worlds)",
)
LIMIT_SECONDS = 120.0
"""What no wait here comes near to, however busy the machine is."""
SHOP = """<!doctype html><title>shop</title><style>
body { margin: 0 } input { position: absolute; left: 10px; top: 10px; width: 300px; height: 40px }
</style><input oninput="document.title = 'wants ' + this.value"><script>
const seen = [document.cookie, localStorage.basket, sessionStorage.basket].filter(Boolean).join()
document.body.append(seen ? 'You were here: ' + seen : 'Welcome')
</script>"""
FILL = """document.cookie = 'who=me; max-age=9999'; localStorage.basket = 'lamp'; sessionStorage.basket = 'lamp';
document.cookie"""
WELCOME = "document.body.innerText.trim()"


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """A temporary folder of our own: what is left in it is ours."""
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    # Where we are root, a box belongs to another user, who has to come to its folder.
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o755)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


@pytest.fixture(scope="module")
def shop():
    """The address of a shop, which keeps its customers' baskets in their browsers."""

    class Shop(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(SHOP.encode())

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Shop) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def world(start_url="about:blank", **options):
    """An environment with a browser, which rewards a title."""
    env = Environment("shopping")
    browser = env.browser(start_url=start_url, viewport=(400, 300), **options)

    @env.tool
    async def end(kind: str) -> str:
        """End the processes of this run's browser that are of a kind."""
        ended = [pid for pid in chromiums(env.opened(browser), kind) if kill(pid)]
        await until(lambda: not any(map(alive, ended)))
        return f"ended {len(ended)}"

    @env.template()
    async def want(word: str = "lamp", number: int = 0):
        yield f"Want {word}."
        yield float(await browser.evaluate("document.title") == f"wants {word}")

    return env, browser, want


class Player:
    """Does `turns` at the computer; `between` is called before the second."""

    def __init__(self, *turns, between=None):
        self.turns, self.between = turns, between

    async def __call__(self, run):
        run.attach(ComputerTool(await run.open("cdp")))
        for number, turn in enumerate(self.turns):
            if number == 1 and self.between is not None:
                await self.between(run)
            arguments = turn(run) if callable(turn) else turn
            await run.call_tool(ToolCall(id=f"c{number}", name="computer", arguments=arguments))
        run.trace.content = "done"


def wanting(run):
    return {"action": "type", "text": run.task.args["word"]}


FIELD = {"action": "click", "x": 100, "y": 30}
LOOK = {"action": "screenshot"}


async def play(tasks, player, **options):
    options = {"recorder": NullRecorder(), **options}
    job = await Taskset("t", tasks).run(player, **options)
    return job.runs


def shown(run):
    """What each step of a run shows that was not seen before."""
    steps = [step for step in run.trace.steps if isinstance(step, ToolStep)]
    return [step.extra.get("screenshot", {}).get("data") for step in steps]


def commands():
    """The command lines of all processes, by their ids."""
    for each in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if each.name.isdigit():
                line = (each / "cmdline").read_bytes().replace(b"\0", b" ")
                yield int(each.name), line.decode(errors="replace")


def boxes():
    """The ids of the processes that are the boxes of this process's browsers."""
    ours = set(below(os.getpid()))
    return [pid for pid, line in commands() if "bwrap" in line and pid in ours]


def chromiums(opened, kind):
    """The ids of a browser's processes: `browser` itself, or those of a type, such as `renderer`."""
    inside = set(below(opened.pid))
    of_type = {"browser": "--user-data-dir"}.get(kind, f"--type={kind}")
    return [
        pid
        for pid, line in commands()
        if pid in inside
        and of_type in line
        and "bwrap" not in line
        and (kind != "browser" or "--type=" not in line)
    ]


def below(pid):
    """The ids of all processes that `pid` started, and of those that they did."""
    with contextlib.suppress(OSError):
        for each in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, each.read_text().split()):
                yield child
                yield from below(child)


def alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def kill(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


async def until(condition):
    async with asyncio.timeout(LIMIT_SECONDS):
        while not condition():  # noqa: ASYNC110 - nobody is told when a process ends
            await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_a_profile_is_its_runs_alone_before_after_and_beside_it(shop, folder):
    env, browser, _ = world(shop)
    async with env.run() as one:
        with entered(one):
            assert await browser.evaluate(WELCOME) == "Welcome"
            assert "who=me" in await browser.evaluate(FILL)
            await browser.goto(shop)
            assert await browser.evaluate(WELCOME) == "You were here: who=me,lamp,lamp"
        async with env.run() as other:
            with entered(other):
                assert await browser.evaluate(WELCOME) == "Welcome"
                await browser.evaluate("document.title = 'other'")
            with entered(one):
                assert await browser.evaluate("document.title") == "shop"
    async with env.run() as later:
        with entered(later):
            assert await browser.evaluate(WELCOME) == "Welcome"
            assert await browser.evaluate("history.length") <= 2
    assert list(folder.iterdir()) == []


@pytest.mark.slow
async def test_eight_rollouts_four_at_once_are_graded_each_by_its_own(shop, folder):
    _, _, want = world(shop)
    words = ["lamp", "tea", "soap", "bread"] * 2
    at_once = asyncio.Barrier(4)

    async def together(run):
        async with asyncio.timeout(LIMIT_SECONDS):
            await at_once.wait()

    runs = await play(
        [
            want(word=word, number=n).model_copy(update={"slug": f"s{n}"})
            for n, word in enumerate(words)
        ],
        Player(FIELD, wanting, LOOK, between=together),
        max_concurrent=4,
    )
    assert [(run.reward, run.error) for run in runs] == [(1.0, None)] * 8
    for run in runs:
        after_click, after_typing, after_nothing = shown(run)
        assert after_click != after_typing
        assert base64.b64decode(after_typing).startswith(b"\x89PNG")
        assert after_nothing is None, "what is seen is not told again"
    assert len({shown(run)[1] for run in runs}) == 4
    assert list(folder.iterdir()) == []


@pytest.mark.slow
async def test_a_field_that_is_written_in_looks_the_same_whenever_one_looks(shop):
    env, browser, _ = world(shop)
    async with env.run() as run:
        with entered(run):
            await browser.page.move((FIELD["x"], FIELD["y"]))
            await browser.page.mouse_down("left")
            await browser.page.mouse_up("left")
            await browser.page.settle()
            seen = set()
            for _ in range(8):
                seen.add(await browser.screenshot())
                await asyncio.sleep(0.2)  # longer in all than a caret is seen or not when it blinks
            assert len(seen) == 1


@pytest.mark.slow
async def test_only_the_hosts_that_were_named_are_reached(shop):
    env, browser, _ = world(hosts=["127.0.0.1"])
    elsewhere = shop.replace("127.0.0.1", "localhost")
    async with env.run() as run:
        with entered(run):
            await browser.goto(shop)
            for url in (elsewhere, shop.replace("127.0.0.1", "127.0.0.2"), "http://example.org/"):
                with pytest.raises(EnvironmentFault, match="ERR_NAME_NOT_RESOLVED"):
                    await browser.goto(url)
            await browser.goto(shop)
            assert await browser.evaluate(f"fetch('{shop}').then(r => r.status)") == 200
            with pytest.raises(EnvironmentFault, match="Failed to fetch"):
                await browser.evaluate(f"fetch('{elsewhere}', {{mode: 'no-cors'}})")


async def ending(run, kind):
    call = ToolCall(id="end", name="end", arguments={"kind": kind})
    return (await run.call_tool(call)).text


@pytest.mark.slow
async def test_a_browser_that_is_killed_fails_its_run_alone_and_the_next_has_a_fresh_one(
    shop, folder
):
    _, _, want = world(shop)
    at_once = asyncio.Barrier(2)

    async def murder(run):
        async with asyncio.timeout(LIMIT_SECONDS):
            await at_once.wait()
        if run.task.args["word"] == "murder":
            await ending(run, "browser")

    tasks = [want(word="murder"), want(word="lamp").model_copy(update={"slug": "lamp"})]
    killed, other = await play(tasks, Player(FIELD, wanting, between=murder))
    assert (killed.failure_kind, killed.reward) == ("environment", None)
    assert "'browser': the browser has ended (status " in killed.error
    assert (other.reward, other.error) == (1.0, None)
    (later,) = await play([want(word="lamp")], Player(FIELD, wanting))
    assert (later.reward, later.error) == (1.0, None)
    assert list(folder.iterdir()) == []


async def loaded(client):
    with contextlib.suppress(EnvironmentFault):
        return await client.evaluate("document.readyState") == "complete"
    return False


@pytest.mark.slow
async def test_a_page_that_crashes_is_loaded_again(shop):
    _, _, want = world(shop)

    async def crash(run):
        assert await ending(run, "renderer") != "ended 0"
        client = await run.open("cdp")
        async with asyncio.timeout(LIMIT_SECONDS):
            # No page answers that has no process; what does is the new one.
            while not await loaded(client):
                pass

    (run,) = await play([want(word="lamp")], Player(LOOK, FIELD, wanting, between=crash))
    assert (run.reward, run.error) == (1.0, None)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["cancelled", "raised"])
async def test_nothing_is_left_of_a_run_that_ends_badly(end, shop, folder):
    _, _, want = world(shop)
    waits = asyncio.Event()

    async def stop(run):
        if end == "raised":
            raise RuntimeError("the agent broke")
        waits.set()
        await asyncio.Event().wait()

    playing = asyncio.create_task(play([want()], Player(FIELD, LOOK, between=stop)))
    if end == "cancelled":
        async with asyncio.timeout(LIMIT_SECONDS):
            await waits.wait()
        inside = [pid for box in boxes() for pid in (box, *below(box))]
        assert len(inside) > 3
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        await until(lambda: not any(map(alive, inside)))
    else:
        (run,) = await playing
        assert (run.failure_kind, "the agent broke" in run.error) == ("agent", True)
    assert boxes() == []
    assert list(folder.iterdir()) == []


async def test_one_that_is_cancelled_while_it_comes_up_leaves_nothing(folder):
    env, _, _ = world()
    opening = asyncio.create_task(env.run().open())
    await until(lambda: boxes())
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await until(lambda: not boxes())
    assert list(folder.iterdir()) == []


@pytest.mark.slow
async def test_what_is_seen_is_recorded_with_each_step_and_kept_once(tmp_path):
    # Noise, for a picture that is large enough to be kept beside its step.
    noise = """<canvas width=400 height=300></canvas><script>
    const c = document.querySelector('canvas').getContext('2d'), i = c.createImageData(400, 300)
    let n = 1; i.data.forEach((_, k) => { n = n * 48271 % 2147483647; i.data[k] = k % 4 == 3 ? 255 : n & 255 })
    c.putImageData(i, 0, 0)</script>"""
    _, _, want = world(f"data:text/html,{quote(noise)}")
    job = await Taskset("t", [want()]).run(Player(LOOK, LOOK), group=2)
    for run in job.runs:
        (picture, nothing) = shown(run)
        assert len(picture) > LARGE_CHARACTERS
        assert nothing is None
        recorded = await hud.client.connect().get(f"/v2/trace/{run.trace_id}/full")
        steps = [step for step in recorded["trace"]["steps"] if step["source"] == "tool"]
        assert [step.get("extra", {}).get("screenshot", {}).get("data") for step in steps] == [
            picture,
            None,
        ]
    hud.client.disconnect(tmp_path / "home")
    kept = [path for path in (tmp_path / "home" / "blobs").rglob("*") if path.is_file()]
    assert len(kept) == 1


@pytest.mark.parametrize(
    ("program", "reason"),
    [("/nowhere/chromium", "scripts/setup-worlds"), ("/bin/false", "does not start")],
)
async def test_a_browser_that_is_not_there_or_does_not_start_is_told(
    program, reason, monkeypatch, folder
):
    monkeypatch.setitem(chromium._PROGRAMS, "chromium-headless-shell", (program,))
    _, _, want = world()
    (run,) = await play([want()], Player(LOOK))
    assert (run.failure_kind, reason in run.error) == ("environment", True), run.error
    assert list(folder.iterdir()) == []


FLOOD = """(() => {
  for (let i = 0; i < 100; i++) console.log("x".repeat(1e6));
  return "written";
})()"""
DOWNLOADS = """(async () => {
  const wait = seconds => new Promise(done => setTimeout(done, 1000 * seconds));
  for (let i = 0; i < 7; i++) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([new Uint8Array(2e8)]));
    link.download = "file" + i;
    link.click();
    await wait(0.5);
    URL.revokeObjectURL(link.href);
  }
  await wait(3);
})()"""


def disk_bytes(folder):
    return sum(path.lstat().st_size for path in folder.rglob("*"))


async def test_a_pages_console_fills_no_disk_and_holds_nothing_up(folder):
    env, browser, _ = world()
    async with env.run() as run:
        with entered(run):
            assert await browser.evaluate(FLOOD) == "written"
            assert await browser.evaluate("1") == 1
            assert disk_bytes(folder) < 1 << 20


async def test_downloads_fill_no_disk_and_are_bounded(folder):
    env, browser, _ = world()
    async with env.run() as run:
        with entered(run):
            await browser.evaluate(DOWNLOADS)
            held = sum(path.stat().st_size for path in browser.downloads.iterdir())
            assert 2e8 <= held <= 1 << 30
            assert disk_bytes(folder) < 1 << 20


async def test_tabs_are_bounded():
    env, browser, _ = world()
    async with env.run() as run:
        with entered(run):
            opened = "Array.from({length: 40}, () => open('about:blank')).filter(Boolean).length"
            await browser.evaluate(opened)
            await until(lambda: len(browser.opened.tabs) == MOST_TABS)
            client = await CDPClient.connect(browser.opened.capability)
            with pytest.raises(EnvironmentFault, match="close one first"):
                await client.devtools.call("Target.createTarget", {"url": "about:blank"})
            await client.close()
            assert await browser.evaluate("1 + 1") == 2


NO_COMMANDS = [
    "[" * 100_000,
    "7",
    '{"id": 1e400, "method": "Page.reload"}',
    '{"id": null, "method": "Page.reload"}',
    '{"id": 1, "method": "Page.reload", "params": "x"}',
    '{"id": 1, "method": "Page.navigate", "params": [1]}',
    '{"id": 1, "method": "Runtime.evaluate", "params": {"expression": ["1"]}}',
    '{"id": 1, "method": "Page.reload", "sessionId": ["x"]}',
    '{"id": 1, "method": "Page.reload", "sessionId": {}}',
]


@pytest.mark.parametrize("screen_only", [False, True])
async def test_a_message_that_is_no_command_leaves_the_connection_open(screen_only, caplog):
    """It ended the connection, which is the infrastructure's failure, with a traceback."""
    env = Environment("noise")
    browser = env.browser(screen_only=screen_only)
    async with env.run() as run:
        with entered(run):
            client = await CDPClient.connect(browser.opened.capability)
            for text in NO_COMMANDS:
                await client.devtools._wire.send(text.encode())
            assert await client.url() == "about:blank"
            await client.close()
    assert caplog.records == []


async def test_memory_that_a_page_takes_is_bounded():
    _, _, want = world(memory_mb=600)

    async def hoard(run):
        client = await run.open("cdp")
        with pytest.raises(EnvironmentFault):
            await client.evaluate("globalThis.hoard = new Uint8Array(1e9).fill(1); 1")

    (run,) = await play([want()], Player(LOOK, LOOK, between=hoard))
    assert run.reward == 0.0


@pytest.mark.parametrize(
    "script",
    [
        "setTimeout(() => { for (;;); }, 100)",
        "Object.defineProperty(document, 'title', {get() { throw new SyntaxError('x'); }})",
        "setTimeout(() => { for (;;) alert('x'.repeat(1e5)); }, 100)",
    ],
)
async def test_a_page_that_the_agent_spoils_is_its_failure(script):
    env = Environment("spoiled")
    browser = env.browser()

    @env.template()
    async def task():
        yield "Do something."
        yield float(await browser.evaluate("document.title === ''", timeout=3.0))

    async def spoil(run):
        client = await run.open("cdp")
        await client.evaluate(f"{script}; 1")
        await asyncio.sleep(0.5)

    (run,) = await play([task()], spoil)
    assert (run.reward, run.failure_kind) == (0.0, "agent"), run.error


async def test_an_expression_that_does_not_compile_is_the_environments_failure():
    env = Environment("typing")
    browser = env.browser()

    @env.template()
    async def task():
        yield "Do nothing."
        yield float(await browser.evaluate("document.title ==== 1"))

    (run,) = await play([task()], Player(LOOK))
    assert (run.reward, run.failure_kind) == (None, "grader")


async def test_a_browser_whose_tabs_are_closed_gets_another():
    env, browser, _ = world()
    async with env.run() as run:
        with entered(run):
            client = await CDPClient.connect(browser.opened.capability)
            closed = client.page.target_id
            await client.devtools.call("Target.createTarget", {"url": "about:blank"})
            tabs = await client.devtools.call("Target.getTargets")
            names = [tab["targetId"] for tab in tabs["targetInfos"] if tab["type"] == "page"]
            # At once: one alone would be refused.
            closings = (
                client.devtools.call("Target.closeTarget", {"targetId": name}) for name in names
            )
            await asyncio.gather(*closings)
            await until(lambda: len(browser.opened.tabs) and browser.page.target_id not in names)
            assert closed in names
            assert await browser.evaluate("1 + 1") == 2
            await client.close()


async def test_dialogs_and_addresses_of_any_length_are_shown_in_part(shop):
    env, browser, _ = world(shop)
    async with env.run() as run:
        with entered(run):
            client = await CDPClient.connect(browser.opened.capability)
            tool = ComputerTool(client)
            await client.evaluate("history.pushState(0, '', '#' + 'x'.repeat(1e6)); 1")
            await client.evaluate("for (let i = 0; i < 40; i++) alert('y'.repeat(1e5)); 1")
            shown = await tool.call(LOOK)
            assert 20_000 < len(shown.text) < 30_000
            await client.close()


@pytest.mark.parametrize(
    ("channel", "shown"), [("chromium", ("data:", 0)), ("chromium-headless-shell", ("about:", 1))]
)
async def test_a_pdf_is_shown_or_downloaded(channel, shown):
    if channel != "chromium" and shutil.which(channel) is None:
        pytest.skip("needs the headless shell (scripts/setup-worlds)")
    env, browser, _ = world(channel=channel)
    async with env.run() as run:
        with entered(run):
            page = b"%PDF-1.1\n1 0 obj<</Pages 2 0 R>>endobj\n2 0 obj<</Count 0>>endobj\n"
            with contextlib.suppress(EnvironmentFault):
                await browser.goto(f"data:application/pdf;base64,{base64.b64encode(page).decode()}")
            url, downloads = shown
            await until(lambda: len(list(browser.downloads.glob("*"))) == downloads)
            assert (await browser.url()).startswith(url)


def test_a_channel_that_there_is_not_is_refused():
    with pytest.raises(UsageError, match="channel must be chromium-headless-shell or chromium"):
        Environment("small").browser(channel="firefox")


@pytest.mark.parametrize("viewport", [(0, 600), (800, 5000), (800,), (800.5, 600)])
def test_a_viewport_that_nobody_could_use_is_refused(viewport):
    with pytest.raises(UsageError, match="viewport must be"):
        Environment("small").browser(viewport=viewport)
