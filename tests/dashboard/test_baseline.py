"""Human baselines: a person takes a task in the browser, with the environment's tools, and gets a score."""

import asyncio
import sys
import threading
import time
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from tests.benchmarks.played import installed
from tests.dashboard.conftest import sign_in

from hud.errors import StoreError, UsageError
from hud.eval import Job
from hud.trace import ToolSpec, new_id
from hud_dashboard.human_baseline import session as baseline_session
from hud_dashboard.human_baseline import session_registry
from hud_dashboard.human_baseline.benchmarks import offer, results
from hud_dashboard.human_baseline.screen import screen_arguments
from hud_dashboard.schema_forms import fields_of, read_arguments
from hud_platform.access.teams import Teams
from hud_platform.environments import reports
from hud_platform.environments.registry import Environments
from hud_platform.store import records, tables
from hud_platform.store.tables import LOCAL_TEAM
from hud_platform.tasksets.versions import Tasksets, row_of

ENV = '''
from hud import Environment

env = Environment("counting")
made = []

@env.tool()
def count(word: str, letter: str, twice: bool = False) -> int:
    """How often a letter is in a word."""
    made.append(word)
    return word.count(letter) * (2 if twice else 1)

@env.tool()
def before() -> str:
    """What was counted so far."""
    return ",".join(made) or "nothing"

@env.template()
async def letters(word: str, letter: str):
    answer = yield f"How many {letter} are in <b>{word}</b>?"
    yield 1.0 if answer.strip() == str(word.count(letter)) else 0.0
'''
WAIT_SECONDS = 90


def deploy(store, folder, text=ENV, *, name="counting", team=LOCAL_TEAM):
    """An environment that can be run, as a build leaves it."""
    source = folder / "source"
    source.mkdir(parents=True)
    (source / "env.py").write_text(text)
    environment = Environments(store, team).find_or_create(name, None)
    manifest = {"name": name, "entry": "env.py", "tasks": [{"id": "letters"}]}
    row = {"team_id": team, "environment_id": environment, "status": "SUCCEEDED", "version": 1}
    with store.begin() as connection:
        connection.execute(
            sa.insert(tables.builds).values(
                **row,
                id=new_id(),
                manifest=manifest,
                folder=str(folder),
                options={"name": name},
                created_at=datetime.now(UTC),
            )
        )


def upload(store, *words, env="counting", team=LOCAL_TEAM):
    rows = [
        row_of(
            {"name": word, "env": env, "task_id": "letters", "args": {"word": word, "letter": "a"}}
        )
        for word in words
    ]
    sets = Tasksets(store, team)
    return sets.upload("words", rows, taskset_id=None, project_id=None)["taskset_id"]


async def begin(client, taskset, slug):
    answer = await client.post(f"/baseline/{taskset}/begin", data={"slug": slug})
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


