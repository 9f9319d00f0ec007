"""Rollouts that the platform plays: each counted once, whoever dies meanwhile."""

import os
import signal
import time

import psutil
import pytest
from tests.fleet.deployed_server import deployed_server, wait

from hud.trace import dashed, new_id

ENV = """
import asyncio
from hud import Environment
from hud.graders import training_progress
env = Environment("echo")

@env.template()
async def say(word: str = "hello", seconds: float = 0.0, after: float = 0.0):
    await asyncio.sleep(seconds)
    answer = yield f"Say {word}."
    await asyncio.sleep(after)
    yield 1.0

@env.template()
async def fade():
    yield "Say hello."
    yield 1.0 - training_progress()
"""
AGENT = {
    "type": "openai_compatible",
    "config": {"model": "m", "completion_kwargs": {"max_tokens": 4}},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with deployed_server(tmp_path_factory.mktemp("fleet"), {"echo": ENV}, workers=2) as made:
        yield made


def submit(api, job, **args):
    trace = new_id()
    body = {
        "trace_id": dashed(trace),
        "job_id": dashed(job),
        "env": "echo",
        "task": "say",
        "slug": "say",
        "args": args,
        "agent": AGENT,
    }
    answer = api.post("/v2/rollouts/submit", json=body)
    assert answer.status_code == 200, answer.text
    return trace


def job_of(api, job):
    return api.get(f"/v2/jobs/{job}").json()


def workers(server):
    children = psutil.Process(server.process.pid).children(recursive=True)
    return [child for child in children if "hud.fleet.rollout_worker" in command_of(child)]


def command_of(process):
    """The command line of a process; empty once it has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.slow
def test_a_rollout_is_played_graded_and_recorded_with_its_tokens(server):
    with server.client() as api:
        job = new_id()
        trace = submit(api, job, word="pear")
        wait(lambda: api.get(f"/v2/trace/{dashed(trace)}").json()["status"] == "completed")
        whole = api.get(f"/v2/trace/{trace}/full").json()
        assert whole["run"]["reward"] == 1.0
        agent = next(step for step in whole["trace"]["steps"] if step["source"] == "agent")
        assert len(agent["sample"]["output_token_ids"]) > 0
        assert job_of(api, job)["status"] == "completed"


@pytest.mark.slow
def test_a_rollout_that_is_played_for_a_training_knows_its_progress(server):
    with server.client() as api:
        trace = new_id()
        body = {"env": "echo", "task": "fade", "agent": AGENT, "training_progress": 0.25}
        api.post("/v2/rollouts/submit", json={**body, "trace_id": trace}).raise_for_status()
        run = lambda: api.get(f"/v2/trace/{trace}").json()  # noqa: E731
        wait(lambda: run()["status"] == "completed")
        assert run()["reward"] == 0.75


def test_submitting_twice_plays_once(server):
    with server.client() as api:
        job = new_id()
        body = {"env": "echo", "task": "say", "agent": AGENT, "job_id": job, "trace_id": new_id()}
        for _ in range(2):
            api.post("/v2/rollouts/submit", json=body).raise_for_status()
        wait(lambda: job_of(api, job)["status"] == "completed")
        assert job_of(api, job)["runs"] == 1


@pytest.mark.slow
def test_what_cannot_be_played_is_refused_at_once(server):
    with server.client() as api:
        body = {"env": "nowhere", "task": "say", "agent": AGENT, "trace_id": new_id()}
        assert api.post("/v2/rollouts/submit", json=body).status_code == 404
        body = {**body, "env": "echo", "runtime_config": {"resources": {"gpu": {"count": 1}}}}
        answer = api.post("/v2/rollouts/submit", json=body)
        assert (answer.status_code, "gpu" in answer.json()["detail"]) == (400, True)
        assert api.post("/v2/rollouts/submit", json={**body, "trace_id": "x"}).status_code == 400


@pytest.mark.slow
def test_a_rollout_that_breaks_is_a_failed_run_that_says_why(server):
    with server.client() as api:
        job = new_id()
        wrong = submit(api, job, nonsense=1)
        wait(lambda: api.get(f"/v2/trace/{wrong}").json()["status"] == "error")
        assert "nonsense" in api.get(f"/v2/trace/{wrong}").json()["error"]
        for config, told in (
            ({"model": "no-such-model"}, "no-such-model"),
            ({"model": "m", "completion_kwargs": {"extra_body": 5}}, "extra_body"),
            ({"model": "m", "max_steps": "many"}, "max_steps"),
        ):
            body = {"env": "echo", "task": "say", "trace_id": new_id()}
            agent = {"type": "openai_compatible", "config": config}
            api.post("/v2/rollouts/submit", json={**body, "agent": agent}).raise_for_status()
            found = lambda: api.get(f"/v2/trace/{body['trace_id']}").json()  # noqa: B023, E731
            wait(lambda: found()["status"] == "error")  # noqa: B023
            assert told in found()["error"]


@pytest.mark.slow
def test_cancelling_stops_what_waits_and_what_runs(server):
    with server.client() as api:
        job = new_id()
        traces = [submit(api, job, seconds=60.0) for _ in range(40)]
        running = lambda: job_of(api, job)["status"] == "running"  # noqa: E731
        wait(running)
        time.sleep(1.0)
        answer = api.post("/v2/rollouts/cancel_job", json={"job_id": dashed(job)}).json()
        assert answer == {"total_found": 40, "cancelled": 40}
        wait(lambda: not running())
        states = {api.get(f"/v2/trace/{trace}").json()["status"] for trace in traces}
        assert states == {"cancelled"}
        again = api.post("/v2/rollouts/cancel", json={"trace_id": traces[0]}).json()
        assert again == {"status": "noop"}
        everything = api.post("/v2/rollouts/cancel_user_jobs", json={}).json()
        assert everything["total_tasks_cancelled"] == 0


@pytest.mark.slow
def test_another_team_neither_sees_nor_stops_them(server):
    with server.client() as api:
        made = api.post(
            "/v2/keys", json={"name": "o", "team": "others", "scopes": ["admin"]}
        ).json()
        job = new_id()
        trace = submit(api, job, seconds=3.0)
        with server.client(made["key"]) as other:
            assert other.get(f"/v2/trace/{trace}").status_code == 404
            cancelled = other.post("/v2/rollouts/cancel", json={"trace_id": trace}).json()
            assert cancelled == {"status": "noop"}
            body = {"env": "echo", "task": "say", "agent": AGENT, "trace_id": trace}
            assert other.post("/v2/rollouts/submit", json=body).status_code == 404
        wait(lambda: job_of(api, job)["status"] == "completed")


@pytest.mark.slow
def test_a_key_of_a_person_takes_no_work(server):
    with server.client() as api:
        for route in ("take", "renew", "release", "events"):
            assert api.post(f"/v2/fleet/{route}", json={}).status_code == 403


@pytest.mark.slow
def test_killed_workers_and_a_killed_server_lose_nothing_and_count_nothing_twice(server):
    with server.client() as api:
        job = new_id()
        traces = [submit(api, job, seconds=0.3) for _ in range(100)]
        wait(lambda: job_of(api, job)["graded"] > 5)
        for worker in workers(server):
            os.kill(worker.pid, signal.SIGKILL)
        wait(lambda: job_of(api, job)["graded"] > 40)
        server.kill()
    server.start()
    with server.client() as api:
        wait(lambda: job_of(api, job)["status"] == "completed", 120)
        found = job_of(api, job)
        assert (found["runs"], found["graded"], found["reward"]) == (100, 100, 1.0)
        for trace in traces:
            steps = api.get(f"/v2/trace/{trace}/full").json()["trace"]["steps"]
            assert [step["step_id"] for step in steps] == list(range(1, len(steps) + 1))
            assert sum(step["source"] == "agent" for step in steps) == 1


@pytest.mark.slow
def test_stopping_hands_back_what_is_being_played(server):
    with server.client() as api:
        job = new_id()
        submit(api, job, seconds=4.0)
        wait(lambda: job_of(api, job)["status"] == "running")
        time.sleep(1.0)
    assert server.stop() == 0
    server.start()
    with server.client() as api:
        wait(lambda: job_of(api, job)["status"] == "completed")
        assert job_of(api, job)["graded"] == 1
