"""Tasksets: rows with their difficulty over models, edited with the environment's checks, in versions."""

import json
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from tests.dashboard.conftest import sign_in

from hud.trace import new_id, plain
from hud_platform.access.teams import Teams
from hud_platform.environments.registry import Environments
from hud_platform.store import tables
from hud_platform.store.tables import LOCAL_TEAM
from hud_platform.tasksets.versions import Tasksets, row_of

DEEP = json.loads("[" * 240 + "]" * 240)
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


def task(name, n=1, **more):
    return {"name": name, "env": "shop", "task_id": "buy", "args": {"n": n}, **more}


def upload(store, *tasks, team=LOCAL_TEAM, name="fruit"):
    rows = [row_of(one) for one in tasks]
    return Tasksets(store, team).upload(name, rows, taskset_id=None, project_id=None)["taskset_id"]


def know_environment(store, team=LOCAL_TEAM):
    """An environment of which a build says what its tasks take."""
    environment = Environments(store, team).find_or_create("shop", None)
    manifest = {"name": "shop", "tasks": [{"id": "buy", "args": SCHEMA}], "capabilities": []}
    row = {"id": new_id(), "team_id": team, "environment_id": environment, "status": "SUCCEEDED"}
    more = {"version": 1, "manifest": manifest, "folder": "/gone", "options": {"name": "shop"}}
    with store.begin() as connection:
        connection.execute(
            sa.insert(tables.builds).values(**row, **more, created_at=datetime.now(UTC))
        )


def record(store, taskset, slug, model, *rewards, team=LOCAL_TEAM):
    now, job = datetime.now(UTC), new_id()
    common = {"team_id": team, "status": "completed"}
    with store.begin() as connection:
        connection.execute(
            sa.insert(tables.jobs).values(
                **common, id=job, name=model, taskset_id=plain(taskset), extra={}, created_at=now
            )
        )
        for reward in rewards:
            run = {"trace_id": new_id(), "job_id": job, "slug": slug, "model": model}
            connection.execute(
                sa.insert(tables.runs).values(
                    **common, **run, reward=reward, started_at=now, ended_at=now
                )
            )


def form(name="one", **changed):
    return {"name": name, "env": "shop", "task": "buy", "args": '{"n": 1}', **changed}


@pytest.mark.slow
async def test_tasksets_are_listed_with_their_rows_and_found_by_name(web, platform):
    upload(platform.store, task("one"), task("two"))
    upload(platform.store, task("three"), name="letters")
    items = (await web.get("/tasksets.json")).json()["items"]
    assert {item["name"]: item["rows"] for item in items} == {"fruit": 2, "letters": 1}
    page = (await web.get("/tasksets?search=lett")).text
    assert "letters" in page
    assert "fruit" not in page


async def test_an_empty_platform_says_how_a_taskset_comes_there(web):
    assert "hud sync tasks" in (await web.get("/tasksets")).text


async def test_rows_say_how_hard_they_are_and_for_whom(web, platform):
    taskset = upload(platform.store, task("easy"), task("hard"), task("new"))
    record(platform.store, taskset, "easy", "small", 1.0, 0.0)
    record(platform.store, taskset, "easy", "big", 1.0, 1.0)
    record(platform.store, taskset, "hard", "small", 0.0, 0.0)
    record(platform.store, taskset, "hard", "human", 1.0)
    data = (await web.get(f"/tasksets/{taskset}.json")).json()
    rows = {row["name"]: row for row in data["items"]}
    assert (rows["easy"]["runs"], rows["easy"]["mean"]) == (4, 0.75)
    assert rows["easy"]["spread"] == pytest.approx(0.25)
    assert rows["easy"]["solved_by"] == ["big", "small"]
    assert rows["hard"]["solved_by"] == ["human"]
    assert (rows["new"]["runs"], rows["new"]["mean"]) == (0, None)
    assert data["models"][0] == "human"
    assert (await web.get(f"/tasksets/{taskset}")).status_code == 200


async def test_rows_are_sorted_by_difficulty_and_what_was_never_run_comes_last(web, platform):
    taskset = upload(platform.store, task("new"), task("hard"), task("easy"))
    record(platform.store, taskset, "easy", "m", 1.0)
    record(platform.store, taskset, "hard", "m", 0.0)

    async def order(sort):
        data = (await web.get(f"/tasksets/{taskset}.json?sort={sort}")).json()
        return [row["name"] for row in data["items"]]

    assert await order("") == ["new", "hard", "easy"]
    assert await order("mean") == ["hard", "easy", "new"]
    assert await order("-mean") == ["easy", "hard", "new"]
    assert await order("-name") == ["new", "hard", "easy"]


