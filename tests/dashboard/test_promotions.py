"""Promotions over HTTP: the platform judges two recorded jobs, and moves the head or holds it."""

import asyncio
import shutil
import threading

import pytest
import sqlalchemy as sa
from tests.dashboard.recorded import record
from tests.dashboard.test_models import record_rewards, served, tasks
from tests.dashboard.test_train import make_model

from hud.trace import new_id, now
from hud.trace.sampled.token_columns import pack_ids, pack_logprobs
from hud_platform.models import promotion
from hud_platform.models.checkpoint_files import SAMPLER, STATE, Manifest, write_checkpoint
from hud_platform.models.checkpoint_tree import node_name
from hud_platform.models.records import CheckpointRecord
from hud_platform.routes import promotions
from hud_platform.store import tables
from hud_platform.store.trainer_logprobs import ComputedRun, PassWeights, record_pass


def checkpoint(platform, model, step=1, parent=None):
    """Add a checkpoint whose files are those of the base; the head stays at the base."""
    tree, identifier = platform.registry.of(model.team_id).tree, new_id()

    def write(folder):
        shutil.copytree(model.folder, folder / SAMPLER)
        (folder / STATE).write_bytes(b"state")

    place = tree.place(model.id) / node_name(step, identifier)
    write_checkpoint(place, Manifest(id=identifier, model_id=model.id, step=step), write)
    node = CheckpointRecord(
        id=identifier,
        model_id=model.id,
        parent_id=parent,
        step=step,
        name=node_name(step, identifier),
        folder=place,
        created_at=now(),
        metrics={"idempotency_key": f"{'a' * 32}:{step - 1}", "loss:sum": 1.0},
    )
    before = platform.registry.of(model.team_id).model(model.id).head_checkpoint_id
    tree.append(node, expected_head=before)
    tree.set_head(model, before)
    return identifier


def recorded(platform, model, checkpoint, rewards):
    """Record a job, and return its id."""
    record_rewards(platform, model, checkpoint, rewards)
    store = platform.store
    with store.read() as connection:
        rows = connection.execute(tables.jobs.select().order_by(tables.jobs.c.created_at.desc()))
        return rows.first().id


@pytest.fixture
def scene(platform):
    model = make_model(platform)
    node = checkpoint(platform, model)
    jobs = {
        "head": recorded(platform, model, None, tasks(0.2)),
        "better": recorded(platform, model, node, tasks(0.8)),
        "same": recorded(platform, model, node, tasks(0.2)),
    }
    return model, node, jobs


async def listed(web, slug="m"):
    return {node["id"]: node for node in (await web.get(f"/v2/models/{slug}/checkpoints")).json()}


@pytest.mark.slow
async def test_the_gate_moves_the_head_on_evidence_and_records_it(web, scene):
    _, node, jobs = scene
    sent = {"checkpoint_id": node[:8], "jobs": [jobs["head"], jobs["same"]]}
    held = (await web.post("/v2/models/m/promote", json=sent)).json()
    assert (held["moved"], held["verdict"], held["checkpoint_id"]) == (False, "unclear", node)
    assert not (await listed(web))[node]["is_active"]

    sent["jobs"][1] = jobs["better"]
    found = (await web.post("/v2/models/m/promote", json=sent)).json()
    assert (found["moved"], found["promoted"], found["forced"]) == (True, True, False)
    assert found["overall"]["low"] > 0.5
    now_ = (await listed(web))[node]
    assert now_["is_active"]
    assert now_["promotion"]["jobs"] == sent["jobs"]
    assert set(now_["metrics"]) == {"loss:sum"}, "HUD's client takes numbers only"
    assert "head promoted" in (await web.get("/people/audit")).text
    again = await web.post("/v2/models/m/promote", json=sent)
    assert again.status_code == 409
    assert "is the head of 'm' already" in again.text