async def until(client, place, *states):
    """Wait until a sitting is in one of these states; returns its page's data."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            data = (await client.get(f"{place}.json")).json()
            if data.get("state", "over") in states:
                return data
            await asyncio.sleep(0.05)


async def call(client, place, tool, **arguments):
    form = {"tool": tool, **{f"arg.{name}": value for name, value in arguments.items()}}
    answer = await client.post(f"{place}/call", data=form)
    assert answer.status_code == 303
    return (await client.get(f"{place}.json")).json()


@pytest.fixture
async def sat(platform, web, tmp_path):
    """A taskset of two tasks whose environment is there."""
    deploy(platform.store, tmp_path / "build")
    return upload(platform.store, "banana", "pear")


@pytest.mark.slow
async def test_a_person_takes_a_task_with_the_environments_tools_and_gets_a_score(
    web, platform, sat
):
    place = await begin(web, sat, "banana")
    shown = await until(web, place, "playing")
    assert [tool["name"] for tool in shown["tools"]] == ["count", "before"]
    page = (await web.get(place)).text
    assert "How many a are in &lt;b&gt;banana&lt;/b&gt;?" in page
    after = await call(web, place, "count", word="banana", letter="a", twice="false")
    assert (after["moves"][0]["text"], after["said"]) == ("3", None)
    answered = await web.post(f"{place}/answer", data={"answer": "3"})
    assert answered.status_code == 303
    over = await until(web, place, "over")
    assert (over["reward"], over["next"]) == (1.0, "pear")
    assert over["seconds"] > 0
    assert "1.000" in (await web.get(place)).text


@pytest.mark.slow
async def test_the_score_is_kept_as_a_run_of_a_job_that_is_marked_as_the_human_baseline(
    web, platform, sat
):
    for answer in ("3", "5"):
        place = await begin(web, sat, "banana")
        await until(web, place, "playing")
        await web.post(f"{place}/answer", data={"answer": answer})
        await until(web, place, "over")
    run = records.find_run(platform.store, LOCAL_TEAM, place.rpartition("/")[2])
    job = records.find_job(platform.store, LOCAL_TEAM, run["job_id"])
    runs, total = records.runs_page(platform.store, job, 10, 0)
    assert (job["name"], job["status"]) == ("Human baseline: words", "completed")
    assert [(one["attempt"], one["reward"], one["model"]) for one in runs] == [
        (0, 1.0, "human"),
        (1, 0.0, "human"),
    ]
    assert total == 2
    with platform.store.read() as connection:
        extra = connection.execute(sa.select(tables.jobs.c.extra)).scalar_one()
    assert extra["baseline"] == "human"
    steps = records.trace_steps(platform.store, LOCAL_TEAM, run["id"])
    assert steps[-2]["content"] == "5"
    data = (await web.get(f"/baseline/{sat}.json")).json()
    assert (data["summary"]["taken"], data["summary"]["reward"]) == (1, 0.5)
    difficulty = (await web.get(f"/tasksets/{sat}.json")).json()
    assert difficulty["models"] == ["human"]


async def test_a_flush_waits_for_what_a_cancelled_one_was_writing(platform, monkeypatch):
    """A session ends by cancelling the periodic write, whose thread goes on."""
    begun, may_end, written = threading.Event(), threading.Event(), []

    def slow(store, data, team, *, session):
        begun.set()
        assert may_end.wait(WAIT_SECONDS)
        written.append(data)

    monkeypatch.setattr(session_registry, "ingest", slow)
    recorder = session_registry.StoreRecorder(platform.store, LOCAL_TEAM)
    recorder.job_started(Job(new_id(), "x", recorder=recorder))
    first = asyncio.create_task(recorder.flush())
    await asyncio.to_thread(begun.wait, WAIT_SECONDS)
    first.cancel()
    await asyncio.wait({first})
    second = asyncio.create_task(recorder.flush())
    await asyncio.sleep(0.05)
    assert not second.done()
    may_end.set()
    await second
    assert len(written) == 1


async def test_what_could_not_be_written_is_written_by_the_next_flush(platform, monkeypatch):
    written = []

    def failing_once(store, data, team, *, session):
        written.append(data)
        if len(written) == 1:
            raise StoreError("The store is away.")

    monkeypatch.setattr(session_registry, "ingest", failing_once)
    recorder = session_registry.StoreRecorder(platform.store, LOCAL_TEAM)
    recorder.job_started(Job(new_id(), "x", recorder=recorder))
    with pytest.raises(StoreError):
        await recorder.flush()
    await recorder.flush()
    assert written[1] == written[0] != b""


@pytest.mark.slow
async def test_giving_up_is_graded_without_an_answer(web, sat):
    place = await begin(web, sat, "banana")
    await until(web, place, "playing")
    await web.post(f"{place}/answer", data={"give_up": "1"})
    assert (await until(web, place, "over"))["reward"] == 0.0


@pytest.mark.slow
async def test_leaving_measures_nothing_and_leaves_no_process(web, platform, sat, tmp_path):
    place = await begin(web, sat, "banana")
    await until(web, place, "playing")
    assert reports.processes_of([str(tmp_path / "build")]) or sys.platform != "linux"
    left = await web.post(f"{place}/leave")
    assert left.headers["location"] == f"/baseline/{sat}"
    over = (await web.get(f"{place}.json")).json()
    assert (over["status"], over["reward"]) == ("cancelled", None)
    assert reports.processes_of([str(tmp_path / "build")]) == []
    assert platform.service("dashboard").baseline_sessions.of_team(LOCAL_TEAM) == []


@pytest.mark.slow
async def test_a_sitting_that_is_abandoned_ends_and_cleans_up(
    web, platform, sat, tmp_path, monkeypatch
):
    place = await begin(web, sat, "banana")
    await until(web, place, "playing")
    sitting = platform.service("dashboard").baseline_sessions.of_team(LOCAL_TEAM)[0]
    monkeypatch.setattr(baseline_session, "IDLE_SECONDS", 0.0)
    sitting._seen = time.monotonic() - 1
    async with asyncio.timeout(WAIT_SECONDS):
        await asyncio.wait({sitting.task})
    run = records.find_run(platform.store, LOCAL_TEAM, sitting.id)
    assert (run["status"], run["reward"]) == ("cancelled", None)
    assert reports.processes_of([str(tmp_path / "build")]) == []


@pytest.mark.slow
async def test_sittings_end_with_the_server(web, platform, sat, tmp_path):
    place = await begin(web, sat, "banana")
    await until(web, place, "playing")
    platform.stopping.set()
    async with asyncio.timeout(WAIT_SECONDS):
        await platform.service("dashboard").baseline_sessions.work()
    assert platform.service("dashboard").baseline_sessions.of_team(LOCAL_TEAM) == []
    assert reports.processes_of([str(tmp_path / "build")]) == []


@pytest.mark.slow
async def test_a_task_at_which_one_sits_already_goes_on(web, sat):
    place = await begin(web, sat, "banana")
    assert await begin(web, sat, "banana") == place
    await until(web, place, "playing")
    await call(web, place, "count", word="x", letter="x")
    assert await begin(web, sat, "banana") == place
    assert (await web.get(f"{place}.json")).json()["moves_total"] == 1
    await web.post(f"{place}/leave")


@pytest.mark.slow
async def test_sessions_that_begin_at_once_are_no_more_than_the_most(platform, web, tmp_path):
    deploy(platform.store, tmp_path / "build")
    words = [f"word{number}" for number in range(3 * session_registry.MOST_SESSIONS)]
    taskset = upload(platform.store, *words)
    answers = await asyncio.gather(
        *(web.post(f"/baseline/{taskset}/begin", data={"slug": word}) for word in words)
    )
    begun = [answer for answer in answers if answer.status_code == 303]
    assert len(begun) == session_registry.MOST_SESSIONS, [one.status_code for one in answers]
    for answer in begun:
        await web.post(f"{answer.headers['location']}/leave")


@pytest.mark.slow
async def test_moves_of_a_teams_sessions_have_a_size_together(web, sat, monkeypatch):
    """Every call and its result are kept until the session's end."""
    monkeypatch.setattr(baseline_session, "MOST_BYTES", 100_000)
    place = await begin(web, sat, "banana")
    await until(web, place, "playing")
    for number in range(6):
        data = await call(web, place, "count", word=f"{number}" * 40_000, letter="a", twice="false")
    assert "sessions hold" in data["said"]
    assert data["moves_total"] == 3
    await web.post(f"{place}/leave")
    again = await begin(web, sat, "pear")
    await until(web, again, "playing")
    assert (await call(web, again, "before"))["moves_total"] == 1
    await web.post(f"{again}/leave")