async def test_what_runs_came_to_since_one_looked_is_seen_at_once(web, platform):
    taskset = upload(platform.store, task("one"), task("two"))
    record(platform.store, taskset, "one", "big", 0.0, None)

    async def shown():
        items = (await web.get(f"/tasksets/{taskset}.json?sort=-mean")).json()["items"]
        return [(item["name"], item["runs"], item["mean"], item["solved_by"]) for item in items]

    def change(**values):
        with platform.store.begin() as connection:
            connection.execute(sa.update(tables.runs).values(**values))

    assert await shown() == [("one", 1, 0.0, []), ("two", 0, None, [])]
    record(platform.store, taskset, "two", "small", 0.5)
    assert await shown() == [("two", 1, 0.5, []), ("one", 1, 0.0, [])]
    change(reward=1.0)
    assert await shown() == [("one", 2, 1.0, ["big"]), ("two", 1, 1.0, ["small"])]
    change(slug="two", ended_at=datetime(2100, 1, 1, tzinfo=UTC))
    assert await shown() == [("two", 3, 1.0, ["big", "small"]), ("one", 0, None, [])]
    other = upload(platform.store, task("two"), name="letters")
    with platform.store.begin() as connection:
        connection.execute(sa.update(tables.jobs).values(taskset_id=plain(other)))
    assert await shown() == [("one", 0, None, []), ("two", 0, None, [])]


@pytest.mark.slow
async def test_runs_of_other_tasksets_and_teams_do_not_count(web, platform):
    taskset = upload(platform.store, task("one"))
    other = upload(platform.store, task("one"), name="other")
    record(platform.store, other, "one", "m", 1.0)
    record(platform.store, taskset, "one", "m", 1.0, team=new_id())
    data = (await web.get(f"/tasksets/{taskset}.json")).json()
    assert data["items"][0]["runs"] == 0


@pytest.mark.slow
async def test_a_row_shows_what_it_is_its_runs_and_what_it_was(web, platform):
    taskset = upload(platform.store, task("one", 1))
    upload(platform.store, task("one", 2))
    record(platform.store, taskset, "one", "m", 0.5)
    page = (await web.get(f"/tasksets/{taskset}/row?slug=one")).text
    assert "/trace/" in page
    data = (await web.get(f"/tasksets/{taskset}/row.json?slug=one")).json()
    assert data["row"]["args"] == {"n": 2}
    assert [(one["version"], one["row"]["args"]["n"]) for one in data["history"]] == [
        (2, 2),
        (1, 1),
    ]
    assert data["difficulty"]["models"]["m"]["mean"] == 0.5
    assert (await web.get(f"/tasksets/{taskset}/row?slug=none")).status_code == 404


# -- editing -----------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_taskset_is_made_and_rows_are_added_changed_renamed_and_removed(web, platform):
    made = await web.post("/tasksets", data={"name": "fruit"})
    place = made.headers["location"]
    saved = await web.post(f"{place}/rows", data=form("one"))
    assert saved.status_code == 303
    assert saved.headers["location"] == f"{place}/row?slug=one"
    await web.post(f"{place}/rows", data=form("two"))
    edit = (await web.get(f"{place}/edit.json?slug=one")).json()["given"]
    changed = form("first", args='{"n": 7}', replaces="one", seen=edit["seen"])
    await web.post(f"{place}/rows", data=changed)
    items = (await web.get(f"{place}.json")).json()["items"]
    assert [(item["name"], item["args"]["n"]) for item in items] == [("first", 7), ("two", 1)]
    gone = await web.post(f"{place}/remove", data={"slug": "first"})
    assert gone.headers["location"] == place
    exported = (await web.get(f"/v2{place}/export")).json()
    assert [row["name"] for row in exported["tasks"]] == ["two"]
    assert "was removed" in (await web.get(f"{place}/row?slug=first")).text
    before = (await web.get(f"/v2{place}/export?version=3")).json()
    assert [row["name"] for row in before["tasks"]] == ["first", "two"]

    from hud_platform.access import audit_log

    log, _ = audit_log.page(platform.store, LOCAL_TEAM, 10, 0)
    assert log[0]["details"]["change"] == "removed first"
    assert len(log) == 5


