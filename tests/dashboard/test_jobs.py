"""The list of jobs: what it shows, filters, sorts, and keeps from other teams."""

import pytest
from tests.dashboard.conftest import sign_in
from tests.dashboard.recorded import record
from tests.dashboard.test_train import make_model, score

from hud.trace import new_id
from hud_platform.access.teams import Teams
from hud_platform.training.runs import TrainingRuns

DAY = 86_400


async def names(web, query=""):
    return [job["name"] for job in (await web.get(f"/jobs.json{query}")).json()["items"]]


async def test_a_job_is_shown_with_its_numbers(web, platform):
    checkpoint = new_id()
    record(
        platform,
        "triage · tiny",
        {"a": [1.0, 0.0], "b": [1.0, 1.0], "c": [{"reward": None, "failure_kind": "environment"}]},
        checkpoint=checkpoint,
    )
    (job,) = (await web.get("/jobs.json")).json()["items"]
    assert (job["runs"], job["graded"], job["failed"], job["running"]) == (5, 4, 1, 0)
    assert job["reward"] == 0.75
    assert job["low"] <= 0.75 <= job["high"]
    assert job["spread"] == pytest.approx(0.25)
    assert (job["prompt_tokens"], job["completion_tokens"]) == (4500, 500)
    assert job["cost_usd"] == pytest.approx(0.05)
    assert job["seconds"] == pytest.approx(60, abs=1)
    assert (job["models"], job["checkpoints"]) == (["tiny"], [checkpoint])
    page = (await web.get("/jobs")).text
    for shown in ("triage · tiny", "0.750", "[0.010, 0.999]", "completed", checkpoint[:8]):
        assert shown in page


async def test_the_list_shows_failed_tool_calls_and_is_sorted_by_them(web, platform):
    for name, failed in (("few", 1), ("many", 4)):
        extra = {"tool_calls": {"calls": 5, "error": failed - 1, "time-out": 1}}
        record(platform, name, {"a": [{"reward": 1.0, "extra": extra}]})
    record(platform, "none", {"a": [1.0]})
    (job, *_) = (await web.get("/jobs.json?sort=-failed_calls")).json()["items"]
    assert (job["tool_calls"], job["tool_errors"], job["tool_time_outs"]) == (5, 3, 1)
    assert (await names(web, "?sort=-failed_calls"))[:2] == ["many", "few"]
    page = (await web.get("/jobs")).text
    assert 'title="Of 5 tool calls: 3 errors, 1 time-outs">4</td>' in page
    assert "Failed calls" not in (await web.get("/jobs?text=none")).text


@pytest.mark.slow
async def test_one_title_of_a_job_is_shown_wherever_it_is_named(web, platform):
    task = {"env": "tickets", "id": "route", "args": {}}
    kept = [record(platform, f"{name} training", {"a": [0.5]}, task=task) for name in "xy"]
    title = "tickets · x training"
    trace = (await web.get(f"/jobs/{kept[0]}.json")).json()["tasks"][0]["runs"][0]["trace_id"]
    compared = f"/jobs/compare?job={kept[0]}&job={kept[1]}"
    for place in ("/jobs", f"/jobs/{kept[0]}", compared, f"/trace/{trace}"):
        assert title in (await web.get(place)).text, place
    assert "tickets · y training" in (await web.get("/environments")).text
    listed = (await web.get("/v2/jobs")).json()["items"]
    assert {job["title"] for job in listed} == {title, "tickets · y training"}


async def test_a_job_in_progress_is_shown_with_the_number_of_its_planned_runs(web, platform):
    job = record(platform, "tea", {"a": [1.0, 0.5], "b": [None]}, open_job=True, planned=40)
    (shown,) = (await web.get("/jobs.json")).json()["items"]
    assert (shown["over"], shown["running"], shown["planned"]) == (2, 1, 40)
    assert "Of 40 planned runs, 2 are over and 1 have started" in (await web.get("/jobs")).text
    assert '2<span class="muted"> of 40</span>' in (await web.get(f"/jobs/{job}")).text


async def test_a_job_whose_plan_is_unknown_is_shown_with_the_runs_that_began(web, platform):
    record(platform, "of an older client", {"a": [1.0, None]}, open_job=True)
    (shown,) = (await web.get("/jobs.json")).json()["items"]
    assert (shown["over"], shown["planned"]) == (1, 2)


async def test_runs_of_a_job_that_is_over_are_over_whatever_they_were_recorded_as(web, platform):
    record(platform, "crashed", {"a": [1.0, None, None]}, planned=4)
    (shown,) = (await web.get("/jobs.json")).json()["items"]
    assert (shown["running"], shown["over"], shown["planned"]) == (0, 3, 4)


