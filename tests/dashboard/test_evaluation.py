"""Evaluations are launched, and runs exported, from the dashboard."""

import orjson
import pytest
from tests.dashboard.conftest import sign_in
from tests.dashboard.recorded import record
from tests.dashboard.test_models import made
from tests.dashboard.test_search import told
from tests.dashboard.test_train import TASKS, ended, make_model

from hud.trace.trajectory_export import trajectory_line
from hud_platform.access.teams import Teams
from hud_platform.store import records
from hud_platform.store.tables import LOCAL_TEAM


@pytest.mark.slow
async def test_new_evaluation_leads_to_a_form_that_is_filled_in(platform, web):
    model = make_model(platform)
    checkpoint = made(platform, model, 1)
    assert 'href="/jobs/new"' in (await web.get("/jobs")).text
    assert 'href="/jobs/new?model=m"' in (await web.get("/models/m")).text
    form = (await web.get(f"/jobs/new.json?model=m&checkpoint={checkpoint}")).json()
    assert (form["model"], form["checkpoint"]) == ("m", checkpoint)
    assert [one["value"] for one in form["checkpoints"]][-1] == "base"
    assert (await web.get("/jobs/new")).status_code == 200


async def test_without_a_model_the_form_says_what_to_type(web):
    assert "hud eval TASKS" in (await web.get("/jobs/new")).text


@pytest.mark.slow
async def test_an_evaluation_is_played_in_a_job_of_its_own(platform, web, tmp_path):
    make_model(platform)
    (tmp_path / "tasks.py").write_text(TASKS.replace("WORDS", "['red', 'green']"))
    sent = {"model": "m", "path": str(tmp_path / "tasks.py"), "max_turns": "1", "max_tokens": "4"}
    answer = await web.post("/jobs", data={**sent, "eval_group": "2"})
    assert answer.status_code == 303, answer.text
    launch = await ended(platform, platform.service("dashboard").launches.of_team(LOCAL_TEAM)[0])
    assert (launch.status, launch.sentence) == ("finished", None)
    page = (await web.get(f"/train/launches/{launch.id}")).text
    assert "m evaluation on " in page
    assert f'<a href="/jobs/{launch.jobs[0]}">Go to the job</a>' in page
    job = (await web.get(f"/jobs/{launch.jobs[0]}.json")).json()
    assert job["job"]["title"].endswith(" · m evaluation at head")
    assert job["job"]["planned"] == 4
    assert (job["numbers"]["runs"], job["job"]["group_size"]) == (4, 2)


@pytest.mark.slow
async def test_who_played_is_linked_where_it_is_a_model_of_the_platform(platform, web):
    make_model(platform)
    for name, linked in (("m", True), ("agent", False)):
        job = record(platform, "x", {"a": [1.0]}, model=name)
        (run,) = (await web.get(f"/jobs/{job}.json")).json()["tasks"][0]["runs"]
        for place in (f"/jobs/{job}", f"/trace/{run['trace_id']}"):
            assert (f'href="/models/{name}"' in (await web.get(place)).text) is linked, place


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        ({}, "Choose a model"),
        ({"model": "m"}, "Choose the tasks."),
        ({"model": "absent", "path": "/"}, "There is no model"),
        ({"model": "m", "checkpoint": "step-9", "path": "/"}, "has no checkpoint"),
        ({"model": "m", "path": "/", "max_turns": "many"}, "max_turns"),
        ({"model": "m", "path": "/does/not/exist"}, "There is no file"),
    ],
)
async def test_what_is_wrong_is_said_above_the_form(platform, web, sent, sentence):
    make_model(platform)
    answer = await web.post("/jobs", data=sent)
    assert answer.status_code == 400
    assert sentence in answer.text
    assert "<form" in answer.text
    if sent.get("model") == "m":
        assert "<option selected>m</option>" in answer.text


async def test_only_who_may_run_evaluates(keyed):
    make_model(keyed, team=Teams(keyed.store).default().id)
    async with sign_in(keyed, "read") as client:
        assert (await client.get("/jobs/new")).status_code == 403
        assert (await client.post("/jobs", data={"model": "m"})).status_code == 403
        assert "/jobs/new" not in (await client.get("/jobs")).text
    other = Teams(keyed.store).find_or_create("other").id
    async with sign_in(keyed, "run", team=other) as client:
        answer = await client.post("/jobs", data={"model": "m", "taskset": "x"})
        assert "There is no model" in answer.text


async def test_a_job_s_runs_are_exported_as_the_command_does(platform, web):
    trace = told(platform, "What is 2 + 2?", "4", final="4")
    run = records.find_run(platform.store, LOCAL_TEAM, trace)
    page = (await web.get(f"/jobs/{run['job_id']}")).text
    assert f'href="/jobs/{run["job_id"]}/trajectories.jsonl"' in page
    answer = await web.get(f"/jobs/{run['job_id']}/trajectories.jsonl")
    assert answer.headers["content-disposition"].startswith("attachment")
    (line,) = answer.text.splitlines()
    found = orjson.loads(line)
    assert (found["trace_id"], found["prompt"], found["answer"]) == (trace, "What is 2 + 2?", "4")
    recorded = (await web.get(f"/v2/trace/{trace}/full")).json()
    job = records.find_job(platform.store, LOCAL_TEAM, run["job_id"])
    assert f"{line}\n".encode() == trajectory_line(recorded["run"], recorded["trace"], job)


@pytest.mark.slow
async def test_an_export_has_every_run_of_a_large_job(platform, web):
    job = record(platform, "large", {f"t{n}": [0.0, 1.0] for n in range(120)})
    lines = (await web.get(f"/jobs/{job}/trajectories.jsonl")).text.splitlines()
    assert len({orjson.loads(line)["trace_id"] for line in lines}) == 240


async def test_another_team_s_runs_are_not_exported(keyed):
    theirs = Teams(keyed.store).find_or_create("other").id
    job = record(keyed, "theirs", {"a": [1.0]}, team=theirs)
    async with sign_in(keyed, "read") as client:
        assert (await client.get(f"/jobs/{job}/trajectories.jsonl")).status_code == 404
