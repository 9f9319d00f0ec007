"""`hud eval --remote`: the command watches, leaves, cancels or dies; the platform plays what it was given."""

import json
import os
import signal
import subprocess
import sys

import pytest
from tests.fleet.deployed_server import deployed_server, wait
from tests.fleet.test_remote_rollouts import ENV

from hud.trace import new_id

pytestmark = pytest.mark.slow

JUDGE = """
from hud import Environment
env = Environment("judge")

@env.template(returns=dict)
async def halve():
    graded = yield "Judge."
    yield graded.content["score"] / 2
"""
RUNS = 6


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    environments = {"echo": ENV, "judge": JUDGE}
    with deployed_server(tmp_path_factory.mktemp("remote"), environments, workers=1) as made:
        yield made


@pytest.fixture
def hud(server, tmp_path):
    def start(*arguments):
        kept = {k: v for k, v in os.environ.items() if not k.startswith("HUD_")}
        ours = {"HUD_HOME": str(tmp_path), "HUD_API_URL": server.url, "HUD_API_KEY": server.key}
        return subprocess.Popen(
            [sys.executable, "-m", "hud.cli.main", *arguments],
            env={**kept, **ours},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


@pytest.fixture
def tasks(tmp_path):
    def write(seconds, **fields):
        path = tmp_path / "tasks.json"
        rows = [
            {"env": "echo", "id": "say", "slug": f"s{n}", "args": {"seconds": seconds}, **fields}
            for n in range(RUNS)
        ]
        path.write_text(json.dumps(rows))
        return str(path)

    return write


def began(api, command):
    """The id of the job, once all its runs are known to the platform."""
    jobs = [job["id"] for job in api.get("/v2/jobs").json()["items"]]

    def submitted():
        assert command.poll() is None, command.stdout.read()
        found = [job for job in api.get("/v2/jobs").json()["items"] if job["id"] not in jobs]
        return found[0]["id"] if found and found[0]["runs"] == RUNS else None

    wait(submitted)
    return submitted()


def job_of(api, job):
    return api.get(f"/v2/jobs/{job}").json()


def states(api, job):
    return [run["status"] for run in api.get(f"/v2/jobs/{job}/traces").json()["items"]]


def test_attached_it_tells_as_of_a_local_evaluation(server, hud, tasks):
    command = hud("eval", tasks(0.0), "m", "--remote", "--all", "--group", "2", "--json")
    said, _ = command.communicate(timeout=60)
    assert command.returncode == 0, said
    report = json.loads(said[said.index("{") :])
    with server.client() as api:
        found = job_of(api, report["id"] if "id" in report else report["job_id"])
    assert (found["status"], found["runs"], found["reward"]) == ("completed", 2 * RUNS, 1.0)


def test_a_command_that_is_killed_leaves_its_rollouts_behind(server, hud, tasks):
    with server.client() as api:
        command = hud("eval", tasks(2.0), "m", "--remote", "--all")
        job = began(api, command)
        command.kill()
        command.wait()
        wait(lambda: job_of(api, job)["status"] == "completed")
        assert states(api, job) == ["completed"] * RUNS
        shown, _ = hud("jobs", job[:12]).communicate(timeout=30)
        assert "completed" in shown


def test_ctrl_c_leaves_them_to_the_platform(server, hud, tasks):
    with server.client() as api:
        command = hud("eval", tasks(6.0), "m", "--remote", "--all")
        job = began(api, command)
        command.send_signal(signal.SIGINT)
        said, _ = command.communicate(timeout=30)
        assert command.returncode == 0, said
        assert f"hud cancel {job[:12]}" in said
        assert set(states(api, job)) == {"running"}
        wait(lambda: job_of(api, job)["status"] == "completed")
        assert states(api, job) == ["completed"] * RUNS


def test_ctrl_c_twice_cancels_them(server, hud, tasks):
    with server.client() as api:
        command = hud("eval", tasks(60.0), "m", "--remote", "--all")
        job = began(api, command)
        command.send_signal(signal.SIGINT)
        wait(lambda: "Ctrl-C again" in command.stdout.readline())
        command.send_signal(signal.SIGINT)
        said, _ = command.communicate(timeout=30)
        assert command.returncode == 130, said
        wait(lambda: states(api, job) == ["cancelled"] * RUNS)


def test_hud_cancel(server, hud, tasks):
    with server.client() as api:
        command = hud("eval", tasks(60.0), "m", "--remote", "--all")
        job = began(api, command)
        traces = [run["id"] for run in api.get(f"/v2/jobs/{job}/traces").json()["items"]]
        said, _ = hud("cancel", "--trace-id", traces[0], "--json").communicate(timeout=30)
        assert json.loads(said) == {"status": "accepted"}
        said, _ = hud("cancel", job[:12], "--yes").communicate(timeout=30)
        assert said.strip() == f"Cancelled {RUNS - 1} rollouts."
        said, _ = command.communicate(timeout=30)
        assert states(api, job) == ["cancelled"] * RUNS
        said, _ = hud("cancel", "--all", "--yes", "--json").communicate(timeout=30)
        assert json.loads(said)["total_tasks_cancelled"] == 0


def test_limits_count_from_the_rollout_s_beginning(server, hud, tasks):
    # One after another they take longer than any of them may; the last waits for longer than its limit.
    limited = {"limits": {"run_timeout_s": 4.0}}
    with server.client() as api:
        slow, quick = new_id(), new_id()
        for job, seconds in ((slow, 30.0), (quick, 0.0)):
            body = {
                "trace_id": job,
                "env": "echo",
                "task": "say",
                "args": {"seconds": seconds},
                "agent": {"type": "openai_compatible", "config": {"model": "m"}},
                "runtime_config": limited,
            }
            api.post("/v2/rollouts/submit", json=body).raise_for_status()
        run = lambda job: api.get(f"/v2/trace/{job}/full").json()["run"]  # noqa: E731
        wait(lambda: run(slow)["status"] == "error")
        assert "passed its limit of 4 s" in run(slow)["error"]
        wait(lambda: run(quick)["status"] == "completed")


def test_a_verifier_of_another_environment_judges_the_grade(server):
    with server.client() as api:
        trace = new_id()
        body = {
            "trace_id": trace,
            "env": "echo",
            "task": "say",
            "agent": {"type": "claude", "config": {"model": "m"}},
            "verifier": {"env": "judge", "id": "halve", "args": {}},
        }
        api.post("/v2/rollouts/submit", json=body).raise_for_status()
        wait(lambda: api.get(f"/v2/trace/{trace}").json()["status"] != "running")
        found = api.get(f"/v2/trace/{trace}").json()
        assert (found["reward"], found.get("error")) == (0.5, None)
        body = {**body, "trace_id": new_id(), "verifier": {"env": "nowhere", "id": "halve"}}
        assert api.post("/v2/rollouts/submit", json=body).status_code == 404


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"agent": {"type": "codex_cli", "config": {"model": "m"}}}, "codex_cli"),
        ({"agent": {"type": "openai", "config": {}}}, "config.model"),
        ({"runtime_config": {"image": "ubuntu"}}, "image"),
        ({"runtime_config": {"resources": {"gpu": {"count": 1}, "cpu": 2}}}, "gpus=1"),
        ({"runtime_config": {"limits": {"run_timeout_s": -1}}}, "run_timeout_s"),
        ({"runtime_config": {"colour": "red"}}, "colour"),
    ],
)
def test_what_no_worker_can_give_is_refused_in_a_sentence(server, wrong, told):
    body = {
        "trace_id": new_id(),
        "env": "echo",
        "task": "say",
        "agent": {"type": "openai_compatible", "config": {"model": "m"}},
        **wrong,
    }
    with server.client() as api:
        answer = api.post("/v2/rollouts/submit", json=body)
        assert answer.status_code == 400
        assert told in answer.json()["detail"]
        assert api.get(f"/v2/trace/{body['trace_id']}").status_code == 404
