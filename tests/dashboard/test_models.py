"""Models in the dashboard: the tree of checkpoints, comparisons from what is recorded, promoting and rolling back."""

import socket
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.dashboard.conftest import sign_in
from tests.dashboard.test_train import TASKS, ended, make_model, score

from hud.eval.results.promotion_gate import decide
from hud.processes.presence import presence
from hud.trace import new_id, now
from hud_dashboard.pages import models as pages
from hud_dashboard.queries.model_tree import rows_of
from hud_platform.access.teams import Teams
from hud_platform.models import checkpoint_tree
from hud_platform.models.checkpoint_tree import node_name
from hud_platform.models.records import CheckpointRecord, ModelConfig
from hud_platform.store import tables
from hud_platform.store.checkpoint_rewards import ended_runs
from hud_platform.training.runs import TrainingRuns


def made(platform, model, step, parent=None, *, head=True, pruned=False):
    """Add a checkpoint; with files of its own, unless it is pruned."""
    registry = platform.registry.of(model.team_id)
    identifier = new_id()
    node = CheckpointRecord(
        id=identifier,
        model_id=model.id,
        parent_id=parent,
        step=step,
        name=node_name(step, identifier),
        folder=registry.tree.place(model.id) / identifier,
        created_at=now(),
        mean_reward=step / 10,
        metrics={"loss:sum": 1.0, "action_tokens:sum": 10.0},
    )
    current = registry.model(model.id).head_checkpoint_id
    registry.tree.append(node, expected_head=current)
    if not head:
        set_row(platform, model, current)
    if pruned:
        registry.tree.prune(model, {one.id for one in registry.tree.nodes(model)} - {identifier})
    return identifier


def set_row(platform, model, head):
    with platform.store.begin() as connection:
        connection.execute(
            sa.update(tables.models)
            .where(tables.models.c.id == model.id)
            .values(head_checkpoint_id=head)
        )


def record_rewards(platform, model, checkpoint, rewards, purpose="held_out"):
    """A job in which a checkpoint earned rewards by task."""
    job, team = new_id(), model.team_id
    runs = [
        {
            "trace_id": new_id(), "team_id": team, "job_id": job, "slug": slug, "model": model.slug,
            "checkpoint": checkpoint, "status": "completed", "reward": reward, "completion_tokens": 5,
            "started_at": now(), "ended_at": now(),
        }
        for slug, reward in rewards.items()
    ]  # fmt: skip
    with platform.store.begin() as connection:
        connection.execute(
            sa.insert(tables.jobs).values(
                id=job,
                team_id=team,
                name=f"{model.slug} job",
                purpose=purpose,
                status="completed",
                created_at=now(),
            )
        )
        connection.execute(sa.insert(tables.runs), runs)
        connection.execute(
            sa.insert(tables.job_models).values(
                job_id=job, model=model.slug, checkpoint=checkpoint or "", team_id=team
            )
        )
    served(platform, runs)


def served(platform, runs):
    """Record the turns of runs as those that the gateway sampled."""
    names = ("trace_id", "team_id", "model", "checkpoint", "completion_tokens")
    rows = [
        {**{name: run[name] for name in names}, "id": new_id(), "route": "/v1/chat/completions"}
        | {"status": 200, "seconds": 0.1, "created_at": now()}
        for run in runs
    ]
    with platform.store.begin() as connection:
        connection.execute(sa.insert(tables.requests), rows)


def tasks(value, count=12):
    return {f"t{n}": value + (n % 3) / 100 for n in range(count)}


async def test_models_are_listed_with_their_heads(platform, web):
    model = make_model(platform)
    head = made(platform, model, 1)
    items = (await web.get("/models.json")).json()["items"]
    assert [(one["slug"], one["head"], one["checkpoints"], one["reward"]) for one in items] == [
        ("m", head, 1, 0.1)
    ]
    page = await web.get("/models")
    assert page.status_code == 200
    assert 'href="/models/m"' in page.text


async def test_clients_of_the_gateway_still_get_their_list_of_models(platform, web):
    make_model(platform)
    answer = await web.get("/models", headers={"accept": "application/json"})
    assert answer.json()["object"] == "list"


