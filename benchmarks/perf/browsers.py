"""Rollouts that each have a browser of their own: 100, 4 at once. Bar: none fails.

Each rollout sees the page, types into it, presses its button and is graded by what the page then says; a picture is
recorded after each step that changed what is seen.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
from urllib.parse import quote

from records import report
from sizes import size

from hud import Environment
from hud.agents import ScriptedAgent
from hud.eval import LocalRuntime, Taskset
from hud.trace import Completion, ToolCall

RUNS, WIDTH = size((100, 4), (1, 1))
PAGE = """<!doctype html><title>shop</title><style>
body { margin: 0 } button { position: absolute; left: 100px; top: 50px; width: 200px; height: 40px }
input { position: absolute; left: 100px; top: 150px; width: 200px; height: 30px; box-sizing: border-box }
</style><button onclick="document.title = 'bought ' + document.querySelector('input').value">Buy</button><input>"""
TURNS = (
    {"action": "screenshot"},
    {"action": "click", "x": 200, "y": 165},
    {"action": "type", "text": "lamp"},
    {"action": "click", "x": 200, "y": 70},
)

environment = Environment("shop")
browser = environment.browser(start_url=f"data:text/html,{quote(PAGE)}", viewport=(800, 600))


@environment.template()
async def buy(number: int = 0):  # noqa: ARG001 - what tells the tasks apart
    """Buy a lamp."""
    yield "Buy a lamp."
    yield float(await browser.evaluate("document.title") == "bought lamp")


def policy(messages, tools, trace):  # noqa: ARG001 - as agents call it
    """Do the next of `TURNS`, or answer."""
    made = len(trace.tool_calls)
    if made == len(TURNS):
        return "done"
    return Completion(tool_calls=[ToolCall(id=f"c{made}", name="computer", arguments=TURNS[made])])


async def main() -> int:
    """Play all; return the number that failed."""
    began = time.perf_counter()
    tasks = [buy(number=number) for number in range(RUNS)]
    job = await Taskset("shop", tasks).run(
        ScriptedAgent(policy, max_steps=len(TURNS) + 1),
        runtime=LocalRuntime(environment),
        max_concurrent=WIDTH,
    )
    seconds = time.perf_counter() - began
    failed = [run for run in job.runs if run.reward != 1.0]
    for run in failed[:5]:
        print(f"failed: reward {run.reward}, {run.error or run.trace}"[:300])
    pictures = [
        sum("screenshot" in (step.extra or {}) for step in run.trace.steps) for run in job.runs
    ]
    report(
        f"failed of {RUNS} rollouts with a browser each", len(failed), "runs", bar=0, at_most=True
    )
    report(f"rollouts with a browser, {WIDTH} at once", RUNS / seconds, "/s")
    report("screenshots of a rollout", statistics.mean(pictures), "pictures")
    return len(failed)


if __name__ == "__main__":
    if shutil.which("chromium") is None:
        sys.exit("This needs Chromium: run scripts/setup-worlds.")
    with tempfile.TemporaryDirectory() as home:
        os.environ["HUD_HOME"] = home
        sys.exit(asyncio.run(main()) > 0)
