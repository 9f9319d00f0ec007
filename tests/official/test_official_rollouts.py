"""Rollouts that the official client has our server play, whole or the environment alone."""

from __future__ import annotations

import json
import signal
import time

import pytest

pytestmark = pytest.mark.slow

PLACES = """\
import asyncio
from hud import Environment

env = Environment("places")


@env.template(id="say", description="Say a word.")
async def say(word: str = "red"):
    answer = yield f"say {word}"
    yield min(1.0, (1 + len(str(answer))) / 300)


@env.template(id="wait")
async def wait(seconds: float = 120.0):
    await asyncio.sleep(seconds)
    yield "say red"
    yield 1.0


@env.template(id="halve", returns=dict)
async def halve():
    graded = yield "judge the grade"
    score = graded.content["score"] if hasattr(graded, "content") else graded["score"]
    yield 0.5 if score > 0 else 0.25


tasks = [say(word=word) for word in ("red", "green", "blue")]
"""
WAITING = PLACES + "tasks = [wait(seconds=60.0 + n) for n in range(3)]\n"


@pytest.fixture(scope="module")
def deployed(server, official_in, tmp_path_factory):
    """The environment, deployed once, and a model to play it."""
    server.create_model("player")
    folder = tmp_path_factory.mktemp("deployed")
    (folder / "env.py").write_text(PLACES)
    client = official_in(folder, folder / "home")
    assert client.json("deploy", ".", "--yes", "--no-env")["success"]
    return "player"


def traces_of(server, job):
    return server.get(f"/v2/jobs/{job}/traces")["items"]


def until(check, *, seconds=60.0):
    """Return what `check` says once it is true."""
    end = time.monotonic() + seconds
    while not (said := check()) and time.monotonic() < end:
        time.sleep(0.2)
    return said


def test_whole_rollouts_are_played_by_the_server(official, server, deployed):
    official.write("env.py", PLACES)
    report = official.json(
        "eval", "env.py", deployed, "--remote", "--all", "--group", "2", "--max-steps", "1", "--yes"
    )
    assert (report["run_count"], report["error_count"]) == (6, 0)
    traces = traces_of(server, report["job_id"])
    assert {trace["trace_id"] for trace in traces} == {run["trace_id"] for run in report["runs"]}
    assert {trace["status"] for trace in traces} == {"completed"}
    rewards = {trace["trace_id"]: trace["reward"] for trace in traces}
    assert rewards == pytest.approx({run["trace_id"]: run["reward"] for run in report["runs"]})
    assert sorted(
        len([t for t in traces if t["slug"] == slug]) for slug in {t["slug"] for t in traces}
    ) == [2, 2, 2]
    steps = server.get(f"/v2/trace/{traces[0]['trace_id']}/full")["trace"]["steps"]
    assert [step["source"] for step in steps] == ["task", "user", "agent", "task"]
    kinds = [event["kind"] for event in official.json("trace", "get", traces[0]["trace_id"])]
    assert kinds == ["environment", "agent_message"]


def test_runs_of_the_server_train_by_their_trace_ids(official, server, deployed):
    official.write("env.py", PLACES)
    report = official.json(
        "eval", "env.py", deployed, "--remote", "--group", "4", "--max-steps", "1", "--yes"
    )
    done = official.python(
        f"""
import asyncio, json
from hud import TrainingClient

async def main():
    trainer = TrainingClient({deployed!r})
    step = await trainer.step(
        {[run["trace_id"] for run in report["runs"]]!r}, learning_rate=1e-4, group_size=4)
    print(json.dumps([step.step, step.checkpoint_id]))
asyncio.run(main())
"""
    )
    assert done[0] == 1


def test_a_platform_taskset_is_played_by_the_server(official, server, deployed):
    official.write("env.py", PLACES)
    official.json("sync", "tasks", "places-set", "env.py", "--yes")
    report = official.json("eval", "places-set", deployed, "--all", "--max-steps", "1", "--yes")
    assert (report["run_count"], report["error_count"]) == (3, 0)
    (job,) = [job for job in server.get("/v2/jobs")["items"] if job["id"] == report["job_id"]]
    assert job["taskset_name"] == "places-set"