async def test_the_tree_is_drawn_newest_first_with_the_head_marked(platform, web):
    model = make_model(platform)
    first = made(platform, model, 1)
    second = made(platform, model, 2, first)
    branch = made(platform, model, 2, first, head=False)
    runs = TrainingRuns(platform.store, model.team_id)
    runs.start(model.id, {}, {"scores": [score(2, 0.7, checkpoint_id=second)]})
    data = (await web.get("/models/m.json")).json()
    rows = data["rows"]
    assert [row["kind"] for row in rows] == ["checkpoint"] * 3 + ["base"]
    assert [row["node"] and row["node"]["id"] for row in rows] == [branch, second, first, None]
    assert rows[1]["node"]["score"]["mean"] == 0.7
    assert rows[0]["x"] != rows[1]["x"] == rows[2]["x"] == rows[3]["x"]
    assert data["selected"]["id"] == second
    text = (await web.get("/models/m")).text
    assert text.count('class="head"') >= 1
    assert "<path d=" in text


async def test_labels_of_a_checkpoint_are_on_its_page_which_takes_more(keyed):
    team = Teams(keyed.store).default().id
    model = make_model(keyed, team=team)
    first = made(keyed, model, 1)
    second = made(keyed, model, 2, first)
    async with sign_in(keyed, "run") as member:
        form = {"kind": "checkpoint", "subject": first, "name": "best", "value": "0.5"}
        form |= {"note": "<b>short</b> answers", "back": f"/models/m?checkpoint={first}#labels"}
        answer = await member.post("/labels", data=form)
        assert answer.headers["location"] == f"/models/m?checkpoint={first}#labels"
        page = (await member.get("/models/m", params={"checkpoint": first})).text
        assert "<b>best</b> 0.500" in page
        assert "&lt;b&gt;short&lt;/b&gt; answers" in page
        # The form of the page labels its checkpoint.
        assert f'name="kind" value="checkpoint"><input type="hidden" name="subject" value="{first}"' in page  # fmt: skip
        assert f'name="back" value="/models/m?checkpoint={first}#labels"' in page
        (label,) = (await member.get(f"/models/m.json?checkpoint={first}")).json()["labels"]
        assert (label["name"], label["value"], label["kind"]) == ("best", 0.5, "checkpoint")
        assert (await member.get(f"/models/m.json?checkpoint={second}")).json()["labels"] == []
        assert (await member.get("/models/m.json?checkpoint=base")).json()["labels"] == []
        assert 'action="/labels"' not in (await member.get("/models/m?checkpoint=base")).text
        form = {"back": f"/models/m?checkpoint={first}"}
        await member.post(f"/labels/{label['id']}/remove", data=form)
        assert (await member.get(f"/models/m.json?checkpoint={first}")).json()["labels"] == []
    async with sign_in(keyed, "read") as reader:
        page = (await reader.get("/models/m", params={"checkpoint": first})).text
        assert 'action="/labels"' not in page
        assert "No label yet." in page


async def test_the_versions_of_a_prompt_are_on_the_models_page(platform, web):
    model = make_model(platform)
    tree = platform.registry.tree
    page = await web.get("/models/m")
    assert "System prompts" not in page.text
    first = tree.add_prompt(platform.registry.model(model.id), "Answer <briefly>.")
    tree.set_head(model, first.id)
    second = tree.add_prompt(platform.registry.model(model.id), "Answer at length.")
    data = (await web.get("/models/m.json")).json()
    assert [(one["number"], one["id"], one["text"]) for one in data["prompts"]] == [
        (1, first.id, "Answer <briefly>."),
        (2, second.id, "Answer at length."),
    ]
    assert data["prompt"] == "Answer <briefly>."
    text = (await web.get("/models/m")).text
    assert "Answer &lt;briefly&gt;." in text
    assert text.count("served</span>") == 1
    tree.set_head(model, None)
    assert (await web.get("/models/m.json")).json()["prompt"] is None
    assert "served</span>" not in (await web.get("/models/m")).text


async def test_the_rungs_of_an_improvement_are_on_its_page(platform, web):
    model = make_model(platform)
    rung = {"name": "reinforce", "outcome": "held", "reason": "<no rise>", "model": "m-reinforce-1"}
    rung |= {"spent": {"rollouts": 1_024}, "judgement": {"gain": -0.0125}}
    skipped = {"name": "imitate", "outcome": "skipped", "reason": "nothing to imitate"}
    skipped |= {"spent": {"rollouts": 0}, "judgement": None, "model": None}
    state = {"rungs": [skipped, rung], "report": {"verdict": "Training was not worth it here."}}
    run = TrainingRuns(platform.store, model.team_id).start(
        model.id, {"model": "m", "kind": "improvement"}, state
    )
    text = (await web.get(f"/train/{run['id']}")).text
    for said in ("Training was not worth it here.", "-0.013", "1,024", "&lt;no rise&gt;"):
        assert said in text
    assert 'href="/models/m-reinforce-1"' in text