async def test_jobs_that_no_model_played_and_rollouts_of_training_are_no_evidence(
    web, platform, scene
):
    model, node, jobs = scene
    unplayed = recorded(platform, model, node, tasks(0.9))
    with platform.store.begin() as connection:
        of_job = tables.runs.c.job_id == unplayed
        # A recorder may report any number of tokens.
        connection.execute(
            tables.requests.delete().where(
                tables.requests.c.trace_id.in_(sa.select(tables.runs.c.trace_id).where(of_job))
            )
        )
    record_rewards(platform, model, node, tasks(0.9), purpose="training")
    with platform.store.read() as connection:
        newest = tables.jobs.select().order_by(tables.jobs.c.created_at.desc())
        training = connection.execute(newest).first().id
    for job, reason in ((unplayed, "sampled no turn"), (training, "rollouts of training")):
        sent = {"checkpoint_id": node, "jobs": [jobs["head"], job]}
        answer = await web.post("/v2/models/m/promote", json=sent)
        assert answer.status_code == 409
        assert reason in answer.text
    sent = {"checkpoint_id": node, "jobs": [jobs["head"], jobs["same"]], "gate": {"min_gain": -2}}
    answer = await web.post("/v2/models/m/promote", json=sent)
    assert answer.status_code in (400, 422)
    assert "min_gain is a gain" in answer.text
    assert not (await listed(web))[node]["is_active"]


def said(word):
    """The task of a run, as its recorder sends it."""
    return {"env": "letters", "id": "say", "args": {"word": word}}


async def judged(web, platform, node, slugs, word, **sides):
    """Record runs of head and candidate on tasks of these slugs, and ask for a promotion."""
    task, jobs = said(word), []
    for weights, reward in ((None, 0.2), (node, 0.9)):
        rewards = {slug: [reward] for slug in slugs}
        jobs.append(record(platform, "e", rewards, model="m", checkpoint=weights, task=task))
    with platform.store.read() as connection:
        of_jobs = tables.runs.select().where(tables.runs.c.job_id.in_(jobs))
        served(platform, [dict(row._mapping) for row in connection.execute(of_jobs)])
    return await web.post("/v2/models/m/promote", json={"checkpoint_id": node, "jobs": jobs})


@pytest.mark.slow
@pytest.mark.parametrize(("word", "status"), [("red", 409), ("blue", 200)])
async def test_trained_tasks_under_other_slugs_are_no_evidence(web, platform, scene, word, status):
    _, node, _ = scene
    record(platform, "t", {"say-red": [0.5]}, model="m", purpose="training", task=said("red"))
    answer = await judged(web, platform, node, [f"held-{n}" for n in range(8)], word)
    assert answer.status_code == status, answer.text
    assert ("8 of the 8 tasks are trained on" in answer.text) == (status == 409)


@pytest.mark.parametrize("others", [False, True])
async def test_tasks_of_runs_that_a_training_client_learned_from_are_no_evidence(
    web, platform, scene, others
):
    """They are an evaluation's runs: the job that holds them is none of training. `others`: another model learned from them later."""
    model, node, _ = scene
    slugs = [f"held-{n}" for n in range(8)]
    learned = record(platform, "e", {"say-red": [0.5]}, model="m", task=said("red"))
    with platform.store.begin() as connection:
        of_job = sa.select(tables.runs.c.trace_id).where(tables.runs.c.job_id == learned)
        (trace,) = connection.execute(of_job).scalars()
        sample = {
            "prompt": pack_ids([1]),
            "output": pack_ids([2]),
            "logprobs": pack_logprobs([-1.0]),
        }
        connection.execute(tables.samples.insert().values(trace_id=trace, step_id=1, **sample))
    turn = pack_ids([2]), pack_logprobs([-1.5])
    for trained in [model.id, new_id()][: 1 + others]:
        weights = PassWeights(trained, 0, None)
        record_pass(platform.store, model.team_id, weights, [ComputedRun(trace, [turn])])
    answer = await judged(web, platform, node, slugs, "red")
    assert answer.status_code == 409, answer.text
    assert "8 of the 8 tasks are trained on" in answer.text
    assert (await judged(web, platform, node, slugs, "blue")).status_code == 200


