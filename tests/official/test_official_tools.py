"""Tool calls of the official agents in the official environments, with a provider's model behind our gateway."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytestmark = pytest.mark.slow

SHELF = '''\
import asyncio, socket
from fastmcp import FastMCP
from hud import Environment
from hud.capabilities import Capability

tools = FastMCP("shelf")
BOOKS = {"emma": 1815, "ulysses": 1922}


@tools.tool
def year_of(title: str) -> str:
    """Return the year in which a book came out.

    Args:
        title: Title of the book.
    """
    if title.lower() not in BOOKS:
        raise ValueError(f"no book {title!r}")
    return str(BOOKS[title.lower()])


env = Environment("shelf")
running = []


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@env.initialize
async def begin():
    port = free_port()
    running.append(
        asyncio.create_task(
            tools.run_async(transport="http", host="127.0.0.1", port=port, show_banner=False)
        )
    )
    for _ in range(200):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            break
        except OSError:
            await asyncio.sleep(0.05)
    env.add_capability(Capability.mcp(name="tools", url=f"http://127.0.0.1:{port}/mcp"))


@env.template(id="when")
async def when(title: str):
    answer = yield f"In which year did {title} come out?"
    yield 1.0 if str(BOOKS[title.lower()]) in str(answer) else 0.0


tasks = [when(title="Emma")]
'''


@pytest.fixture(scope="module")
def provider(server):
    """A stand-in for a provider: asks for the tool, then answers with what the tool said."""

    class Provider(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            standin.asked.append((self.path, dict(self.headers), body))
            said = [message for message in body["messages"] if message["role"] == "tool"]
            if said:
                content = said[-1]["content"]
                text = content if isinstance(content, str) else content[0]["text"]
                message = {"role": "assistant", "content": f"It was {text}."}
            else:
                call = {
                    "name": body["tools"][0]["function"]["name"],
                    "arguments": '{"title": "Emma"}',
                }
                message = {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "call_1", "type": "function", "function": call}],
                }
            reply = {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1,
                "model": body["model"],
                "choices": [
                    {
                        "index": 0,
                        "message": message,
                        "finish_reason": "stop" if said else "tool_calls",
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

    standin = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    standin.asked = []
    thread = threading.Thread(target=standin.serve_forever, daemon=True)
    thread.start()
    server.post(
        "/v2/models/provide",
        {
            "name": "librarian",
            "provider": {
                "url": f"http://127.0.0.1:{standin.server_port}/v1",
                "dialect": "openai",
                "key_env": "STANDIN_API_KEY",
                "upstream_model": "big-one",
            },
        },
    )
    yield standin
    standin.shutdown()
    standin.server_close()


def test_an_agent_calls_tools_and_the_whole_trace_is_kept(official, server, provider):
    official.write("env.py", SHELF)
    report = official.json("eval", "env.py", "librarian", "--yes", "--max-steps", "4")
    assert (report["run_count"], report["error_count"], report["mean_reward"]) == (1, 0, 1.0)
    trace_id = report["runs"][0]["trace_id"]

    path, headers, first = provider.asked[0]
    assert path == "/v1/chat/completions"
    assert first["model"] == "big-one"
    assert headers["authorization"] == "Bearer standin-secret"
    assert server.key not in json.dumps(provider.asked)

    full = server.get(f"/v2/trace/{trace_id}/full")
    steps = full["trace"]["steps"]
    assert [step["source"] for step in steps] == ["task", "user", "agent", "tool", "agent", "task"]
    assert steps[2]["tool_calls"][0]["arguments"] == {"title": "Emma"}
    assert steps[3]["result"]["content"][0]["text"] == "1815"
    assert steps[4]["content"] == "It was 1815."
    assert steps[4]["usage"]["prompt_tokens"] == 11
    assert "standin-secret" not in json.dumps(full)

    events = official.json("trace", "get", trace_id)
    kinds = [event["kind"] for event in events]
    assert kinds == ["environment", "agent_message", "tool_call", "agent_message"]
    assert "1815" in official.hud("trace", "get", trace_id)