@pytest.mark.slow
async def test_each_persons_run_is_his_own(keyed, tmp_path):
    deploy(keyed.store, tmp_path / "build")
    taskset = upload(keyed.store, "banana")
    async with sign_in(keyed, "run") as one, sign_in(keyed, "run") as other:
        first, second = await begin(one, taskset, "banana"), await begin(other, taskset, "banana")
        assert first != second
        await until(one, first, "playing")
        await until(other, second, "playing")
        await call(one, first, "count", word="secret", letter="s")
        seen = await call(other, second, "before")
        assert seen["moves"][0]["text"] == "nothing"
        for client, place in ((one, second), (other, first)):
            assert (await client.get(place)).status_code == 404
            for order in ("call", "answer", "leave"):
                answer = await client.post(f"{place}/{order}", data={"answer": "1"})
                assert answer.status_code == 404
            assert (await client.get(f"{place}/pictures/1/0")).status_code == 404
        await one.post(f"{first}/answer", data={"answer": "3"})
        assert (await until(one, first, "over"))["reward"] == 1.0
        assert (await other.get(first)).status_code == 404
        await other.post(f"{second}/leave")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        ({"tool": "count", "arg.letter": "a", "arg.word": "b", "arg.twice": "7"}, "Choose one"),
        ({"tool": "nothing"}, "There is no tool 'nothing' here."),
    ],
)
async def test_what_cannot_be_called_is_a_sentence_and_no_move(web, sat, form, sentence):
    place = await begin(web, sat, "banana")
    await until(web, place, "playing")
    await web.post(f"{place}/call", data=form)
    data = (await web.get(f"{place}.json")).json()
    assert sentence in data["said"]
    assert data["moves"] == []
    await web.post(f"{place}/answer", data={"answer": " "})
    assert (await web.get(f"{place}.json")).json()["said"] == "Write an answer, or give up."
    await web.post(f"{place}/leave")


