"""What a worker brings of a rollout that called subagents: every run in it, under one job for each tool."""

from __future__ import annotations

from pathlib import Path

import pytest

from hud.agents import ScriptedAgent
from hud.client import connect, disconnect
from hud.client.recording import MemoryRecorder
from hud.environment import load_environment
from hud.eval import LocalRuntime
from hud.eval.rollouts import rollout
from hud.trace import AgentStep, Sample, ToolCall, new_id
from hud_platform.store.attempts import Attempt, read_attempt, write_attempts
from hud_platform.store.tables import LOCAL_TEAM

WORLD = Path(__file__).parents[1] / "eval" / "subagent_world.py"


async def leader(run):
    call = ToolCall(id="c", name="ask_reader", arguments={"title": "dune"})
    return (await run.call_tool(call)).text


async def reader(run):
    sample = Sample(prompt_token_ids=[1, 2], output_token_ids=[3], output_logprobs=[-0.5])
    run.record(AgentStep(content="sand", sample=sample))
    return "sand"


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    yield tmp_path
    disconnect(tmp_path)


async def test_two_workers_bring_the_runs_of_one_job_and_of_its_subagents(home):
    client = connect()
    await client.get("/v2/jobs")
    store = client.embedded.parts.store
    library = load_environment(WORLD)
    agent = ScriptedAgent(leader, name="leader")
    agent.subagents = {"ask_reader": ScriptedAgent(reader, name="bookworm")}
    job, traces = new_id(), []
    for _ in range(2):
        recorder = MemoryRecorder()
        run = await rollout(
            library.templates["enquire"](),
            agent,
            runtime=LocalRuntime(library),
            recorder=recorder,
            job_id=job,
            group_id=new_id(),
        )
        traces.append(run)
        events = recorder.take()
        attempt = Attempt(LOCAL_TEAM, run.trace_id, job, run.group_id)
        rows = read_attempt(store, attempt, events, again=True)
        with store.begin() as connection:
            write_attempts(connection, [rows])
    jobs = (await client.get("/v2/jobs"))["items"]
    (below,) = [one for one in jobs if one["name"].startswith("ask_reader, called in job")]
    assert (below["runs"], below["reward"], below["status"]) == (2, 1.0, "completed")
    page = await client.get(f"/v2/jobs/{below['id']}/traces")
    children = {run.children[0].trace_id for run in traces}
    assert {row["trace_id"] for row in page["items"]} == children
    # The tokens are where they can be trained on: in the subagent's own run, and in no other.
    own = await client.get(f"/v2/trace/{traces[0].children[0].trace_id}/full")
    turns = [step for step in own["trace"]["steps"] if step["source"] == "agent"]
    assert turns[0]["sample"]["output_token_ids"] == [3]
    whole = await client.get(f"/v2/trace/{traces[0].trace_id}/full")
    (nested,) = [step for step in whole["trace"]["steps"] if step["source"] == "subagent"]
    assert nested["subagent"]["trace_id"] == traces[0].children[0].trace_id
    assert [step.get("sample") for step in nested["subagent"]["steps"]] == [None] * 4