def test_the_agent_plays_here_and_the_environment_there(official, server, deployed):
    official.write("env.py", PLACES)
    report = official.json(
        "eval", "env.py", deployed, "--runtime", "hud", "--all", "--max-steps", "1", "--yes"
    )
    assert (report["run_count"], report["error_count"]) == (3, 0)
    traces = traces_of(server, report["job_id"])
    assert {trace["status"] for trace in traces} == {"completed"}
    assert all(0 < trace["reward"] <= 1 for trace in traces)


def test_a_job_is_cancelled_while_the_server_plays_it(official, server, deployed):
    official.write("env.py", WAITING)
    process = official.start(
        "eval", "env.py", deployed, "--remote", "--all", "--max-steps", "1", "--yes", "--json"
    )
    try:
        job = until(
            lambda: [
                job
                for job in server.get("/v2/jobs")["items"]
                if "env" in job["name"]
                and len(traces_of(server, job["id"])) == 3
                and job["status"] == "running"
            ]
        )[0]["id"]
        said = official.json("jobs", "cancel", job, "--yes")
        assert "3" in json.dumps(said)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert json.loads(out)["error_count"] == 3
    assert {trace["status"] for trace in traces_of(server, job)} == {"cancelled"}
    assert {trace["reward"] for trace in traces_of(server, job)} == {None}


def test_one_run_and_then_everything_is_cancelled(official, server, deployed):
    official.write("env.py", WAITING)
    process = official.start(
        "eval", "env.py", deployed, "--remote", "--all", "--max-steps", "1", "--yes", "--json"
    )
    try:
        running = until(
            lambda: [
                job
                for job in server.get("/v2/jobs")["items"]
                if job["status"] == "running" and len(traces_of(server, job["id"])) == 3
            ]
        )
        job = running[0]["id"]
        one = traces_of(server, job)[0]["trace_id"]
        official.json("jobs", "cancel", job, "--trace-id", one, "--yes")
        states = until(
            lambda: [trace["status"] for trace in traces_of(server, job)].count("cancelled") == 1
        )
        assert states
        official.json("cancel", "--all", "--yes")
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert {trace["status"] for trace in traces_of(server, job)} == {"cancelled"}


def test_ctrl_c_cancels_what_the_server_plays(official, server, deployed):
    official.write("env.py", WAITING)
    process = official.start("eval", "env.py", deployed, "--remote", "--all", "--yes")
    try:
        running = until(
            lambda: [
                job
                for job in server.get("/v2/jobs")["items"]
                if job["status"] == "running" and len(traces_of(server, job["id"])) == 3
            ]
        )
        job = running[0]["id"]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    states = until(
        lambda: {trace["status"] for trace in traces_of(server, job)} == {"cancelled"}, seconds=20
    )
    assert states, traces_of(server, job)


def test_a_verifier_has_the_last_word_on_the_server_too(official, server, deployed):
    official.write(
        "env.py",
        PLACES + "from hud import Task\n"
        "task = say(word='red')\n"
        "task.verifier = Task(env='places', id='halve')\n"
        "tasks = [task]\n",
    )
    report = official.json("eval", "env.py", deployed, "--remote", "--max-steps", "1", "--yes")
    (trace,) = traces_of(server, report["job_id"])
    assert trace["reward"] == 0.5
    assert report["mean_reward"] == 0.5


def test_an_environment_that_was_never_deployed_is_told(official, server, deployed):
    official.write("env.py", PLACES.replace('"places"', '"nowhere-deployed"'))
    report = official.json(
        "eval", "env.py", deployed, "--remote", "--max-steps", "1", "--yes", exit_code=1
    )
    assert report["error_count"] == 1
    assert "nowhere-deployed" in json.dumps(report)