@pytest.mark.slow
async def test_tasks_of_a_candidate_that_was_promoted_stay_trained_on(web, platform, scene):
    """The head has its weights, so later candidates have learned them, too."""
    model, _, jobs = scene
    registry = platform.registry.of(model.team_id)
    fork = registry.fork("m", "m-candidate-1")
    theirs = checkpoint(platform, fork, step=4)
    record(platform, "t", {"x": [0.5]}, model=fork.slug, purpose="training", task=said("red"))
    job = recorded(platform, fork, theirs, tasks(0.7))
    sent = {"checkpoint_id": theirs, "source_model_id": fork.slug, "jobs": [jobs["head"], job]}
    assert (await web.post("/v2/models/m/promote", json=sent)).json()["moved"]
    head = registry.model("m").head_checkpoint_id
    later = checkpoint(platform, registry.model("m"), step=5, parent=head)
    registry.tree.set_head(registry.model("m"), None)
    answer = await judged(web, platform, later, [f"held-{n}" for n in range(8)], "red")
    assert answer.status_code == 409, answer.text
    assert "8 of the 8 tasks are trained on" in answer.text


@pytest.mark.parametrize("in_progress", [False, True])
async def test_command_and_dashboard_count_the_same_runs_of_a_crashed_job(
    platform, scene, in_progress
):
    """Runs without an end count as unmeasured once their job is over, and not before."""
    model, node, _ = scene
    lost = {f"lost-{n}": [0.9, None] for n in range(5)}
    crashed = record(platform, "m", lost, model="m", checkpoint=node, open_job=in_progress)
    head = record(platform, "m", {slug: [0.2, 0.2] for slug in lost}, model="m")
    with platform.store.read() as connection:
        measured = tables.runs.select().where(tables.runs.c.completion_tokens > 0)
        played = [dict(row._mapping) for row in connection.execute(measured)]
    served(platform, [run for run in played if run["job_id"] in (head, crashed)])
    registry = platform.registry.of(model.team_id)
    evidence = promotion.Evidence((head, crashed))
    one = promotion.judge(registry, model, model, registry.tree.get(node), evidence)
    other = promotion.judge_recorded(registry, model, node, set(lost))
    assert one.unmeasured == other.unmeasured
    counted = (one.unmeasured.candidate, one.unmeasured.candidate_runs)
    assert counted == ((0, 5) if in_progress else (5, 10))
    assert (one.unmeasured.head, one.unmeasured.head_runs) == (0, 10)


@pytest.fixture
def judged_at_once(monkeypatch):
    """Let two promotions be judged before either moves the head."""
    both_judged, decide = threading.Barrier(2, timeout=30), promotions.judge

    def judge(*arguments):
        decision = decide(*arguments)
        both_judged.wait()
        return decision

    monkeypatch.setattr(promotions, "judge", judge)


@pytest.mark.usefixtures("judged_at_once")
async def test_of_two_candidates_judged_at_once_against_one_head_one_is_promoted(
    web, platform, scene
):
    model, node, jobs = scene
    other = checkpoint(platform, model)
    candidates = {node: jobs["better"], other: recorded(platform, model, other, tasks(0.9))}
    answers = await asyncio.gather(
        *(
            web.post(
                "/v2/models/m/promote",
                json={"checkpoint_id": one, "jobs": [jobs["head"], job]},
            )
            for one, job in candidates.items()
        )
    )
    assert sorted(answer.status_code for answer in answers) == [200, 409]
    refused = max(answers, key=lambda answer: answer.status_code)
    assert "The head of 'm' was moved" in refused.text
    promoted = [one for one in (await listed(web)).values() if one["promotion"]]
    assert [one["is_active"] for one in promoted] == [True]


