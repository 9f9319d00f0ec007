"""A stand-in for a provider's model as the reflector: a server of chat completions that computes its reply from what the request says.

It reads the JSON object of the runs as a model would. Where a grader's comment says what it expected, the proposed prompt demands
that. Without comments, the proposal describes the answer with the highest reward. It knows neither the family nor its convention.
"""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PRICE_USD = 0.002
"""Cost of a reply, as some providers state it in `usage.cost`."""


def reply_to(messages: list[dict[str, Any]]) -> str:
    """Return the reply to a conversation whose last message holds the JSON object of the runs."""
    document = json.loads(messages[-1]["content"])
    runs = document["runs"]
    expected = [
        match[1].strip()
        for run in runs
        if (match := re.search(r"[Ee]xpected:? (.+?)\.?\"?\}?'?$", _comment(run))) is not None
    ]
    if expected:
        demand = max(set(expected), key=expected.count)
    else:
        best = max(runs, key=lambda run: run["reward"] or 0.0)
        demand = _form_of(str(best["answer"] or ""))
    return f"The graders expect a form.\n```\nWrite {demand}.\n```"


def _comment(run: dict[str, Any]) -> str:
    """Return the grader's comment in a shown grade."""
    grade = str(run.get("grade") or "")
    match = re.search(r"'content': (['\"])(.*?)\1(?:, '|\})", grade)
    return match[2].replace("\\'", "'") if match else ""


def _form_of(answer: str) -> str:
    answer = answer.strip()
    if len(answer) > 2 and answer[0] == answer[-1] and not answer[0].isalnum():
        return f"the word between {answer[0]} and {answer[0]}"
    return "the word alone"


class Server:
    """The server, on a free port of this machine."""

    def __init__(self) -> None:
        self.calls = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.calls += 1
                message = {"role": "assistant", "content": reply_to(body["messages"])}
                self._send(
                    {
                        "id": "chatcmpl-1",
                        "object": "chat.completion",
                        "created": 0,
                        "model": body["model"],
                        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                        "usage": {
                            "prompt_tokens": 1000,
                            "completion_tokens": 50,
                            "total_tokens": 1050,
                        },
                    }
                )

            def do_GET(self) -> None:
                self._send({"object": "list", "data": [{"id": "stand-in", "object": "model"}]})

            def _send(self, value: dict[str, Any]) -> None:
                data = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: object) -> None:
                del arguments

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Server:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._server.shutdown()
        self._server.server_close()