@pytest.mark.slow
async def test_a_removed_row_can_come_back(web, platform):
    taskset = upload(platform.store, task("one"), task("two"))
    await web.post(f"/tasksets/{taskset}/remove", data={"slug": "one"})
    upload(platform.store, task("one", 3))
    items = (await web.get(f"/tasksets/{taskset}.json")).json()["items"]
    assert [item["name"] for item in items] == ["two", "one"]


@pytest.mark.slow
async def test_big_numbers_of_a_row_stay_what_they_are(web, platform):
    taskset = upload(platform.store, task("one", 2**80))
    edit = (await web.get(f"/tasksets/{taskset}/edit.json?slug=one")).json()["given"]
    data = form("one", args=edit["args"], replaces="one", seen=edit["seen"])
    assert (await web.post(f"/tasksets/{taskset}/rows", data=data)).status_code == 303
    exported = Tasksets(platform.store, LOCAL_TEAM).export(taskset)
    assert exported["tasks"][0]["args"] == {"n": 2**80}
    assert (await web.get(f"/tasksets/{taskset}")).status_code == 200
    assert (await web.get(f"/tasksets/{taskset}/row?slug=one")).status_code == 200


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"name": ""}, "has no name"),
        ({"env": ""}, "names no environment"),
        ({"task": ""}, "has no task_id"),
        ({"args": "{"}, "The arguments are not JSON"),
        ({"args": "[1]"}, "The arguments must be a JSON object"),
        ({"args": '{"n": NaN}'}, "NaN is not a JSON value"),
        ({"rest": '{"color": 1}'}, "There is no field 'color'"),
        ({"name": "two"}, "There is already a task 'two'"),
        ({"task": "sell"}, "has no task 'sell'"),
        ({"args": '{"n": "three"}'}, "argument 'n': 'three' is not of type 'integer'"),
        ({"args": "{}"}, "'n' is a required property"),
    ],
)
async def test_what_is_wrong_with_a_row_is_a_sentence_and_nothing_changes(
    web, platform, wrong, sentence
):
    know_environment(platform.store)
    taskset = upload(platform.store, task("one"), task("two"))
    data = {**form("one"), "replaces": "one", **wrong}
    answer = await web.post(f"/tasksets/{taskset}/rows", data=data)
    assert answer.status_code == 422
    assert sentence in answer.text.replace("&#39;", "'")
    assert Tasksets(platform.store, LOCAL_TEAM).find(taskset)["version"] == 1


async def test_a_change_that_somebody_else_was_faster_with_is_told(web, platform):
    taskset = upload(platform.store, task("one", 1))
    upload(platform.store, task("one", 2))
    data = form("one", replaces="one", seen="1")
    answer = await web.post(f"/tasksets/{taskset}/rows", data=data)
    assert (answer.status_code, "was changed in the meantime" in answer.text) == (422, True)
    gone = await web.post(f"/tasksets/{taskset}/remove", data={"slug": "one", "seen": "1"})
    assert gone.status_code == 409


async def test_a_taskset_of_a_name_that_is_taken_is_refused_in_its_form(web, platform):
    upload(platform.store, task("one"))
    for name, sentence in (("fruit", "There is already a taskset"), (" ", "needs a name")):
        answer = await web.post("/tasksets", data={"name": name})
        assert (answer.status_code, sentence in answer.text) == (422, True)