@pytest.mark.slow
async def test_a_broken_critical_subset_is_held_and_force_is_recorded(web, platform, scene):
    model, node, jobs = scene
    broken = tasks(0.9) | {f"t{place}": 0.0 for place in range(6)}
    subsets = {"tag=pay": [f"t{place}" for place in range(6)]}
    gate = {"critical": ["tag=pay"]}
    sent = {
        "checkpoint_id": node,
        "jobs": [jobs["head"], recorded(platform, model, node, broken)],
        "gate": gate,
        "subsets": subsets,
    }
    held = (await web.post("/v2/models/m/promote", json=sent)).json()
    assert (held["moved"], held["verdict"]) == (False, "worse")
    assert "Critical tag=pay broke" in " ".join(held["reasons"])
    found = (await web.post("/v2/models/m/promote", json={**sent, "force": True})).json()
    assert (found["moved"], found["promoted"], found["forced"]) == (True, False, True)
    record = (await listed(web))[node]["promotion"]
    assert record["forced"]
    assert "Critical tag=pay broke" in " ".join(record["reasons"])
    assert "Forced, although the gate refused it: " in (await web.get("/models/m")).text
    assert "head forced" in (await web.get("/people/audit")).text
    # No gate let it pass: setting it again goes round the gate too.
    answer = await web.put("/v2/models/m/head", json={"checkpoint_id": node})
    assert answer.json()["round_the_gate"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("earned", "action", "shown"),
    [
        (0.8, "head promoted", "Promoted by the gate: "),
        (0.2, "head forced", "Forced, although the gate refused it: Not shown to be better"),
        (None, "head moved", "It serves"),
    ],
)
async def test_the_page_s_button_records_what_the_gate_says(web, platform, earned, action, shown):
    model = make_model(platform)
    node = checkpoint(platform, model)
    record_rewards(platform, model, None, tasks(0.2))
    if earned is not None:
        record_rewards(platform, model, node, tasks(earned))
    await web.post("/models/m/head", data={"checkpoint": node})
    assert shown in (await web.get("/models/m")).text
    assert action in (await web.get("/people/audit")).text
    assert ((await listed(web))[node]["promotion"] is None) == (earned is None)
    await web.post("/models/m/head", data={"checkpoint": "base"})
    assert "head moved" in (await web.get("/people/audit")).text, "a roll back asks no gate"


async def test_a_fork_s_checkpoint_becomes_one_of_the_model_s_own(web, platform, scene):
    model, _, jobs = scene
    registry = platform.registry.of(model.team_id)
    fork = registry.fork("m", "m-candidate-1")
    theirs = checkpoint(platform, fork, step=4)
    job = recorded(platform, fork, theirs, tasks(0.7))
    sent = {"checkpoint_id": theirs, "source_model_id": fork.slug, "jobs": [jobs["head"], job]}
    found = (await web.post("/v2/models/m/promote", json=sent)).json()
    own = registry.tree.get(registry.model("m").head_checkpoint_id)
    assert (found["moved"], found["checkpoint_id"], own.step) == (True, own.id, 4)
    lineage = {fork.id: "m-candidate-1", model.id: "m"}
    assert found["from"] == {"model": fork.slug, "checkpoint": theirs, "lineage": lineage}
    registry.tree.prune(fork, set())
    registry.tree.verify(own, model)
    # What the fork's weights earned counts as the head's from now on.
    later = checkpoint(platform, fork, step=5, parent=theirs)
    job_later = recorded(platform, fork, later, tasks(0.95))
    sent = {"checkpoint_id": later, "source_model_id": fork.slug, "jobs": [job, job_later]}
    assert (await web.post("/v2/models/m/promote", json=sent)).json()["moved"]


