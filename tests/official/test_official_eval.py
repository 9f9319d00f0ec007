"""The official `hud eval`, `hud jobs` and `hud trace`, with a model of ours behind the gateway."""

from __future__ import annotations

import json

import pytest


@pytest.fixture(scope="module")
def speaker(server):
    server.create_model("speaker")
    return "speaker"


@pytest.mark.slow
def test_an_evaluation_plays_grades_and_reports_every_run(official, server, speaker):
    report = official.json(
        "eval",
        "env.py",
        speaker,
        "--all",
        "--group",
        "2",
        "--max-steps",
        "2",
        "--yes",
    )
    assert (report["run_count"], report["error_count"]) == (8, 0)
    assert 0.0 <= report["mean_reward"] <= 1.0
    job = report["job_id"]
    traces = server.get(f"/v2/jobs/{job}/traces")["items"]
    assert {trace["trace_id"] for trace in traces} == {run["trace_id"] for run in report["runs"]}
    rewards = {trace["trace_id"]: trace["reward"] for trace in traces}
    assert rewards == {run["trace_id"]: run["reward"] for run in report["runs"]}
    assert {trace["status"] for trace in traces} == {"completed"}
    assert {trace["model"] for trace in traces} == {speaker}
    groups = {}
    for trace in traces:
        groups.setdefault(trace["group_id"], []).append(trace["slug"])
    assert sorted(map(len, groups.values())) == [2, 2, 2, 2]
    assert all(len(set(slugs)) == 1 for slugs in groups.values())

    # The commands show the same.
    listed = official.json("jobs", "list")
    (row,) = [row for row in listed if row["id"] == job]
    assert row["status"] == "completed"
    assert official.hud("jobs", "list", "--quiet").split()[0]
    shown = official.json("jobs", "get", job)
    assert {row["trace_id"] for row in shown} == set(rewards)
    assert job in official.hud("jobs", "list")
    assert official.json("jobs", job) == shown  # As older guides write it.

    # And each trace is whole, in the client's eyes and in ours.
    trace_id = report["runs"][0]["trace_id"]
    events = official.json("trace", "get", trace_id)
    assert [event["kind"] for event in events] == ["environment", "agent_message"]
    assert events[0]["text"].startswith("say ")
    assert "Turn 1" in official.hud("trace", "get", trace_id)
    assert official.json("trace", trace_id) == events
    steps = server.get(f"/v2/trace/{trace_id}/full")["trace"]["steps"]
    assert [step["source"] for step in steps] == ["task", "user", "agent", "task"]
    assert steps[2]["usage"]["completion_tokens"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["openai_compatible", "openai", "claude", "gemini"])
def test_every_official_agent_plays_a_local_model_in_its_own_dialect(
    official, server, speaker, agent
):
    report = official.json(
        "eval", "env.py", agent, "--model", speaker, "--gateway", "--yes", "--max-steps", "2"
    )
    assert (report["run_count"], report["error_count"]) == (1, 0)
    (run,) = report["runs"]
    steps = server.get(f"/v2/trace/{run['trace_id']}/full")["trace"]["steps"]
    assert [step["source"] for step in steps] == ["task", "user", "agent", "task"]
    assert steps[2]["content"] or steps[2].get("reasoning")
    assert steps[2]["usage"]["completion_tokens"] > 0


@pytest.mark.slow
def test_one_task_is_played_by_default_and_others_by_slug(official, server, speaker):
    limits = ["--max-steps", "1", "--yes"]
    assert official.json("eval", "env.py", speaker, *limits)["run_count"] == 1
    named = official.json("eval", "env.py", speaker, "--task-ids", "1,3", *limits)
    assert named["run_count"] == 2
    traces = server.get(f"/v2/jobs/{named['job_id']}/traces")["items"]
    assert len({trace["slug"] for trace in traces}) == 2


def test_a_template_that_breaks_is_a_run_with_an_error(official, server, speaker):
    official.write(
        "env.py",
        "from hud import Environment\n"
        "env = Environment('broken')\n"
        "@env.template(id='fall')\n"
        "async def fall():\n"
        "    yield 'say red'\n"
        "    raise RuntimeError('the grader fell over')\n"
        "tasks = [fall()]\n",
    )
    report = official.json(
        "eval",
        "env.py",
        speaker,
        "--yes",
        "--max-steps",
        "1",
        exit_code=1,
    )
    assert report["error_count"] == 1
    (trace,) = server.get(f"/v2/jobs/{report['job_id']}/traces")["items"]
    assert trace["status"] == "error"
    assert "the grader fell over" in json.dumps(trace)


@pytest.mark.slow
def test_an_unknown_model_is_told_before_anything_runs(official, server):
    before = server.get("/v2/jobs")["total"]
    refused = official.json("eval", "env.py", "no-such-model", "--yes", exit_code=2)
    assert "no-such-model" in refused["message"]
    assert server.get("/v2/jobs")["total"] == before


@pytest.mark.slow
def test_a_trace_that_is_not_there_is_told(official):
    missing = official.json("trace", "get", "f" * 32, exit_code=1)
    assert missing["error"] == "not_found"