async def test_pass_at_k_says_over_how_many_tasks(web, platform):
    lost = {"reward": None, "failure_kind": "environment"}
    job = record(platform, "lost", {"a": [1.0, 0.0], "b": [1.0, lost], "c": [lost, lost]})
    numbers = (await web.get(f"/jobs/{job}.json")).json()["numbers"]
    assert (numbers["tasks"], numbers["tasks_with_1"], numbers["tasks_with_k"]) == (3, 2, 1)
    page = (await web.get(f"/jobs/{job}")).text
    assert "2 of 3 tasks" in page
    assert "1 of 3 tasks" in page


@pytest.mark.slow
async def test_jobs_are_filtered_by_what_one_remembers_of_them(web, platform):
    at = new_id()
    first, second = new_id(), new_id()
    old = record(platform, "letters", {"a": [0.0]}, model="big", checkpoint=first, age=9 * DAY)
    record(platform, "triage", {"a": [1.0]}, checkpoint=second, taskset_id=at, age=DAY)
    record(platform, "50% more", {"a": [0.5, None]}, open_job=True)
    assert await names(web) == ["50% more", "triage", "letters"]
    assert await names(web, "?model=big") == ["letters"]
    assert await names(web, f"?model=tiny&checkpoint={second}") == ["triage"]
    assert await names(web, f"?taskset={at}") == ["triage"]
    assert await names(web, "?status=running") == ["50% more"]
    assert await names(web, "?status=completed") == ["triage", "letters"]
    assert await names(web, "?text=LETT") == ["letters"]
    assert await names(web, "?text=0%25") == ["50% more"]
    assert await names(web, f"?text={old[:8]}") == ["letters"]
    newest = (await web.get("/jobs.json")).json()["items"][0]["created_at"][:10]
    assert await names(web, f"?since={newest}") == ["50% more"]
    assert "letters" in await names(web, f"?until={newest}")
    assert await names(web, "?model=nobody") == []
    assert "No job matches." in (await web.get("/jobs?model=nobody")).text


async def test_jobs_are_sorted_by_any_measure(web, platform):
    record(platform, "cheap", {"a": [0.2]}, age=300)
    record(platform, "dear", {"a": [0.9, 0.9, 0.9]}, age=200)
    record(platform, "empty", {}, age=100)
    assert await names(web, "?sort=-reward") == ["dear", "cheap", "empty"]
    assert await names(web, "?sort=reward") == ["cheap", "dear", "empty"]
    for measure in ("runs", "tokens", "cost"):
        assert (await names(web, f"?sort=-{measure}"))[:2] == ["dear", "cheap"]
    assert await names(web, "?sort=name") == ["cheap", "dear", "empty"]
    assert (await web.get("/jobs?sort=nothing")).status_code == 400
    assert 'aria-sort="descending"' in (await web.get("/jobs?sort=-reward")).text


async def test_jobs_are_sorted_by_the_spread_of_their_rewards(web, platform):
    record(platform, "once", {"a": [1.0], "b": [0.0]}, age=500)
    record(platform, "wide", {"a": [1.0, 0.0], "b": [1.0, 0.0]}, age=400)
    record(platform, "same", {"a": [0.3] * 3, "b": [0.7] * 3}, age=300)
    # Its tasks are far apart, which is no spread; what was not measured is none either.
    record(platform, "some", {"a": [1.0, 0.5, None], "b": [0.1, 0.1], "c": [0.9]}, age=200)
    assert await names(web, "?sort=-spread") == ["wide", "some", "same", "once"]
    assert await names(web, "?sort=spread") == ["same", "some", "wide", "once"]
    shown = (await web.get("/jobs.json?sort=-spread")).json()["items"]
    assert [job["spread"] for job in shown] == pytest.approx([0.5, 0.125, 0, None], abs=1e-6)
    page = (await web.get("/jobs?sort=-spread")).text
    assert page.count('aria-sort="descending"') == 1
    assert 'href="/jobs?sort=spread"' in page


async def test_many_jobs_are_paged(web, platform):
    for number in range(30):
        record(platform, f"job {number}", {}, age=100 - number)
    first = (await web.get("/jobs.json")).json()
    assert (first["total"], len(first["items"])) == (30, 25)
    assert await names(web, "?offset=25") == [f"job {number}" for number in range(4, -1, -1)]
    assert "offset=25" in (await web.get("/jobs?text=job")).text


async def test_a_job_whose_process_died_is_interrupted(web, platform, monkeypatch):
    record(platform, "left", {"a": [1.0, None]}, open_job=True)
    monkeypatch.setattr("hud_platform.store.job_status.process_lives", lambda *_: False)
    (job,) = (await web.get("/jobs.json")).json()["items"]
    assert job["status"] == "interrupted"
    assert await names(web, "?status=interrupted") == ["left"]
    assert await names(web, "?status=running") == []


async def test_the_jobs_of_another_team_are_nobodys(keyed):
    ours = Teams(keyed.store).default().id
    theirs = Teams(keyed.store).find_or_create("others").id
    job = record(keyed, "secret", {"a": [1.0]}, model="unseen-model", team=theirs)
    mine = record(keyed, "mine", {"a": [1.0]}, team=ours)
    async with sign_in(keyed, "read") as web:
        assert await names(web) == ["mine"]
        assert "unseen-model" not in (await web.get("/jobs")).text
        for path in (f"/jobs/{job}", f"/jobs/compare?job={job}&job={mine}", f"/events/jobs/{job}"):
            assert (await web.get(path)).status_code == 404


