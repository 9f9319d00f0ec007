"""What is OpenAI's alone at a real Chromium: batches of actions, and the preview of its computer tool."""

from __future__ import annotations

import shutil
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from tests.agents.servers.loopback import closing_agent
from tests.agents.servers.openai_responses import (
    KEY,
    OpenAIResponses,
    call,
    say,
    think,
    use,
    use_preview,
)

from hud.agents import OperatorAgent
from hud.environment import Environment
from hud.eval.rollouts import rollout
from hud.trace import ToolStep
from hud.trace.recording.recorder import NullRecorder

pytestmark = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="needs Chromium (scripts/setup-worlds)"
)
SHOP = """<body style="margin:0"><title>Shop</title>
<input id=what style="position:absolute;left:100px;top:100px;width:200px;height:40px">
<button style="position:absolute;left:100px;top:200px;width:200px;height:40px"
 onclick="document.title='ordered '+what.value">Order</button></body>"""


class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(SHOP.encode())

    def log_message(self, *_):
        pass


PAGES = ThreadingHTTPServer(("127.0.0.1", 0), Page)  # The tool opens no data: addresses.
Thread(target=PAGES.serve_forever, daemon=True).start()
ADDRESS = f"http://127.0.0.1:{PAGES.server_port}/"
FIELD, BUTTON = {"x": 200, "y": 120}, {"x": 200, "y": 220}
DONE = "I ordered a lamp."


@pytest.fixture
def task(monkeypatch, tmp_path):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    env = Environment("shop")
    browser = env.browser(hosts=[f"127.0.0.1:{PAGES.server_port}"], viewport=(640, 480))

    @env.template()
    async def order():
        """Order a lamp."""
        answer = yield "Order a lamp in the shop."
        yield float(await browser.evaluate("document.title") == "ordered lamp" and answer == DONE)

    return order()


async def play(task, agent):
    async with closing_agent(agent):
        return await rollout(
            task, agent, runtime=lambda task: task.environment.run(), recorder=NullRecorder()
        )


def check(run, server, screens):
    assert (run.reward, run.error, server.refused) == (1.0, None, [])
    tools = [step for step in run.trace.steps if isinstance(step, ToolStep)]
    assert not [step for step in tools if step.result.is_error]
    shown = [step.extra["screenshot"]["data"] for step in tools if "screenshot" in step.extra]
    assert len(shown) >= screens
    assert len(set(shown)) == len(shown)


GO = call("navigate_browser", "c1", {"action": "navigate", "url": ADDRESS})


@pytest.mark.slow
async def test_a_batch_of_actions_of_the_computer_tool(task):
    server = OpenAIResponses(
        [think("go"), GO],
        [
            think("order"),
            use(
                "u1",
                {"type": "click", "button": "left", **FIELD},
                {"type": "type", "text": "lamo"},
                {"type": "keypress", "keys": ["BACKSPACE"]},
                {"type": "type", "text": "p"},
                {"type": "click", "button": "left", **BUTTON},
            ),
        ],
        [use("u2", {"type": "screenshot"})],
        [say(DONE)],
    )
    async with server:
        agent = OperatorAgent(base_url=f"{server.url}/v1", api_key=KEY, stream=True)
        run = await play(task, agent)
    check(run, server, screens=3)
    images = [
        item["output"]["image_url"]
        for item in server.requests[-1]["input"]
        if item["type"] == "computer_call_output"
    ]
    assert len(images) == 2
    assert all(image.startswith("data:image/png;base64,") for image in images)


async def test_the_preview_of_the_computer_tool(task):
    server = OpenAIResponses(
        [GO],
        [use_preview("u1", {"type": "click", "button": "left", **FIELD})],
        [use_preview("u2", {"type": "type", "text": "lamp"})],
        [use_preview("u3", {"type": "click", "button": "left", **BUTTON})],
        [say(DONE)],
    )
    async with server:
        agent = OperatorAgent(
            model="computer-use-preview", base_url=f"{server.url}/v1", api_key=KEY
        )
        run = await play(task, agent)
    check(run, server, screens=3)
    declared = server.requests[0]["tools"][0]
    assert (declared["display_width"], declared["display_height"]) == (640, 480)
    assert declared["environment"] == "browser"
