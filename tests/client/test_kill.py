"""Killed at any instant, in the middle of recording at full speed: every step that ended is there."""

import asyncio
import random
import subprocess
import sys
import textwrap
import time

import pytest

import hud.client

PLAYER = """
    import asyncio, os
    from hud import Environment
    from hud.eval import Taskset
    from hud.trace import AgentStep, Sample

    env = Environment("busy")

    @env.template()
    async def play(number: int = 0):
        yield "go"
        yield 1.0

    async def agent(run):
        ids = [run.task.args["number"]]
        for turn in range(5):
            sample = Sample(prompt_token_ids=list(ids), output_token_ids=[turn], output_logprobs=[-0.5])
            step = run.record(AgentStep(content=str(turn), sample=sample))
            ids += [turn, 7]
            for _ in range(1 + ids[0] % 3):
                await asyncio.sleep(0)
            # The turn of the event loop in which the step ended is over.
            os.write(1, f"{run.trace_id} {step.step_id}\\n".encode())

    asyncio.run(Taskset("busy", [play(number=n) for n in range(10_000)]).run(agent))
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    yield tmp_path
    hud.client.disconnect(tmp_path)


def killed_while_busy(seconds):
    """Return `{trace_id: last step that ended}` of a player killed after so many seconds of recording."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PLAYER)], stdout=subprocess.PIPE
    ) as process:
        lines = [process.stdout.readline()]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            lines.append(process.stdout.readline())
        process.kill()
        lines += process.stdout.readlines()
    ended = {}
    for line in lines:
        trace, step = line.decode().split()
        ended[trace] = int(step)
    return ended


@pytest.mark.slow
@pytest.mark.parametrize("round_", range(3))
def test_every_step_that_ended_is_there_with_its_tokens(home, round_):
    ended = killed_while_busy(random.Random(round_).uniform(0.05, 0.6))

    async def check():
        client = hud.client.connect()
        job = (await client.get("/v2/jobs"))["items"][0]
        assert job["status"] == "interrupted"
        for trace, last in list(ended.items())[-150:]:
            recorded = await client.get(f"/v2/trace/{trace}/full")
            run, steps = recorded["run"], recorded["trace"]["steps"]
            assert [step["step_id"] for step in steps[:last]] == list(range(1, last + 1))
            number = run["task"]["args"]["number"]
            turns = [step["sample"] for step in steps if step["source"] == "agent"]
            for turn, sample in enumerate(turns):
                before = [number, *(token for old in range(turn) for token in (old, 7))]
                assert sample["prompt_token_ids"] == before
                assert sample["output_token_ids"] == [turn]
            if run["status"] == "cancelled":
                assert (run["reward"], run["error"][:11]) == (None, "Interrupted")
            else:
                assert (run["status"], run["reward"]) == ("completed", 1.0)

    asyncio.run(check())
