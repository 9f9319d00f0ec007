"""The playground: turns through the gateway, tools of an environment, and who may use it."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.dashboard.conftest import sign_in
from tests.dashboard.test_baseline import deploy, upload
from tests.dashboard.test_train import make_model

from hud_dashboard import playground_environments
from hud_platform.access import Identity
from hud_platform.access.teams import Teams
from hud_platform.environments.registry import RunnableEnvironment

WORLD = """
from hud import Environment

env = Environment("adder")
seen = []

@env.tool
def add(a: int, b: int) -> int:
    '''Add two numbers.'''
    seen.append(a)
    return a + b + 100 * (len(seen) - 1)

@env.tool
def flood() -> str:
    '''Say a lot.'''
    return "x" * 50_000

@env.template()
async def nothing():
    yield "Nothing."
    yield 1.0
"""
PLACE = (Path("."), Path("env.py"), Path("python"))
HELLO = {"model": "m", "messages": [{"role": "user", "content": "say red"}], "max_tokens": 6}


class NoTools:
    """Connection to an environment without tools and templates."""

    async def list_tools(self):
        return []

    async def list_tasks(self):
        return []


@pytest.fixture
def world(tmp_path):
    path = tmp_path / "env.py"
    path.write_text(WORLD)
    return str(path)


@pytest.fixture
async def closing(platform):
    yield
    for world in list(platform.service("dashboard").worlds.open.values()):
        await platform.service("dashboard").worlds.end(world)


def chunks(answer):
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


async def test_models_checkpoints_and_environments_can_be_chosen(platform, web):
    make_model(platform)
    page = await web.get("/playground?model=m")
    assert page.status_code == 200
    assert ">base<" in page.text
    data = (await web.get("/playground.json?model=m")).json()
    assert (data["model"], data["models"]) == ("m", ["m"])


async def test_without_a_model_it_says_how_one_is_made(web):
    assert "hud models create" in (await web.get("/playground")).text


@pytest.mark.slow
async def test_a_turn_is_streamed_by_the_gateway(platform, web):
    make_model(platform)
    answer = await web.post("/playground/turn", json={**HELLO, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "content-security-policy" in answer.headers
    told = chunks(answer)
    assert told[0]["choices"][0]["delta"]["role"] == "assistant"
    assert told[-1]["choices"][0]["finish_reason"] in ("stop", "length")


@pytest.mark.slow
async def test_a_checkpoint_can_be_pinned(platform, web):
    make_model(platform)
    good = await web.post("/playground/turn", json={**HELLO, "checkpoint": "base"})
    assert good.status_code == 200
    bad = await web.post("/playground/turn", json={**HELLO, "checkpoint": "step-9"})
    assert bad.status_code == 404
    assert "has no checkpoint" in bad.json()["error"]["message"]


async def test_an_unknown_model_is_one_sentence(web):
    answer = await web.post("/playground/turn", json={**HELLO, "model": "nobody"})
    assert answer.status_code == 404
    assert "nobody" in answer.json()["error"]["message"]


@pytest.mark.slow
async def test_tools_of_an_environment_answer_and_keep_its_state(web, world, closing):
    opened = (await web.post("/playground/worlds", json={"path": world})).json()
    assert [tool["function"]["name"] for tool in opened["tools"]] == ["add", "flood"]
    place = f"/playground/worlds/{opened['id']}"
    sums = [
        (
            await web.post(f"{place}/call", json={"name": "add", "arguments": '{"a": 1, "b": 2}'})
        ).json()
        for _ in range(2)
    ]
    assert [one["text"] for one in sums] == ["3", "103"]
    wrong = (await web.post(f"{place}/call", json={"name": "add", "arguments": "{"})).json()
    assert wrong["is_error"]
    long = (await web.post(f"{place}/call", json={"name": "flood", "arguments": {}})).json()
    assert "more characters" in long["text"]
    assert (await web.post(f"{place}/call", json={"name": "nothing"})).status_code == 404
    assert (await web.post(f"{place}/close")).json() == {"closed": True}
    assert (await web.post(f"{place}/call", json={"name": "add"})).status_code == 404
    assert (await web.post(f"{place}/close")).json() == {"closed": False}


@pytest.mark.slow
async def test_an_environment_that_does_not_come_up_says_why(platform, web, tmp_path):
    (tmp_path / "env.py").write_text("raise RuntimeError('closed today')")
    answer = await web.post("/playground/worlds", json={"path": str(tmp_path / "env.py")})
    assert answer.status_code >= 400
    assert "closed today" in answer.text
    assert "Choose an environment." in (await web.post("/playground/worlds", json={})).text
    unknown = await web.post("/playground/worlds", json={"environment": "far"})
    assert unknown.status_code == 404


@pytest.mark.slow
async def test_a_person_has_few_environments_open_the_oldest_makes_room(
    platform, web, world, closing
):
    ids = [
        (await web.post("/playground/worlds", json={"path": world})).json()["id"] for _ in range(3)
    ]
    gone = await web.post(f"/playground/worlds/{ids[0]}/call", json={"name": "add"})
    assert gone.status_code == 404
    assert len(platform.service("dashboard").worlds.open) == 2


async def test_one_team_leaves_another_places(monkeypatch):
    """Eight keys of a team took all sixteen places, and requests at once any number of them."""
    worlds = playground_environments.Worlds(None, asyncio.Event(), own_machine=True)

    async def up(world, runnable):
        world.ready.set_result(NoTools())
        await world.ending.wait()

    monkeypatch.setattr(worlds, "_run", up)
    monkeypatch.setattr(worlds, "_runnable", lambda *_: RunnableEnvironment("", "shop", 0, *PLACE))

    def opening(team, people, times=1):
        return asyncio.gather(
            *(
                worlds.bring_up(Identity(team, frozenset({"run"}), user_id=str(person)), "shop", "")
                for person in range(people)
                for _ in range(times)
            ),
            return_exceptions=True,
        )

    opened = await opening("a" * 32, 12, times=3)
    assert sum(isinstance(one, playground_environments.World) for one in opened) >= 8
    assert len(worlds.open) == playground_environments.MOST_OF_TEAM
    (other,) = await opening("b" * 32, 1)
    assert isinstance(other, playground_environments.World)
    for world in list(worlds.open.values()):
        await worlds.end(world)


async def test_only_who_may_run_talks_and_opens(keyed):
    make_model(keyed, team=Teams(keyed.store).default().id)
    async with sign_in(keyed, "read") as client:
        assert (await client.get("/playground")).status_code == 403
        assert (await client.post("/playground/turn", json=HELLO)).status_code == 403
        assert (await client.post("/playground/worlds", json={})).status_code == 403
        assert "/playground" not in (await client.get("/models/m")).text


async def test_a_server_opens_no_files_that_a_browser_names(keyed, world):
    async with sign_in(keyed, "run") as client:
        answer = await client.post("/playground/worlds", json={"path": world})
        assert answer.status_code == 400
        assert "deployed to this server" in answer.text


async def test_models_of_another_team_do_not_answer(keyed):
    make_model(keyed, team=Teams(keyed.store).default().id)
    other = Teams(keyed.store).find_or_create("other").id
    async with sign_in(keyed, "run", team=other) as client:
        assert (await client.post("/playground/turn", json=HELLO)).status_code == 404
        assert "m" not in (await client.get("/playground.json")).json()["models"]


async def test_another_site_cannot_have_a_browser_talk(platform, web):
    answer = await web.post(
        "/playground/turn", json=HELLO, headers={"sec-fetch-site": "cross-site"}
    )
    assert answer.status_code == 403


# -- tasks -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_task_of_a_taskset_is_loaded_and_its_answer_graded(
    platform, web, tmp_path, closing
):
    deploy(platform.store, tmp_path / "build")
    taskset = upload(platform.store, "banana", "apple")
    chosen = (await web.get(f"/playground.json?taskset={taskset}&task=apple")).json()
    assert ([one["slug"] for one in chosen["tasks"]], chosen["task"]) == (
        ["banana", "apple"],
        "apple",
    )
    page = (await web.get(f"/tasksets/{taskset}/row?slug=apple")).text
    assert f"/playground?taskset={taskset}&amp;task=apple" in page
    opened = await web.post("/playground/worlds", json={"taskset": taskset, "task": "banana"})
    assert opened.status_code == 200, opened.text
    found = opened.json()
    assert found["prompt"] == [{"role": "user", "content": "How many a are in <b>banana</b>?"}]
    assert [tool["function"]["name"] for tool in found["tools"]] == ["count", "before"]
    place = f"/playground/worlds/{found['id']}"
    called = {"name": "count", "arguments": {"word": "banana", "letter": "a"}}
    assert (await web.post(f"{place}/call", json=called)).json()["text"] == "3"
    graded = (await web.post(f"{place}/grade", json={"answer": "3"})).json()
    assert graded["reward"] == 1.0
    # It is over, and can be started again with other arguments.
    again = await web.post(f"{place}/grade", json={"answer": "3"})
    assert "No task is in progress" in again.text
    body = {"template": "letters", "arguments": {"word": "papaya", "letter": "p"}}
    started = (await web.post(f"{place}/task", json=body)).json()
    assert "papaya" in started["prompt"][0]["content"]
    wrong = (await web.post(f"{place}/grade", json={"answer": "3"})).json()
    assert wrong["reward"] == 0.0
    # Nothing of it is recorded: it is no measurement.
    assert (await web.get("/jobs.json")).json()["total"] == 0


@pytest.mark.slow
async def test_a_template_of_an_open_environment_is_started_in_place_of_another(
    web, world, closing
):
    opened = (await web.post("/playground/worlds", json={"path": world})).json()
    assert [template["id"] for template in opened["templates"]] == ["nothing"]
    place = f"/playground/worlds/{opened['id']}"
    for _ in range(2):
        started = await web.post(f"{place}/task", json={"template": "nothing"})
        assert started.json()["prompt"] == [{"role": "user", "content": "Nothing."}]
    unknown = await web.post(f"{place}/task", json={"template": "absent"})
    assert unknown.status_code >= 400
    assert "absent" in unknown.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        ({"taskset": "none", "task": "a"}, "There is no taskset"),
        ({"task": "a"}, "taskset"),
        ({"taskset": "words", "task": "absent"}, "has no task"),
    ],
)
async def test_a_task_that_is_not_there_is_a_sentence(platform, web, sent, sentence):
    upload(platform.store, "banana")
    answer = await web.post("/playground/worlds", json=sent)
    assert 400 <= answer.status_code < 500
    assert sentence in answer.text
    assert "Traceback" not in answer.text


@pytest.mark.slow
async def test_a_task_of_another_team_is_not_loaded(keyed, tmp_path):
    theirs = Teams(keyed.store).find_or_create("other").id
    deploy(keyed.store, tmp_path / "build", team=theirs)
    taskset = upload(keyed.store, "banana", team=theirs)
    async with sign_in(keyed, "run") as client:
        sent = {"taskset": taskset, "task": "banana"}
        assert (await client.post("/playground/worlds", json=sent)).status_code == 404
        assert (await client.get(f"/playground?taskset={taskset}")).status_code == 404
    async with sign_in(keyed, "read", team=theirs) as client:
        assert (await client.post("/playground/worlds", json=sent)).status_code == 403
        page = (await client.get(f"/tasksets/{taskset}/row?slug=banana")).text
        assert "/playground" not in page


RATED = {
    "id": "ab" * 16,
    "model": "m",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What does tea cost? sk-abcdefghijklmnopqrstuvwxyz123456"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "1",
                    "type": "function",
                    "function": {"name": "price", "arguments": '{"item": "tea"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "3"},
        {"role": "assistant", "content": "3 euros"},
    ],
    "up": True,
}


async def test_a_thumb_makes_the_conversation_a_run_with_an_outcome(web):
    answer = await web.post("/playground/rating", json=RATED)
    assert answer.status_code == 200, answer.text
    rated = answer.json()
    run = (await web.get(f"/v2/trace/{rated['trace_id']}/full")).json()
    assert (run["run"]["source"], run["run"]["model"]) == ("playground", "m")
    assert run["run"]["content"] == "3 euros"
    steps = run["trace"]["steps"]
    assert [step["source"] for step in steps] == ["user", "agent", "tool", "agent"]
    assert steps[2]["call"]["arguments"] == {"item": "tea"}
    assert "sk-abc" not in json.dumps(run)
    further = [
        *RATED["messages"],
        {"role": "user", "content": "And a cup?"},
        {"role": "assistant", "content": "I cannot say."},
    ]
    again = {**RATED, "messages": further, "up": False}
    assert (await web.post("/playground/rating", json=again)).json()["trace_id"] == rated[
        "trace_id"
    ]
    outcomes = (await web.get(f"/v2/trace/{rated['trace_id']}/outcomes")).json()
    assert [(item["name"], item["value"]) for item in outcomes["items"]] == [
        ("thumb", 1),
        ("thumb", 0),
    ]
    assert {item["source"] for item in outcomes["items"]} == {"local"}
    shown = (await web.get(f"/trace/{rated['trace_id']}")).text
    assert shown.count('<b class="foreign">thumb</b>') == 2
    run = (await web.get(f"/v2/trace/{rated['trace_id']}/full")).json()
    assert len(run["trace"]["steps"]) == 6
    jobs = (await web.get("/v2/jobs")).json()["items"]
    assert [(job["name"], job["status"], job["runs"]) for job in jobs] == [
        ("Playground", "completed", 1)
    ]


async def test_a_rating_is_of_an_answer_and_of_ones_own_conversation(keyed):
    traces = []
    for _ in range(2):
        async with sign_in(keyed, "run") as client:
            answer = await client.post("/playground/rating", json=RATED)
            assert answer.status_code == 200
            traces.append(answer.json()["trace_id"])
            for wrong in (
                {"messages": RATED["messages"][:2]},
                {"id": "no-id"},
                {"messages": []},
                {"messages": [{"role": "assistant", "content": "x" * 1_000_001}]},
            ):
                answer = await client.post("/playground/rating", json={**RATED, **wrong})
                assert answer.status_code in (400, 422)
    assert len(set(traces)) == 2
    async with sign_in(keyed, "read") as reader:
        assert (await reader.post("/playground/rating", json=RATED)).status_code == 403
