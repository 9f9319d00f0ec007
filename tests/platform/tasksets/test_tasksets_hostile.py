"""Uploads that race, that are not quite JSON, or that differ only in what Python calls equal."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from hud_platform.application import create_app
from hud_platform.process.config import PlatformConfig
from hud_platform.store import Store
from hud_platform.store.tables import LOCAL_TEAM
from hud_platform.tasksets.versions import Tasksets, row_of


@pytest.fixture
async def api(tmp_path):
    app = create_app(PlatformConfig(tmp_path))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://platform") as client:
        yield client
    app.state.parts.close()


def task(name="one", **more):
    return {"name": name, "env": {"name": "shop"}, "task_id": "buy", "args": {"n": 1}, **more}


async def upload(api, *tasks, **more):
    # Python's own JSON says more than JSON can: NaN, halves of characters.
    body = json.dumps({"taskset_name": "mine", "tasks": list(tasks), **more})
    headers = {"content-type": "application/json"}
    return await api.post("/v2/tasks/upload", content=body, headers=headers)


@pytest.mark.parametrize(
    ("first", "second"), [(1, 1.0), (1, True), (0, False), (0.0, -0.0), ("1", 1), ([], None)]
)
async def test_equal_in_python_is_not_equal_in_json(api, first, second):
    """Clients compare the text: what they find different after an upload, they upload again for ever."""
    await upload(api, task(args={"n": first}))
    assert (await upload(api, task(args={"n": second}))).json()["tasks_updated"] == 1
    exported = await api.get("/v2/tasksets/mine/export")
    assert f'"n":{json.dumps(second)}' in exported.text.replace(" ", "")


async def test_the_order_of_keys_is_no_change_and_the_order_of_lists_is(api):
    await upload(api, task(args={"a": 1, "b": [1, 2]}))
    assert (await upload(api, task(args={"b": [1, 2], "a": 1}))).json()["tasks_updated"] == 0
    assert (await upload(api, task(args={"a": 1, "b": [2, 1]}))).json()["tasks_updated"] == 1


async def test_numbers_of_any_length_come_back(api):
    long = {"n": 2**80, "m": -(2**64) - 1, "tiny": 5e-324, "huge": 1.7976931348623157e308}
    assert (await upload(api, task(args=long))).status_code == 200
    exported = json.loads((await api.get("/v2/tasksets/mine/export")).text)
    assert exported["tasks"][0]["args"] == long


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (task(args={"x": float("nan")}), "'one'"),
        (task(columns={"x": float("inf")}), "'one'"),
        (task(args={"x": "\ud800"}), "'one'"),
        (task(args={"\ud800": 1}), "'one'"),
        (task(args=[1]), "not an object"),
        (task(args=[]), "not an object"),
        (task(name={}), "no name"),
        (task(name=["a"]), "no name"),
        (task(name="a\0b"), "a\\x00b"),
        (task(env={"name": {}}), "no environment"),
        (task(task_id=7), "no task_id"),
    ],
)
async def test_what_cannot_be_kept_as_it_is_is_refused_by_name(api, row, said):
    answer = await upload(api, task("good"), row)
    assert answer.status_code == 400
    (line,) = answer.json()["detail"].split("\n")
    assert said in line
    assert (await api.get("/v2/tasksets/by-name/mine")).status_code == 404


@pytest.mark.parametrize("name", ["", " ", "\ud800", "a\0b"])
async def test_names_that_are_none(api, name):
    assert (await upload(api, task(), taskset_name=name)).status_code == 400
    body = json.dumps({"name": name})
    made = await api.post(
        "/v2/tasksets", content=body, headers={"content-type": "application/json"}
    )
    assert made.status_code == 400
    assert (await api.get("/v2/tasksets")).json()["total"] == 0


@pytest.mark.parametrize("project", ["not-an-id", "5f2b" * 8, "\ud800", "a\0"])
async def test_a_project_that_is_not_there_makes_nothing(api, project):
    assert (await upload(api, task(), project_id=project)).status_code == 404
    assert (await api.get("/v2/tasksets")).json() | {"items": []} == {
        "items": [],
        "total": 0,
        "limit": 100,
        "offset": 0,
    }


async def test_a_project_that_is_there_is_kept(api):
    (project,) = (await api.get("/v2/projects")).json()["items"]
    await upload(api, task(), project_id=project["id"])
    (taskset,) = (await api.get("/v2/tasksets")).json()["items"]
    assert taskset["project_id"] == project["id"]


@pytest.mark.parametrize(
    "path",
    [
        f"/v2/tasksets?offset={10**30}",
        f"/v2/tasksets/mine/export?version={10**30}",
        "/v2/tasksets/by-name/%00",
        "/v2/tasksets/%00/export",
        "/v2/tasksets?search=%00",
        f"/v2/registry?offset={10**30}",
        "/v2/registry/%00",
        "/v2/registry?search=%C3%89",
    ],
)
async def test_odd_questions_are_no_fault_of_the_server(api, path):
    await upload(api, task())
    assert (await api.get(path)).status_code < 500


async def test_a_search_for_what_no_name_can_hold_finds_nothing(api):
    answer = await api.get("/v2/registry", params={"search": "É"})
    assert (answer.status_code, answer.json()["total"]) == (200, 0)
    assert (await api.get("/v2/registry/É")).status_code == 404


@pytest.mark.slow
def test_uploads_at_once_lose_nothing(tmp_path):
    store = Store.open(tmp_path)
    sets = Tasksets(store, LOCAL_TEAM)

    def send(client):
        for number in range(8):
            rows = [
                row_of(task(f"{client}-{number}")),
                row_of(task("shared", args={"by": [client, number]})),
            ]
            sets.upload("busy", rows, taskset_id=None, project_id=None)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(send, range(4)))
    assert len(sets.export("busy")["tasks"]) == 4 * 8 + 1
    assert sets.find("busy")["version"] == len(sets.versions("busy")) == 4 * 8
    store.close()


def test_an_id_wins_over_a_name_that_looks_like_one(tmp_path):
    store = Store.open(tmp_path)
    sets = Tasksets(store, LOCAL_TEAM)
    first = sets.create("first", None)
    sets.create(first["id"], None)
    assert sets.find(first["id"])["name"] == "first"
    store.close()