@pytest.mark.parametrize("kind", ["sweep", "improvement", "prompt search"])
async def test_a_command_has_no_total_of_steps(platform, web, kind):
    """The steps of its configuration are those of each training; the list said `0 of 2` of a finished sweep."""
    model = make_model(platform)
    config = {"model": "m", "kind": kind, "steps": 97}
    run = TrainingRuns(platform.store, model.team_id).start(model.id, config, {})
    for page in ("/train", f"/train/{run['id']}"):
        text = (await web.get(page)).text
        assert kind in text
        assert "of 97" not in text


async def test_a_search_of_a_prompt_runs_while_its_process_does(platform, web):
    model = make_model(platform)
    runs = TrainingRuns(platform.store, model.team_id)
    config = {"model": "m", "kind": "prompt search"}
    here = runs.start(model.id, config, {"by": presence("optimize")})
    gone = runs.start(model.id, config, {"by": f"optimize/{socket.gethostname()}/999999999/1/ab"})
    statuses = {run["id"]: run["status"] for run in (await web.get("/train.json")).json()["items"]}
    assert statuses == {here["id"]: "running", gone["id"]: "interrupted"}
    page = await web.get(f"/train/{gone['id']}.json")
    assert page.json()["why_not_resumed"].startswith("It goes on by its command")


async def test_a_model_s_page_and_the_log_show_its_cache(platform, web, caplog):
    caplog.set_level("INFO", "hud")
    model = make_model(platform)
    shown = (await web.get("/models/m.json")).json()["cache"]
    assert shown == "by free memory, once it is loaded"
    limits = ModelConfig(cache_bytes=1 << 30, slots=4, max_context=32)
    fork = platform.registry.of(model.team_id).fork("m", "fork", config=limits)
    shown = (await web.get("/models/fork.json")).json()["cache"]
    assert shown == "1.00 GiB, 4 sequences at a time, 32 tokens each at most"
    cache = platform.policies.policy(fork, None).cache
    assert (cache.slots, cache.max_context, cache.tokens) == (4, 32, 4 * 64)
    assert f"Key-value cache of fork: {cache}." in caplog.messages
    text = (await web.get("/models/fork")).text
    assert "0.00 GiB for 256 tokens, 4 sequences at a time, 32 tokens each at most" in text


@pytest.mark.slow
async def test_a_long_tree_is_paged_to_its_beginning(platform, web):
    model = make_model(platform)
    nodes = [made(platform, model, 1)]
    for step in range(2, 106):
        nodes.append(made(platform, model, step, nodes[-1]))
    place = f"/models/{model.slug}"
    first = (await web.get(f"{place}.json")).json()
    second = (await web.get(f"{place}.json?offset=100")).json()
    assert first["total"] == len(nodes) + 1
    rows = [*first["rows"], *second["rows"]]
    assert [row["node"]["id"] for row in rows[:-1]] == nodes[::-1]
    assert rows[-1]["kind"] == "base"
    page = (await web.get(place)).text
    assert f'href="{place}?offset=100"' in page
    page = (await web.get(f"{place}?offset=100")).text
    # Who chooses a checkpoint there stays there.
    assert f"{place}?checkpoint={nodes[0]}&amp;offset=100" in page


@pytest.mark.slow
async def test_a_page_of_a_long_tree_reads_its_own_checkpoints_and_shows_the_head_s_lineage(
    platform, web, monkeypatch
):
    model = make_model(platform)
    nodes = [made(platform, model, 1)]
    for step in range(2, 13):
        nodes.append(made(platform, model, step, nodes[-1], head=step < 10))
    monkeypatch.setattr(pages, "ROWS_PER_PAGE", 3)
    read, record = [], checkpoint_tree._record
    monkeypatch.setattr(checkpoint_tree, "_record", lambda row: read.append(row) or record(row))
    place = f"/models/{model.slug}"
    head = nodes[8]
    for offset in (0, 3, 9):
        read.clear()
        data = (await web.get(f"{place}.json?offset={offset}")).json()
        assert [row["node"]["id"] for row in data["rows"]] == nodes[::-1][offset : offset + 3]
        assert len(read) <= 3 + 2  # And the chosen one.
        line = [node["id"] for node in data["lineage"]["nodes"]]
        assert line == nodes[8::-1][: pages.LINEAGE]
        assert data["lineage"]["earlier"] == 9 - pages.LINEAGE
        text = (await web.get(f"{place}?offset={offset}")).text
        assert f"checkpoint={head}" in text
        assert "3 earlier" in text


