"""Tasksets keep what was uploaded, field for field, and their history."""

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hud.trace import new_id
from hud_platform.application import create_app
from hud_platform.process.config import PlatformConfig
from hud_platform.store import Store
from hud_platform.store.tables import LOCAL_TEAM
from hud_platform.tasksets.versions import Tasksets, row_of


@pytest.fixture
async def api(tmp_path):
    app = create_app(PlatformConfig(tmp_path))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://platform") as client:
        yield client
    app.state.parts.close()


def task(name="one", **more):
    return {"name": name, "env": {"name": "shop"}, "task_id": "buy", "args": {"n": 1}, **more}


async def upload(api, *tasks, name="mine", **more):
    body = {"taskset_name": name, "tasks": list(tasks), **more}
    return (await api.post("/v2/tasks/upload", json=body)).json()


async def test_an_upload_makes_the_taskset_and_counts_what_changed(api):
    first = await upload(api, task("a"), task("b"))
    assert (first["tasks_created"], first["tasks_updated"]) == (2, 0)
    again = await upload(api, task("a"), task("b", args={"n": 2}), task("c"))
    assert (again["tasks_created"], again["tasks_updated"]) == (1, 1)
    assert again["taskset_id"] == first["taskset_id"]
    found = (await api.get("/v2/tasksets/by-name/mine")).json()
    assert found["taskset_id"] == first["taskset_id"]
    exported = (await api.get(f"/v2/tasksets/{found['id']}/export")).json()
    assert [row["name"] for row in exported["tasks"]] == ["a", "b", "c"]
    assert exported["tasks"][1]["args"] == {"n": 2}


async def test_what_did_not_change_makes_no_version_and_older_versions_stay(api):
    first = await upload(api, task("a"))
    assert (await upload(api, task("a")))["version"] == first["version"] == 1
    await upload(api, task("a", args={"n": 5}), task("b"))
    place = f"/v2/tasksets/{first['taskset_id']}"
    old = (await api.get(f"{place}/export", params={"version": 1})).json()
    assert [(row["name"], row["args"]) for row in old["tasks"]] == [("a", {"n": 1})]
    history = (await api.get(f"{place}/versions")).json()["items"]
    assert [(entry["version"], entry["tasks"]) for entry in history] == [
        (2, ["a", "b"]),
        (1, ["a"]),
    ]


async def test_names_may_hold_anything(api):
    name = "a/b c?ü"
    made = await upload(api, task(), name=name)
    found = await api.get("/v2/tasksets/by-name/a%2Fb%20c%3F%C3%BC")
    assert found.json()["taskset_id"] == made["taskset_id"]


async def test_what_is_not_there_is_404_and_what_is_taken_409(api):
    assert (await api.get("/v2/tasksets/by-name/none")).status_code == 404
    assert (await api.get(f"/v2/tasksets/{new_id()}/export")).status_code == 404
    made = (await api.post("/v2/tasksets", json={"name": "x"})).json()
    assert made["can_edit"] is True
    assert (await api.post("/v2/tasksets", json={"name": "x"})).status_code == 409
    assert (await api.get(f"/v2/tasksets/{made['id']}")).json()["name"] == "x"


async def test_every_wrong_row_is_named_on_a_line_of_its_own(api):
    answer = await upload(
        api, task("a"), task("a"), {"name": ""}, task("b", env=None), task("c", task_id=None)
    )
    lines = answer["detail"].split("\n")
    assert len(lines) == 4
    assert any("names no environment" in line for line in lines)
    assert (await api.get("/v2/tasksets/by-name/mine")).status_code == 404


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
def test_rows_come_back_as_they_were(tmp_path):
    store = Store.open(tmp_path)
    sets = Tasksets(store, LOCAL_TEAM)

    @given(
        args=st.dictionaries(st.text(), json_values, max_size=4),
        columns=st.none() | st.dictionaries(st.text(), json_values, max_size=3),
        runtime=st.none() | st.dictionaries(st.text(), json_values, max_size=3),
    )
    def round_trip(args, columns, runtime):
        row = row_of(task(args=args, columns=columns, runtime_config=runtime))
        sets.upload("t", [row], taskset_id=None, project_id=None)
        (kept,) = sets.export("t")["tasks"]
        assert kept == row
        assert sets.upload("t", [row], taskset_id=None, project_id=None)["tasks_updated"] == 0

    round_trip()
    store.close()


def test_a_team_sees_its_own_only(tmp_path):
    store = Store.open(tmp_path)
    mine, theirs = Tasksets(store, LOCAL_TEAM), Tasksets(store, new_id())
    made = mine.upload("t", [row_of(task())], taskset_id=None, project_id=None)
    assert theirs.page(None, 10, 0) == ([], 0)
    other = theirs.upload("t", [], taskset_id=None, project_id=None)
    assert other["taskset_id"] != made["taskset_id"]
    store.close()