async def test_hostile_names_are_text(web, platform):
    name = "<script>alert(1)</script>\u202egnp\x00" + "x" * 100_000
    job = record(platform, name, {"<img src=x onerror=alert(2)>": [0.5, 1.0]}, model='"><b>')
    for path in ("/jobs", f"/jobs/{job}", f"/jobs/{job}?task=%3Cimg%20src=x%20onerror=alert(2)%3E"):
        page = (await web.get(path)).text
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert '"><b>' not in page
        assert "\u202e" not in page
        assert len(page) < 100_000


async def test_a_job_whose_every_run_failed_is_shown_as_failed_and_found_as_such(web, platform):
    fault = {"reward": None, "status": "error", "failure_kind": "grader", "error": "x"}
    agents = {"reward": 0.0, "status": "error", "failure_kind": "agent", "error": "x"}
    job = record(platform, "all failed", {"a": [fault, agents], "b": [fault]})
    record(platform, "some failed", {"a": [fault, 1.0]})
    record(platform, "empty", {})
    states = {one["name"]: one["status"] for one in (await web.get("/jobs.json")).json()["items"]}
    assert states == {"all failed": "failed", "some failed": "completed", "empty": "completed"}
    assert (await web.get(f"/v2/jobs/{job}")).json()["status"] == "failed"
    assert '<span class="badge failed">' in (await web.get(f"/jobs/{job}")).text
    assert await names(web, "?status=failed") == ["all failed"]
    assert sorted(await names(web, "?status=completed")) == ["empty", "some failed"]


async def test_held_out_and_subagent_jobs_are_folded_under_what_they_belong_to(platform, web):
    evaluated = record(platform, "Evening", {"a": [1.0]})
    trained = record(platform, "m training", {"a": [0.5]}, purpose="training")
    held_out = record(platform, "m held-out step 1", {"h": [0.5]}, purpose="held_out")
    called = record(
        platform, "solver, called in job x", {"s": [0.5]}, purpose="subagent", called_by=trained
    )
    model = make_model(platform)
    runs = TrainingRuns(platform.store, model.team_id)
    state = {"jobs": [trained], "scores": [score(1, 0.5, job_id=held_out)]}
    run = runs.start(model.id, {"model": "m", "steps": 2}, state)

    async def listed(**query):
        return (await web.get("/jobs.json", params=query)).json()

    first = await listed()
    assert {job["id"]: job["purpose"] for job in first["items"]} == {
        evaluated: "evaluation",
        trained: "training",
    }
    assert first["folded"] == {"held_out": 1, "subagent": 1}
    assert {job["id"]: (job["run"], job["folded"]) for job in first["items"]} == {
        evaluated: (None, {}),
        trained: (run["id"], {"held_out": 1, "subagent": 1}),
    }
    under = await listed(under=trained)
    assert ({job["id"] for job in under["items"]}, under["folded"]) == ({held_out, called}, {})
    assert [job["id"] for job in (await listed(purpose="held_out"))["items"]] == [held_out]
    assert {job["id"] for job in (await listed(purpose="all"))["items"]} == {
        evaluated, trained, held_out, called,
    }  # fmt: skip
    page = (await web.get("/jobs")).text
    assert f'href="/train/{run["id"]}"' in page
    assert "1 held_out" not in page
    assert "1 held-out and 1 subagent" in " ".join(page.split())
    assert f'href="/jobs?under={trained}" title="1 held-out, 1 subagent">2 more jobs</a>' in page


async def test_a_training_run_is_one_row_however_often_it_was_resumed(platform, web):
    model = make_model(platform)
    runs = TrainingRuns(platform.store, model.team_id)
    first = record(platform, "m training", {"a": [0.5]}, purpose="training", age=60)
    run = runs.start(model.id, {"model": "m", "steps": 2}, {"jobs": [first]})
    # A job may reach the store after the report that names it.
    second = new_id()
    runs.change(run["id"], None, {"jobs": [first, second]})
    record(platform, "m training", {"a": [1.0]}, purpose="training", job=second)
    runs.report(run["id"], 0, {}, 1, None)
    caller = record(platform, "Evening", {"a": [1.0]})
    record(platform, "solver", {"s": [0.5]}, purpose="subagent", called_by=caller)
    shown = (await web.get("/jobs.json")).json()
    assert {job["id"]: (job["run"], job["folded"]) for job in shown["items"]} == {
        second: (run["id"], {"training": 1}),
        caller: (None, {"subagent": 1}),
    }
    assert shown["folded"] == {"training": 1, "subagent": 1}
    under = (await web.get(f"/jobs.json?under={second}")).json()
    assert [job["id"] for job in under["items"]] == [first]
    assert f'href="/train/{run["id"]}"' in (await web.get(f"/jobs/{first}")).text