@pytest.mark.slow
async def test_an_environment_that_is_not_there_or_breaks_is_told(web, platform, tmp_path):
    taskset = upload(platform.store, "banana", env="nowhere")
    answer = await web.post(f"/baseline/{taskset}/begin", data={"slug": "banana"})
    assert answer.status_code == 404
    assert "There is no environment" in answer.text
    broken = ENV.replace("answer = yield", "raise ValueError('gone')\n    answer = yield")
    deploy(platform.store, tmp_path / "broken", broken, name="nowhere")
    place = await begin(web, taskset, "banana")
    over = await until(web, place, "over")
    assert over["reward"] is None
    assert "gone" in over["error"]
    page = await web.get(place)
    assert (page.status_code, "There is no score" in page.text) == (200, True)


async def test_who_may_only_read_looks_on(keyed):
    taskset = upload(keyed.store, "banana")
    async with sign_in(keyed, "read") as client:
        page = await client.get(f"/baseline/{taskset}")
        assert (page.status_code, "/begin" in page.text) == (200, False)
        answer = await client.post(f"/baseline/{taskset}/begin", data={"slug": "banana"})
        assert answer.status_code == 403
    team = Teams(keyed.store).find_or_create("theirs").id
    async with sign_in(keyed, "run", team) as client:
        assert (await client.get(f"/baseline/{taskset}")).status_code == 404
        assert (await client.get("/baseline.json")).json()["items"] == []
        answer = await client.post(f"/baseline/{taskset}/begin", data={"slug": "banana"})
        assert answer.status_code == 404


# -- forms from schemas ----------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {
        "note": {"type": "string", "description": "What to say."},
        "n": {"type": "integer", "minimum": 1},
        "share": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
        "mode": {"enum": ["fast", 3]},
        "deep": {"type": "boolean", "default": False},
        "points": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["n"],
    "additionalProperties": False,
}


def test_a_schema_becomes_fields_those_first_that_must_be_filled_in():
    fields = fields_of(SCHEMA)
    kinds = {one.name: one.kind for one in fields}
    assert fields[0].name == "n"
    assert kinds == {
        "n": "whole",
        "note": "text",
        "share": "number",
        "mode": "choice",
        "deep": "choice",
        "points": "json",
    }
    assert next(one for one in fields if one.name == "deep").default == "false"


