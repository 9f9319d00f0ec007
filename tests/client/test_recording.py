"""What was recorded is there afterwards: read back whole, after a kill, from several processes."""

import asyncio
import subprocess
import sys
import textwrap

import pytest
from jsonschema import Draft202012Validator
from orjson import loads

import hud.client
from hud import Environment
from hud.agents import ScriptedAgent
from hud.errors import NotFoundError
from hud.eval import Taskset
from hud.trace import AgentStep, Completion, Sample, ToolCall, parse_trace
from hud.trace.trajectory_export import SCHEMA, trajectory_line

env = Environment("shop")


@env.tool
async def price(item: str) -> str:
    return f"{item} costs 3"


@env.template()
async def buy(item: str = "tea"):
    answer = yield f"What does {item} cost?"
    yield 1.0 if answer == "3" else 0.0


def policy(messages, tools, trace):
    """Two turns whose second prompt extends the first, as a chat format's does."""
    turn = sum(message["role"] == "tool" for message in messages)
    prompt = [1, 2, 3] if turn == 0 else [1, 2, 3, 7, 8, 4, 5]
    sample = Sample(
        prompt_token_ids=prompt,
        output_token_ids=[7, 8],
        output_logprobs=[-0.5, -0.25],
        temperature=0.5,
    )
    if turn == 0:
        call = ToolCall(id="1", name="price", arguments={"item": "tea"})
        return Completion(tool_calls=[call], sample=sample, reasoning="look it up")
    return Completion(content="3", sample=sample)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    yield tmp_path
    hud.client.disconnect(tmp_path)


async def played(count=3, group=2):
    return await Taskset("shop", [buy(item=f"tea {n}") for n in range(count)]).run(
        ScriptedAgent(policy), group=group
    )


async def test_a_run_is_read_back_as_it_was(home):
    job = await played()
    client = hud.client.connect()
    listed = (await client.get("/v2/jobs"))["items"]
    assert [(one["id"], one["runs"], one["reward"], one["status"]) for one in listed] == [
        (job.id, 6, 1.0, "completed")
    ]
    for run in job.runs:
        recorded = await client.get(f"/v2/trace/{run.trace_id}/full")
        assert parse_trace(recorded["trace"]) == run.trace
        assert recorded["run"]["reward"] == 1.0
        assert recorded["run"]["task"]["args"] == run.task.args


async def test_a_later_turn_stores_only_what_its_prompt_adds(home):
    await played(count=1, group=1)
    import sqlalchemy as sa

    from hud_platform.store import tables

    platform = hud.client.connect().embedded.parts
    with platform.store.read() as connection:
        rows = connection.execute(
            sa.select(tables.samples).order_by(tables.samples.c.step_id)
        ).all()
    assert [len(row.prompt) // 4 for row in rows] == [3, 2]


async def test_exported_lines_fit_the_documented_schema(home):
    job = await played(count=1)
    validator = Draft202012Validator(loads(SCHEMA.read_bytes()))
    for run in job.runs:
        recorded = await hud.client.connect().get(f"/v2/trace/{run.trace_id}/full")
        line = loads(trajectory_line(recorded["run"], recorded["trace"], None))
        validator.validate(line)
        assert [message["role"] for message in line["messages"]] == [
            "user",
            "assistant",
            "tool",
            "assistant",
        ]
        assert line["samples"][1]["prompt_token_ids"] == [1, 2, 3, 7, 8, 4, 5]


async def test_ids_may_be_shortened_or_dashed_and_unknown_ones_are_told(home):
    job = await played(count=1, group=1)
    client = hud.client.connect()
    assert (await client.get(f"/v2/jobs/{job.id[:8]}"))["id"] == job.id
    trace = job.runs[0].trace_id
    dashed = f"{trace[:8]}-{trace[8:12]}-{trace[12:16]}-{trace[16:20]}-{trace[20:]}"
    assert (await client.get(f"/v2/trace/{dashed}"))["id"] == trace
    with pytest.raises(NotFoundError, match="no job 'ffffffff'"):
        await client.get("/v2/jobs/ffffffff")


PLAYER = """
    import asyncio, sys
    sys.path.insert(0, {folder!r})
    from hud.agents import ScriptedAgent
    from hud.eval import Taskset
    from tests.client.test_recording import buy, policy

    async def slow(run):
        await ScriptedAgent(policy)(run)
        await asyncio.sleep(0)  # A step has ended when its turn of the event loop has: then it is written.
        print(run.trace_id, len(run.trace.steps), flush=True)
        if {wait}:
            await asyncio.sleep(60)

    asyncio.run(Taskset("shop", [buy(item=f"tea {{n}}") for n in range(20)]).run(slow, max_concurrent=5))
"""


def player(wait):
    from pathlib import Path

    script = textwrap.dedent(PLAYER.format(folder=str(Path(__file__).parents[2]), wait=wait))
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_every_step_that_ended_survives_kill_9(home):
    process = player(wait=True)
    seen = [process.stdout.readline().split() for _ in range(5)]
    process.kill()
    process.wait()
    process.stdout.close()

    async def recorded():
        client = hud.client.connect()
        job = (await client.get("/v2/jobs"))["items"][0]
        steps = {
            trace: len((await client.get(f"/v2/trace/{trace}/full"))["trace"]["steps"])
            for trace, _ in seen
        }
        return job, steps

    job, steps = asyncio.run(recorded())
    assert job["status"] == "interrupted"
    assert all(steps[trace] == int(count) for trace, count in seen)


@pytest.mark.slow
def test_two_processes_record_into_one_home(home):
    processes = [player(wait=False) for _ in range(2)]
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0

    async def jobs():
        return (await hud.client.connect().get("/v2/jobs"))["items"]

    assert [(job["runs"], job["reward"]) for job in asyncio.run(jobs())] == [(20, 1.0)] * 2


@pytest.mark.slow
def test_recovering_twice_changes_nothing(home):
    process = player(wait=True)
    process.stdout.readline()
    process.kill()
    process.wait()
    process.stdout.close()
    leftover = next((home / "journal").glob("*.journal")).read_bytes()

    async def full():
        client = hud.client.connect()
        jobs = (await client.get("/v2/jobs"))["items"]
        await client.post("/v2/ingest", leftover)
        assert (await client.get("/v2/jobs"))["items"] == jobs
        return jobs

    assert len(asyncio.run(full())) == 1


def test_agent_steps_are_agent_steps_again(home):
    job = asyncio.run(played(count=1, group=1))
    assert [isinstance(step, AgentStep) for step in job.runs[0].trace.steps].count(True) == 2
