"""Rollouts whose nodes are killed again and again: each must end once, from its snapshots.

    python -m tests.chaos.killed_nodes [--rollouts 20] [--interval 20] [--record benchmarks/killed_nodes.json]

A node is killed with SIGKILL, with everything on it, `interval` seconds after it joined, and another one joins in its place.
A rollout takes longer than that. Its model is a stub that counts by the conversation which it gets, its grade is 1.0 only where
every number is in the file once and in order.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fleet.deployed_server import deployed_server
from tests.fleet.joined_node import JoinedNode

from hud.trace import dashed, new_id

ENVIRONMENT = """
from hud import Environment
env = Environment("count")
shell = env.workspace(snapshots=True, restart="echo up >> restarts.txt")

@env.template()
async def count(steps: int):
    await shell.write("start.txt", "begun")
    answer = yield "Count."
    lines = (await shell.read("count.txt")).decode().split()
    yield float(lines == [str(number) for number in range(steps)] and answer == "done")
"""
LEASE_SECONDS = 6
KEY = "sk-of-the-counter"
END_SECONDS = 900.0


@dataclass
class Outcome:
    """Result of one series."""

    rollouts: int
    """Rollouts, each played at the same time as all others."""
    ended_once: int
    """Rollouts with reward 1.0 and each of their steps on record once."""
    resumed: int
    """Rollouts that went on from a snapshot at least once."""
    attempts: list[int]
    """Attempts of each."""
    lost_early: int
    """Attempts, after the first of a rollout, that were lost before their first snapshot."""
    errors: list[str]
    """Errors of those that did not end well."""
    kills: int
    interval_seconds: float
    steps: int
    step_seconds: float
    wall_seconds: float
    load: float
    """Load of the machine over the last minute, at the end."""


class Counter(BaseHTTPRequestHandler):
    """A model of chat completions: a command for each number, then the answer."""

    steps, seconds = 1, 0.0

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        message: dict[str, object] = {"role": "assistant", "content": "done"}
        if turn < self.steps:
            command = f"sleep {self.seconds}; cat start.txt; echo {turn} >> count.txt"
            call = {"name": "bash", "arguments": json.dumps({"command": command})}
            calls = [{"id": f"c{turn}", "type": "function", "function": call}]
            message = {"role": "assistant", "content": None, "tool_calls": calls}
        reason = "tool_calls" if turn < self.steps else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        data = json.dumps(
            {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}
        )
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data.encode())

    def handle(self) -> None:
        with suppress(ConnectionError):  # Its caller was killed.
            super().handle()

    def log_message(self, *_: object) -> None:
        pass


class Nodes:
    """Nodes that are killed a time after they have joined, and replaced."""

    def __init__(self, url: str, key: str, root: Path, count: int, room: int) -> None:
        self.url, self.key, self.root, self.room = url, key, root, room
        self.kills = self.started = 0
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._live) for _ in range(count)]
        self.interval = 0.0
        self.progress: Callable[[], int] | None = None

    def start(self, interval: float, progress: Callable[[], int] | None) -> None:
        """Start the nodes; each is killed `interval` seconds after it joined, or later: once `progress` has grown."""
        self.interval, self.progress = interval, progress
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _live(self) -> None:
        while not self._over.is_set():
            self.started += 1
            arguments = ("--rollouts", str(self.room), "--cache", str(self.root / "cache"))
            node = JoinedNode(self.url, self.key, self.root / f"node{self.started}", *arguments)
            while "Joined" not in node.said() and not self._over.wait(0.1):
                assert node.process.poll() is None, node.said()
            before = 0 if self.progress is None else self.progress()
            killed = not self._over.wait(self.interval)
            while killed and self.progress is not None and self.progress() <= before:
                killed = not self._over.wait(0.5)
            node.kill()
            self.kills += killed


def series(
    root: Path,
    *,
    rollouts: int,
    interval: float,
    steps: int,
    step_seconds: float,
    nodes: int,
    patient: bool = False,
) -> Outcome:
    """Play rollouts on nodes that are killed, and return what became of them.

    `patient`: no node is killed before some rollout has made progress on it; for machines that are too busy for the interval.
    """
    model = type("Model", (Counter,), {"steps": steps, "seconds": step_seconds})
    provider = ThreadingHTTPServer(("127.0.0.1", 0), model)
    threading.Thread(target=provider.serve_forever, daemon=True).start()
    variables = {"HUD_REACH": "127.0.0.0/8", "COUNTER_API_KEY": KEY}
    options = ("--rollout-lease", str(LEASE_SECONDS))
    with deployed_server(
        root, {"count": ENVIRONMENT}, workers=0, model=None, options=options, variables=variables
    ) as server:
        with server.client() as api:
            upstream = {
                "url": f"http://127.0.0.1:{provider.server_port}/v1",
                "key_env": "COUNTER_API_KEY",
            }
            api.post(
                "/v2/models/provide", json={"name": "counter", "provider": upstream}
            ).raise_for_status()
            key = api.post("/v2/fleet-passes", json={"name": "spot"}).json()["key"]
        machines = Nodes(server.url, key, root, nodes, -(-rollouts // nodes))
        began = time.monotonic()
        with server.client() as api:
            traces = [_submit(api, steps) for _ in range(rollouts)]
            machines.start(interval, partial(_snapshots_taken, server, traces) if patient else None)
            try:
                _wait_for_ends(api, traces)
                wall = time.monotonic() - began
            finally:
                machines.stop()
            records = [api.get(f"/v2/rollouts/{dashed(trace)}").json() for trace in traces]
            runs = [api.get(f"/v2/trace/{trace}/full").json() for trace in traces]
    provider.shutdown()
    attempts = [len(record["attempts"]) for record in records]
    resumed = [
        len(((run["run"].get("extra") or {}).get("snapshots") or {}).get("resumed_after_steps", ()))
        for run in runs
    ]
    # A setup, a prompt, a turn and a call for each number, the last turn, the grade.
    whole = [
        run["run"]["reward"] == 1.0 and len(run["trace"]["steps"]) == 2 * steps + 4 for run in runs
    ]
    return Outcome(
        rollouts=rollouts,
        ended_once=sum(whole),
        resumed=sum(count > 0 for count in resumed),
        attempts=attempts,
        lost_early=sum(attempts) - rollouts - sum(resumed),
        errors=[
            str(run["run"]["error"]) for run, ended in zip(runs, whole, strict=True) if not ended
        ],
        kills=machines.kills,
        interval_seconds=interval,
        steps=steps,
        step_seconds=step_seconds,
        wall_seconds=round(wall, 1),
        load=round(os.getloadavg()[0], 1),
    )


def _snapshots_taken(server, traces: list[str]) -> int:
    with server.client() as api:
        records = [api.get(f"/v2/rollouts/{dashed(trace)}").json() for trace in traces]
    # An ended rollout has no snapshot any more; it made progress, too.
    ended = 10**6 * sum(record["status"] == "completed" for record in records)
    return ended + sum((record["snapshot"] or {"taken": 0})["taken"] for record in records)


def _submit(api, steps: int) -> str:
    trace = new_id()
    agent = {"type": "openai_compatible", "config": {"model": "counter", "max_steps": 2 * steps}}
    body = {"trace_id": dashed(trace), "env": "count", "task": "count", "args": {"steps": steps}}
    answer = api.post("/v2/rollouts/submit", json={**body, "slug": "count", "agent": agent})
    assert answer.status_code == 200, answer.text
    return trace


def _wait_for_ends(api, traces: list[str]) -> None:
    until = time.monotonic() + END_SECONDS
    open_traces = set(traces)
    while open_traces:
        assert time.monotonic() < until, f"{len(open_traces)} rollouts have not ended"
        time.sleep(1.0)
        statuses = {trace: api.get(f"/v2/trace/{trace}").json()["status"] for trace in open_traces}
        open_traces = {
            trace for trace, status in statuses.items() if status in ("queued", "running")
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=20)
    parser.add_argument("--interval", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--step-seconds", type=float, default=4.0)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--record", type=Path)
    options = vars(parser.parse_args())
    record = options.pop("record")
    with TemporaryDirectory() as folder:
        outcome = asdict(series(Path(folder), **options))
    text = json.dumps(outcome, indent=1)
    print(text)
    if record is not None:
        record.write_text(text + "\n")


if __name__ == "__main__":
    main()