def test_rows_of_a_page_have_the_lines_of_the_whole_drawing():
    parents = [None, 0, 1, 0, 2, 3, None, 6, 4, 1]
    names = [f"{place:032x}" for place in range(len(parents))]
    nodes = [
        CheckpointRecord(
            name, "m", None if parent is None else names[parent], 1, name, Path(name), now()
        )
        for name, parent in zip(names, parents, strict=True)
    ]
    whole = rows_of(nodes, None, names[-1], everything=True)
    for start in range(len(whole)):
        page = slice(start, start + 3)
        drawn = rows_of(nodes, None, names[-1], everything=True, drawn=page)
        assert [row.paths for row in drawn[page]] == [row.paths for row in whole[page]]


def test_a_stretch_of_pruned_checkpoints_is_one_row():
    nodes = [
        CheckpointRecord(
            f"{n:032x}", "m", f"{n - 1:032x}" if n else None, n, f"step-{n}", None, now()
        )
        for n in range(20)
    ]
    rows = rows_of(nodes, None, nodes[-1].id, everything=False)
    assert [(row.kind, row.count) for row in rows] == [("checkpoint", 1), ("fold", 19), ("base", 1)]
    assert len(rows_of(nodes, None, nodes[-1].id, everything=True)) == 21
    kept = rows_of(nodes, None, nodes[-1].id, everything=False, keep=frozenset({nodes[10].id}))
    assert [row.count for row in kept] == [1, 8, 1, 10, 1]


@pytest.mark.slow
async def test_the_gate_s_verdict_stands_beside_the_button(platform, web):
    model = make_model(platform)
    first = made(platform, model, 1)
    second = made(platform, model, 2, first, head=False)
    place = f"/models/m?checkpoint={second}"
    assert "Not compared" in (await web.get(place)).text
    record_rewards(platform, model, first, tasks(0.2))
    record_rewards(platform, model, second, tasks(0.8))
    text = (await web.get(place)).text
    assert "Passes the gate" in text
    assert "+0.600" in text
    assert "Promote to head" in text
    assert "data-confirm" not in text.split("Promote to head")[0].rpartition("<form")[2]


@pytest.mark.slow
async def test_runs_on_trained_tasks_do_not_pass_the_gate_in_the_dashboard(platform, web):
    model = make_model(platform)
    first = made(platform, model, 1, head=False)
    record_rewards(platform, model, None, tasks(0.2))
    record_rewards(platform, model, first, tasks(0.8))
    assert "Passes the gate" in (await web.get(f"/models/m?checkpoint={first}")).text
    record_rewards(platform, model, None, tasks(0.2), purpose="training")
    assert "Passes the gate" not in (await web.get(f"/models/m?checkpoint={first}")).text
    await web.post("/models/m/head", data={"checkpoint": first})
    nodes = {node["id"]: node for node in (await web.get("/v2/models/m/checkpoints")).json()}
    assert not nodes[first]["promotion"]


@pytest.mark.slow
async def test_rolling_back_is_told_from_promoting(platform, web):
    model = make_model(platform)
    first = made(platform, model, 1)
    second = made(platform, model, 2, first)
    record_rewards(platform, model, first, tasks(0.8))
    record_rewards(platform, model, second, tasks(0.2))
    text = (await web.get(f"/models/m?checkpoint={first}")).text
    assert "Roll back to it" in text
    assert "Passes the gate" in text
    assert "Roll back to it" in (await web.get("/models/m?checkpoint=base")).text