@pytest.mark.parametrize(
    ("change", "status", "sentence"),
    [
        (
            {"jobs": ["better", "head"]},
            409,
            "not by the head of 'm'; play the tasks again with both",
        ),
        ({"jobs": ["head", "head"]}, 409, "was played by m at base, not by step-1"),
        ({"jobs": ["head", "0" * 32]}, 404, "job"),
        ({"checkpoint_id": "step-7"}, 404, "has no checkpoint 'step-7'"),
        ({"checkpoint_id": "base"}, 400, "hud models head m --set base"),
        ({"gate": {"critical": ["tag=no"]}}, 400, "No task has tag=no"),
        ({"gate": {"max_regression": -1}}, 400, "at least 0"),
        ({"gate": {"critical": ["tag"]}}, 400, "COLUMN=VALUE"),
        ({"surprise": 1}, 422, "surprise"),
    ],
)
async def test_what_cannot_be_judged_is_refused(web, scene, change, status, sentence):
    _, node, jobs = scene
    sent = {"checkpoint_id": node, "jobs": ["head", "better"], **change}
    sent["jobs"] = [jobs.get(one, one) for one in sent["jobs"]]
    answer = await web.post("/v2/models/m/promote", json=sent)
    assert sentence in answer.text
    assert answer.status_code == status
    assert not (await listed(web))[node]["is_active"]


async def test_a_stranger_s_weights_are_no_candidate(web, platform, scene):
    _, _, jobs = scene
    other = make_model(platform, "other")
    node = checkpoint(platform, other)
    job = recorded(platform, other, node, tasks(0.9))
    sent = {"checkpoint_id": node, "source_model_id": "other", "jobs": [jobs["head"], job]}
    answer = await web.post("/v2/models/m/promote", json=sent)
    assert (answer.status_code, "is not a fork of 'm'" in answer.text) == (400, True)


@pytest.mark.parametrize("candidate", [False, True])
async def test_a_candidate_gates_its_base_and_a_fork_of_such_a_name_does_not(web, scene, candidate):
    model, node, _ = scene
    sent = {"source_model_id": model.id, "name": "m-candidate-7"}
    if candidate:
        sent["config"] = {"candidate": True}
    made = (await web.post("/v2/models/fork", json=sent)).json()
    assert made["config"]["candidate"] is candidate
    again = (await web.post("/v2/models/fork", json={**sent, "name": "n", "config": None})).json()
    assert not again["config"]["candidate"]
    answer = await web.put("/v2/models/m/head", json={"checkpoint_id": node})
    assert answer.json()["round_the_gate"] is candidate


@pytest.mark.usefixtures("judged_at_once")
@pytest.mark.parametrize("count", [1, 2])
async def test_a_fork_s_checkpoint_that_loses_a_race_leaves_no_copy(web, platform, scene, count):
    """Two requests for one candidate, and for one candidate of each of two forks."""
    model, _, jobs = scene
    registry = platform.registry.of(model.team_id)
    sent = []
    for number in range(count):
        fork = registry.fork("m", f"m-candidate-{number}")
        theirs = checkpoint(platform, fork, step=4)
        job = recorded(platform, fork, theirs, tasks(0.7))
        sent.append(
            {"checkpoint_id": theirs, "source_model_id": fork.slug, "jobs": [jobs["head"], job]}
        )
    before = set(await listed(web))
    answers = await asyncio.gather(
        *(web.post("/v2/models/m/promote", json=body) for body in (sent * 2)[:2])
    )
    assert sorted(answer.status_code for answer in answers) == [200, 409]
    added = set(await listed(web)) - before
    head = registry.model("m").head_checkpoint_id
    assert added == {head}
    own = registry.tree.place(model.id)
    assert [folder.name for folder in own.glob("step-4-*")] == [registry.tree.get(head).name]
    with platform.store.read() as connection:
        actions = connection.execute(sa.select(tables.audit.c.action)).scalars().all()
    assert actions.count("head promoted") == 1