# -- imports -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        json.dumps([task("one"), task("two")]),
        json.dumps({"tasks": [task("one"), task("two")]}),
        "\n".join([json.dumps(task("one")), "", json.dumps(task("two"))]),
    ],
)
async def test_tasks_are_imported_from_a_list_or_from_lines(web, platform, text):
    taskset = Tasksets(platform.store, LOCAL_TEAM).create("fruit", None)["id"]
    answer = await web.post(f"/tasksets/{taskset}/imports", data={"text": text})
    assert answer.status_code == 303
    rows = (await web.get(f"/tasksets/{taskset}/rows.jsonl")).text.splitlines()
    assert [json.loads(row)["name"] for row in rows] == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "Paste tasks first"),
        ("[1, 2]", "Tasks are JSON objects"),
        ("[{]", "This is not JSON"),
        ('{"name": "one"}\n{oops', "Line 2 is not JSON"),
        ("[" * 50_000, "nested too deep"),
        ('{"name": "one"}\n' + "[" * 50_000, "nested too deep"),
        (json.dumps([{**task("one"), "args": {"a": DEEP}}]), "nested too deep"),
        ('{"name": "one"}', "names no environment"),
        (json.dumps([task("one"), task("one")]), "2 tasks are called 'one'"),
        (json.dumps([task("one", "x"), task("two", "y")]), "2 things are wrong"),
    ],
)
async def test_an_import_is_taken_whole_or_refused_with_its_problems(web, platform, text, sentence):
    know_environment(platform.store)
    taskset = Tasksets(platform.store, LOCAL_TEAM).create("fruit", None)["id"]
    answer = await web.post(f"/tasksets/{taskset}/imports", data={"text": text})
    assert answer.status_code == 422
    assert sentence in answer.text.replace("&#39;", "'")
    assert Tasksets(platform.store, LOCAL_TEAM).export(taskset)["tasks"] == []


async def test_versions_say_what_they_changed_and_show_the_rows_of_their_time(web, platform):
    taskset = upload(platform.store, task("one", 1), task("two"))
    upload(platform.store, task("one", 2), task("three"))
    await web.post(f"/tasksets/{taskset}/remove", data={"slug": "two"})
    versions = (await web.get(f"/tasksets/{taskset}/imports.json")).json()["items"]
    sums = [(v["version"], v["added"], v["changed"], v["removed"]) for v in versions]
    assert sums == [(3, 0, 0, 1), (2, 1, 1, 0), (1, 2, 0, 0)]
    assert (await web.get(f"/tasksets/{taskset}/imports")).status_code == 200
    old = (await web.get(f"/tasksets/{taskset}.json?version=1")).json()["items"]
    assert [(row["name"], row["args"]["n"]) for row in old] == [("one", 1), ("two", 1)]


# -- who may what ------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_who_may_only_read_changes_nothing_and_is_offered_nothing(keyed):
    taskset = upload(keyed.store, task("one"))
    place = f"/tasksets/{taskset}"
    async with sign_in(keyed, "read") as client:
        page = (await client.get(place)).text
        assert "New task" not in page
        assert "Edit" not in (await client.get(f"{place}/row?slug=one")).text
        assert (await client.get(f"{place}/edit")).status_code == 403
        assert (await client.get("/tasksets/new")).status_code == 403
        for path, data in (
            ("/tasksets", {"name": "new"}),
            (f"{place}/rows", form("two")),
            (f"{place}/remove", {"slug": "one"}),
            (f"{place}/imports", {"text": "[]"}),
        ):
            assert (await client.post(path, data=data)).status_code == 403
    assert Tasksets(keyed.store, LOCAL_TEAM).find(taskset)["version"] == 1


async def test_other_teams_find_nothing(keyed):
    taskset = upload(keyed.store, task("one"))
    team = Teams(keyed.store).find_or_create("theirs").id
    async with sign_in(keyed, team=team) as client:
        assert (await client.get("/tasksets.json")).json()["items"] == []
        for path in ("", ".json", "/row?slug=one", "/imports", "/edit", "/rows.jsonl"):
            assert (await client.get(f"/tasksets/{taskset}{path}")).status_code == 404
        for path in ("rows", "remove", "imports"):
            data = {**form("two"), "slug": "one", "text": json.dumps([task("two")])}
            answer = await client.post(f"/tasksets/{taskset}/{path}", data=data)
            assert answer.status_code == 404


@pytest.mark.slow
async def test_what_clients_wrote_is_shown_as_text(web, platform):
    name = '"><script>alert(1)</script>\u202e'
    taskset = upload(platform.store, task(name, more=name, validation=[name]), name=name)
    record(platform.store, taskset, name, "<b>m</b>", 1.0)
    query = {"slug": name}
    for path in (f"/tasksets/{taskset}", f"/tasksets/{taskset}/imports", "/tasksets"):
        page = (await web.get(path)).text
        assert "<script>alert" not in page
        assert "\u202e" not in page.replace(f'value="{name}"', "")
    for path in ("row", "edit"):
        page = (await web.get(f"/tasksets/{taskset}/{path}", params=query)).text
        assert "<script>alert" not in page
        assert "<b>m" not in page