@pytest.mark.slow
async def test_what_needs_deleted_files_is_disabled_and_refused_in_a_sentence(platform, web):
    model = make_model(platform)
    tree = platform.registry.of(model.team_id).tree
    first = made(platform, model, 1)
    second = made(platform, model, 2, first)
    third = made(platform, model, 3, second)
    for identifier in (first, second):
        tree.get(identifier).folder.mkdir(parents=True)
    tree.prune(model, {first, third})
    for earned, one in zip((0.1, 0.8, 0.2), (first, second, third), strict=True):
        record_rewards(platform, model, one, tasks(earned))
    page = (await web.get(f"/models/m?checkpoint={second}")).text
    assert "files deleted" in page
    for button in ("Roll back to it", "Open in playground", "Train from here"):
        assert "disabled" in page.split(f">{button}</button>")[0].rpartition("<button")[2]
    compared = (await web.get(f"/models/m/compare?first={third}&second={second}")).text
    assert (
        "disabled"
        in compared.split(f">Roll back to {tree.get(second).name}<")[0].rpartition("<button")[2]
    )
    answer = await web.put("/v2/models/m/head", json={"checkpoint_id": second})
    assert answer.status_code == 409
    assert f"The nearest before it whose files are there: {tree.get(first).name} " in answer.text
    # A name keeps the files.
    answer = await web.put(f"/v2/models/m/checkpoints/{first}", json={"name": "good"})
    assert answer.json()["name"] == "good"
    assert (await web.post("/v2/models/m/prune", json={"keep": []})).json()["pruned"] == []
    assert 'value="good"' in (await web.get("/models/m?checkpoint=good")).text


def test_the_gate_says_what_may_be_said():
    def name(head, candidate):
        return decide(head, candidate).verdict

    lists = lambda rewards: {slug: [value] for slug, value in rewards.items()}  # noqa: E731
    low, high = lists(tasks(0.2)), lists(tasks(0.8))
    assert name(low, high) == "better"
    assert name(high, low) == "worse"
    assert name(low, low) == "unclear"
    assert name(low, {}) == "unknown"
    few = decide(lists(tasks(0.2, 3)), lists(tasks(0.8, 3)))
    assert few.verdict == "unclear"
    assert "too few tasks" in few.sentence


async def test_rollouts_of_training_and_of_subagents_enter_no_comparison(platform):
    model = make_model(platform)
    first = made(platform, model, 1)
    for purpose in ("training", "subagent"):
        record_rewards(platform, model, first, tasks(0.9), purpose=purpose)
    record_rewards(platform, model, first, tasks(0.5, 2))
    record_rewards(platform, model, None, tasks(0.1, 2))

    def rewards(checkpoint, slugs):
        runs = ended_runs(platform.store, model.team_id, "m", checkpoint, slugs)
        return sorted((slug, reward) for slug, _, reward in runs)

    assert rewards(first, None) == [("t0", 0.5), ("t1", 0.51)]
    assert rewards(None, {"t0"}) == [("t0", 0.1)]


@pytest.mark.slow
async def test_a_checkpoint_whose_failing_runs_have_no_reward_does_not_pass(platform, web):
    """The head earns 0 on every third task; there, runs of the checkpoint have no reward."""
    model = make_model(platform)
    first = made(platform, model, 1, head=False)
    third = {f"t{place}": 0.0 for place in range(0, 60, 3)}
    record_rewards(platform, model, None, tasks(0.2, 60) | third)
    record_rewards(platform, model, first, tasks(0.8, 60) | dict.fromkeys(third))
    lone = {"only-of-the-head": 1.0}
    record_rewards(platform, model, None, lone)
    found = (await web.get(f"/models/m.json?checkpoint={first}")).json()["selected"]["verdict"]
    assert found["name"] == "unclear"
    assert (
        "20 of 60 runs of the candidate and 0 of 60 of the head have no reward" in found["sentence"]
    )
    compared = (await web.get(f"/models/m/compare.json?first=base&second={first}")).json()
    assert compared["gate"] == "unclear"


@pytest.mark.slow
async def test_two_checkpoints_are_compared_task_by_task(platform, web):
    model = make_model(platform)
    first = made(platform, model, 1)
    second = made(platform, model, 2, first)
    record_rewards(platform, model, first, {"a": 0.1, "b": 0.9, "c": 0.5})
    record_rewards(platform, model, second, {"a": 0.8, "b": 0.7, "c": 0.5, "d": 1.0})
    place = f"/models/m/compare.json?first={first}&second={second}"
    found = (await web.get(place)).json()
    assert found["comparison"]["tasks"] == 3
    assert found["comparison"]["difference"]["mean"] == pytest.approx(0.5 / 3)
    assert [row["slug"] for row in found["tasks"]["better"]] == ["a"]
    assert [row["slug"] for row in found["tasks"]["worse"]] == ["b"]
    assert found["tasks"]["counts"] == [1, 1, 1]
    assert "Got better" in (await web.get(place.replace(".json", ""))).text


