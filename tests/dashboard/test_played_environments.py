"""Jobs and environments are named by the environment of the runs, also where it is a file of this machine."""

from tests.dashboard.recorded import record

POWER = {"env": "arithmetic", "id": "power", "args": {"base": 2}}


async def test_a_job_is_named_by_its_environment_and_its_purpose(platform, web):
    training = record(platform, "tiny training", {"a": [0.5]}, task=POWER, age=9)
    evaluation = record(platform, "arithmetic · tiny", {"a": [0.5]}, task=POWER, age=5)
    other = record(platform, "without tasks", {}, age=1)
    titles = {job["id"]: job["title"] for job in (await web.get("/jobs.json")).json()["items"]}
    assert titles == {
        training: "arithmetic · tiny training",
        evaluation: "arithmetic · tiny",
        other: "without tasks",
    }
    assert ">arithmetic · tiny training</a>" in (await web.get("/jobs")).text
    assert "<h1>arithmetic · tiny training</h1>" in (await web.get(f"/jobs/{training}")).text


async def test_environments_that_were_played_from_files_are_listed(platform, web):
    record(platform, "old", {"a": [0.5]}, task=POWER, age=9)
    newest = record(platform, "new", {"a": [0.5]}, task=POWER, age=5)
    (one,) = (await web.get("/environments.json")).json()["played"]
    assert (one["name"], one["jobs"], one["job_id"]) == ("arithmetic", 2, newest)
    page = (await web.get("/environments")).text
    assert "Played from files" in page
    assert f'href="/jobs/{newest}"' in page
