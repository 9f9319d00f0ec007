"""Jobs and environments are named by the environment of the runs, also where it is a file of this machine."""

from tests.dashboard.recorded import record
from tests.dashboard.test_models import made
from tests.dashboard.test_train import make_model

from hud import Environment
from hud.client.recording import MemoryRecorder
from hud.eval import Taskset
from hud.trace import new_id
from hud_platform.store.ingest import ingest
from hud_platform.store.tables import LOCAL_TEAM

env = Environment("arithmetic")


@env.template()
async def power(base: int):
    answer = yield f"What is the square of {base}?"
    yield float(answer == str(base**2))


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


async def test_tasksets_that_were_played_from_files_are_listed(platform, web):
    record(platform, "old", {"a": [0.5], "b": [0.5]}, task=POWER, taskset="powers", age=9)
    newest = record(platform, "new", {"b": [0.5], "c": [1.0]}, task=POWER, taskset="powers", age=5)
    other = {**POWER, "env": "algebra"}
    record(platform, "a namesake", {"a": [0.5]}, task=other, taskset="powers", age=7)
    record(platform, "of the platform", {"a": [0.5]}, task=POWER, taskset="p", taskset_id=new_id())
    record(platform, "of an older client", {"a": [0.5]}, task=POWER)
    first, second = (await web.get("/tasksets.json")).json()["played"]
    assert (first["name"], first["environment"], first["job_id"]) == (
        "powers",
        "arithmetic",
        newest,
    )
    assert (first["tasks"], first["jobs"], first["job"]) == (3, 2, "arithmetic · new")
    assert (second["environment"], second["tasks"]) == ("algebra", 1)
    page = (await web.get("/tasksets")).text
    assert "Played from files" in page
    assert f'href="/jobs/{newest}"' in page


async def test_a_taskset_from_a_file_has_a_page_of_its_tasks_over_models(platform, web):
    record(platform, "old", {"a": [0.0, 1.0], "b": [0.5]}, task=POWER, taskset="powers", model="first", age=9)  # fmt: skip
    record(platform, "new", {"a": [1.0]}, task=POWER, taskset="powers", model="second", age=5)
    record(platform, "t", {"a": [0.0]}, task=POWER, taskset="powers", model="second", purpose="training")  # fmt: skip
    query = {"name": "powers", "environment": "arithmetic"}
    shown = (await web.get("/tasksets/played.json", params=query)).json()
    assert [policy["model"] for policy in shown["policies"]] == ["second", "first"]
    assert (shown["jobs"], shown["tasks"]) == (2, 2)
    first, second = shown["items"]
    assert [(cell["mean"], cell["runs"]) for cell in first["by_policy"]] == [(1.0, 1), (0.5, 2)]
    assert second["by_policy"][0] is None
    page = (await web.get("/tasksets/played", params=query)).text
    assert f'href="/trace/{first["by_policy"][0]["trace_id"]}"' in page
    assert (
        "/tasksets/played?name=powers&amp;environment=arithmetic"
        in (await web.get("/tasksets")).text
    )
    absent = await web.get("/tasksets/played.json", params={**query, "name": "x"})
    assert absent.status_code == 404


async def test_its_page_keeps_checkpoints_apart(platform, web):
    model = make_model(platform)
    node = made(platform, model, 5)
    played = {"task": POWER, "taskset": "powers", "model": model.slug}
    record(platform, "before", {"a": [0.0, 0.0]}, **played, age=9)
    stumbled = {"reward": 0.0, "failure_kind": "agent", "turns": 0, "checkpoint": None}
    record(platform, "after", {"a": [1.0, stumbled]}, checkpoint=node, **played, age=5)
    query = {"name": "powers", "environment": "arithmetic"}
    shown = (await web.get("/tasksets/played.json", params=query)).json()
    after, before = shown["policies"]
    assert (after["checkpoint"], before["checkpoint"], before["name"]) == (node, None, "base")
    (task,) = shown["items"]
    assert [(cell["mean"], cell["runs"]) for cell in task["by_policy"]] == [(0.5, 2), (0.0, 2)]
    page = (await web.get("/tasksets/played", params=query)).text
    assert ">base</span>" in page
    assert f">{after['name']}</span>" in page


async def test_an_evaluation_from_a_file_records_the_name_of_its_taskset(platform, web):
    recorder = MemoryRecorder()
    tasks = Taskset("powers", [power(base=2)])
    await tasks.run(lambda run: "4", recorder=recorder)
    assert not ingest(platform.store, recorder.take(), LOCAL_TEAM).damaged
    (one,) = (await web.get("/tasksets.json")).json()["played"]
    assert (one["name"], one["environment"], one["tasks"]) == ("powers", "arithmetic", 1)