@pytest.mark.slow
async def test_what_a_taskset_lacks_is_told(platform, web):
    model = make_model(platform)
    first = made(platform, model, 1)
    rows = [
        {"name": f"t{n}", "env": {"name": "far"}, "task_id": "say", "args": {}} for n in range(4)
    ]
    await web.post("/v2/tasks/upload", json={"taskset_name": "four", "tasks": rows})
    record_rewards(platform, model, first, tasks(0.5, 3))
    found = (await web.get(f"/models/m/compare.json?first={first}&second=base&taskset=four")).json()
    assert (found["first"]["missing"], found["second"]["missing"]) == (1, 4)
    assert found["comparison"] is None


@pytest.mark.slow
async def test_an_evaluation_is_launched_where_none_is_recorded(platform, web, tmp_path):
    model = make_model(platform)
    (tmp_path / "tasks.py").write_text(TASKS.replace("WORDS", "['red', 'green']"))
    sent = {
        "checkpoint": "base",
        "path": str(tmp_path / "tasks.py"),
        "max_turns": "1",
        "max_tokens": "4",
    }
    answer = await web.post("/models/m/evaluate", data=sent)
    assert answer.status_code == 303, answer.text
    launch = await ended(platform, platform.service("dashboard").launches.of_team(model.team_id)[0])
    assert (launch.status, launch.sentence) == ("finished", None)
    assert len(launch.jobs) == 1
    assert launch.jobs[0] in (await web.get(answer.headers["location"])).text
    assert len({run[0] for run in ended_runs(platform.store, model.team_id, "m", None, None)}) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "sent", "sentence"),
    [
        ("/models/m/evaluate", {}, "Choose a checkpoint to evaluate."),
        ("/models/m/evaluate", {"checkpoint": "base"}, "Choose the tasks."),
        ("/models/m/evaluate", {"checkpoint": "nope", "path": "/"}, "has no checkpoint"),
        ("/models/m/evaluate", {"checkpoint": "base", "path": "/", "max_turns": "x"}, "max_turns"),
        ("/models/m/head", {"checkpoint": "step-9"}, "has no checkpoint"),
        ("/models/m/fork", {"name": ""}, "name"),
        ("/models/m/fork", {"name": "m"}, "m"),
        ("/models/nobody/fork", {"name": "x"}, "There is no model"),
    ],
)
async def test_bad_input_is_one_sentence(platform, web, place, sent, sentence):
    make_model(platform)
    answer = await web.post(place, data=sent)
    assert 400 <= answer.status_code < 500
    assert sentence in answer.text
    assert "Traceback" not in answer.text


@pytest.mark.slow
async def test_a_fork_begins_at_the_head(platform, web):
    make_model(platform)
    answer = await web.post("/models/m/fork", data={"name": "mine"})
    assert answer.headers["location"] == "/models/mine"
    assert 'href="/models/m"' in (await web.get("/models/mine")).text


@pytest.mark.slow
async def test_only_who_may_train_moves_heads_and_forks(keyed):
    make_model(keyed, team=Teams(keyed.store).default().id)
    async with sign_in(keyed, "read") as client:
        text = (await client.get("/models/m?checkpoint=base")).text
        assert "Promote" not in text
        assert "Fork it as" not in text
        for action in ("fork", "head", "evaluate"):
            assert (await client.post(f"/models/m/{action}")).status_code == 403, action


@pytest.mark.slow
async def test_models_of_another_team_are_not_there(keyed):
    make_model(keyed, team=Teams(keyed.store).default().id)
    other = Teams(keyed.store).find_or_create("other").id
    async with sign_in(keyed, "admin", team=other) as client:
        assert (await client.get("/models.json")).json()["items"] == []
        for place in ("/models/m", "/models/m/compare"):
            assert (await client.get(place)).status_code == 404, place
        for action in ("fork", "head", "evaluate"):
            sent = {"name": "x", "checkpoint": "base", "taskset": "x"}
            assert (await client.post(f"/models/m/{action}", data=sent)).status_code == 404, action