def test_what_is_filled_in_becomes_arguments_and_what_is_empty_is_left_out():
    form = {"arg.n": " 3 ", "arg.note": "a\r\nb", "arg.share": "", "arg.mode": "3"}
    more = {"arg.deep": "true", "arg.points": "[1, 2]", "other": "x"}
    assert read_arguments(SCHEMA, {**form, **more}) == {
        "n": 3,
        "note": "a\nb",
        "mode": 3,
        "deep": True,
        "points": [1, 2],
    }


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"arg.n": ""}, "'n' must be given."),
        ({"arg.n": "three"}, "'n' must be a whole number, not 'three'."),
        ({"arg.n": "2.5"}, "'n' must be a whole number"),
        ({"arg.n": "true"}, "'n' must be a whole number"),
        ({"arg.n": "0"}, "Argument 'n': 0 is less than the minimum of 1."),
        ({"arg.share": "NaN"}, "'share' must be a number"),
        ({"arg.mode": '"slow"'}, "Choose one of the values of 'mode'."),
        ({"arg.points": "[1"}, "'points' must be JSON"),
        ({"arg.points": '["x"]'}, "Argument 'points.0'"),
        ({"arg.points": "[" * 100_000}, "'points' must be JSON"),
    ],
)
def test_what_does_not_fit_a_schema_is_told_in_a_sentence(wrong, sentence):
    with pytest.raises(UsageError) as told:
        read_arguments(SCHEMA, {"arg.n": "1", **wrong})
    assert sentence in str(told.value)


@pytest.mark.parametrize("schema", [{}, {"properties": 3}, {"properties": {"x": True, "y": 3}}])
def test_schemas_of_any_shape_have_a_form(schema):
    assert all(one.kind == "json" for one in fields_of(schema))


COMPUTER = ToolSpec(name="computer", native="computer", options={"width": 800, "height": 600})


@pytest.mark.parametrize(
    ("form", "arguments"),
    [
        ({"x": "10", "y": "20"}, {"action": "click", "x": 10, "y": 20}),
        (
            {"point.x": "1", "point.y": "2", "how": "right"},
            {"action": "click", "button": "right", "x": 1, "y": 2},
        ),
        ({"x": "1", "y": "2", "how": "double"}, {"action": "click", "count": 2, "x": 1, "y": 2}),
        ({"do": "type", "text": "hi"}, {"action": "type", "text": "hi"}),
        ({"do": "key", "keys": "ctrl+c"}, {"action": "key", "keys": ["ctrl", "c"]}),
        ({"do": "scroll", "way": "up"}, {"action": "scroll", "scroll_y": -400}),
        ({"do": "navigate", "url": "a.b"}, {"action": "navigate", "url": "a.b"}),
        ({"do": "back"}, {"action": "back"}),
    ],
)
def test_clicks_and_keys_on_a_page_become_a_computers_actions(form, arguments):
    assert screen_arguments(COMPUTER, form) == arguments


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"x": "800", "y": "1"},
        {"x": "-1", "y": "1"},
        {"x": "nan", "y": "1"},
        {"do": "explode"},
        {"do": "key", "keys": " + "},
        {"x": "1", "y": "1", "how": "hard"},
    ],
)
def test_clicks_beside_the_screen_are_refused(form):
    with pytest.raises(UsageError):
        screen_arguments(COMPUTER, form)


@pytest.mark.slow
async def test_a_benchmark_is_offered_and_what_people_did_is_read_back(web, platform, tmp_path):
    benchmark = installed("bfcl-multi-turn")
    tasks = benchmark.tasks().filter(["multi_turn_base_3"])
    since = datetime.now(UTC)
    offered = offer(platform.store, tmp_path, tasks.name, tasks)
    assert offer(platform.store, tmp_path, tasks.name, tasks) == offered, "once, whenever asked for"
    place = await begin(web, offered, "multi_turn_base_3")
    shown = await until(web, place, "playing")
    assert {"reply", "cd"} <= {tool["name"] for tool in shown["tools"]}
    assert (await web.post(f"{place}/answer", data={"answer": "Done."})).status_code == 303
    await until(web, place, "over")
    (result,) = results(platform.store, benchmark, offered, "ab", since)
    assert (result.task, result.person, result.reward) == ("multi_turn_base_3", "ab", 0.0)
    assert (result.collected, result.version) == ("dashboard", benchmark.package.version)
    assert results(platform.store, benchmark, offered, "ab", datetime.now(UTC)) == []
