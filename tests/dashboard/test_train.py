"""Training from the dashboard: what may be launched, how it is shown, and who may do what."""

import asyncio
import re
import socket

import pytest
from tests.dashboard.conftest import browse, sign_in
from tests.dashboard.recorded import record

from hud.eval.results.held_out_scores import Score, scores_of
from hud.train.monitoring.alarms import Bands, alarms
from hud_dashboard.launching.launch_request import launched_config
from hud_dashboard.pages.train_form import config_of, fields
from hud_platform.access.teams import Teams
from hud_platform.training.runs import TrainingRuns

TEXTS = ["say red green blue yellow", "aeiou"] * 3
SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "max_context": 64}
TASKS = """
from hud import Environment

env = Environment("letters")

@env.template()
async def say(word: str):
    answer = yield f"say {word}"
    yield min(1.0, len(answer) / 30)

tasks = [say(word=word) for word in WORDS]
"""
LAUNCH = {
    "model": "m", "start": "head", "steps": "2", "group": "4", "tasks_per_step": "2", "max_tokens": "8",
    "max_turns": "1", "lr": "1e-3", "eval_every": "1",
}  # fmt: skip
ROWS = [
    {"name": f"t{n}", "env": {"name": "nowhere"}, "task_id": "say", "args": {"n": n}}
    for n in range(3)
]


def make_model(platform, name="m", team=None):
    team = team or "0" * 32
    return platform.registry.of(team).create(name, TEXTS, sizes=SIZES)


def record_run(platform, model, *, steps=6, status="stopped", **state):
    """A training run as the journal would have left it."""
    runs = TrainingRuns(platform.store, model.team_id)
    config = {
        "model": model.slug,
        "tasks": "tasks.py",
        "held_out": "held.py",
        "steps": 10,
        "lr": 0.01,
    }
    run = runs.start(model.id, config, {"start": None, "checkpoint": None, **state})
    for step in range(steps):
        metrics = {
            "rollout_reward:mean": step / 10,
            "loss:sum": 1.0,
            "action_tokens:sum": 10.0,
            "sampler_k3:mean": 1e-6,
        }
        runs.report(run["id"], step, metrics, step + 1, None)
    runs.change(run["id"], status, None)
    return run["id"]


def score(step, mean, width=0.02, **more):
    return {
        "step": step,
        "mean": mean,
        "low": mean - width,
        "high": mean + width,
        "runs": 8,
        "failed": 0,
        **more,
    }


@pytest.fixture
def folder(tmp_path):
    for name, words in (("tasks", ["red", "green"]), ("held", ["blue", "black"])):
        (tmp_path / f"{name}.py").write_text(TASKS.replace("WORDS", repr(words)))
    return tmp_path


async def test_a_supervised_run_shows_epochs_and_losses_in_place_of_rewards(platform, web):
    model = make_model(platform)
    run = record_run(platform, model, steps=0)
    metrics = {"epoch": 0.5, "loss:sum": 12.5, "action_tokens:sum": 10.0, "seconds:sum": 2.0}
    TrainingRuns(platform.store, model.team_id).report(run, 0, metrics, 1, None)
    assert "supervised" in (await web.get("/train")).text
    page = (await web.get(f"/train/{run}")).text
    for name, value in (("Epoch", "0.50"), ("Loss per token", "1.2500"), ("Tokens a second", "5")):
        assert re.search(rf"<dt>{name}</dt>\s*<dd>{value}</dd>", page), name
    assert "<dt>Reward</dt>" not in page
    for place in ("", "/steps", "/steps/1"):
        page = (await web.get(f"/train/{run}{place}")).text
        assert "1.2500" in page
        assert "Without signal" not in page


@pytest.mark.slow
async def test_runs_are_listed_with_their_scores(platform, web):
    model = make_model(platform)
    scores = [score(0, 0.1), score(5, 0.4)]
    run = record_run(platform, model, scores=scores)
    answer = await web.get("/train")
    assert answer.status_code == 200
    assert f"/train/{run}" in answer.text
    listed = (await web.get("/train.json")).json()["items"]
    assert [one["id"] for one in listed] == [run]
    assert listed[0]["reward"] == 0.5
    assert (listed[0]["first_score"]["mean"], listed[0]["last_score"]["mean"]) == (0.1, 0.4)


async def test_failed_tool_calls_of_its_jobs_are_shown(platform, web):
    extra = {"tool_calls": {"calls": 5, "error": 3}}
    jobs = [
        record(platform, "m training", {"a": [{"reward": 1.0, "extra": extra}]}, purpose=purpose)
        for purpose in ("training", "held_out")
    ]
    scored = score(0, 0.1, job_id=jobs[1])
    run = record_run(platform, make_model(platform), jobs=jobs[:1], scores=[scored])
    page = (await web.get(f"/train/{run}")).text
    assert page.count('title="Of 5 tool calls: 3 errors, 0 time-outs">3</td>') == 2


async def test_no_run_yet_says_how_one_is_begun(web):
    assert "hud train MODEL TASKS" in (await web.get("/train")).text


@pytest.mark.slow
async def test_a_run_shows_its_curves(platform, web):
    model = make_model(platform)
    run = record_run(platform, model, scores=[score(0, 0.1), score(6, 0.4)])
    page = await web.get(f"/train/{run}")
    assert page.status_code == 200
    for name in ("reward", "kl", "loss"):
        assert f"/train/{run}/curves/{name}.json" in page.text
    reward = (await web.get(f"/train/{run}/curves/reward.json")).json()
    by_name = {one["name"]: one for one in reward["series"]}
    assert reward["x"] == [0, 1, 2, 3, 4, 5, 6]
    assert by_name["training"]["values"] == [None, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert by_name["held-out"]["values"] == [0.1, None, None, None, None, None, 0.4]
    assert by_name["held-out"]["low"][0] == pytest.approx(0.08)
    loss = (await web.get(f"/train/{run}/curves/loss.json")).json()
    assert loss["series"][0]["values"] == [0.1] * 6


async def test_a_run_is_there_by_the_start_of_its_id(platform, web):
    run = record_run(platform, make_model(platform))
    page = await web.get(f"/train/{run[:12]}")
    assert f"/train/{run}/curves/reward.json" in page.text
    assert (await web.get("/train/abcd")).status_code == 404


async def test_every_held_out_set_has_a_curve_and_a_column(platform, web):
    sets = [
        {"name": name, "mean": 0.2, "low": None, "high": None, "runs": 4} for name in ("a", "b-50")
    ]
    scores = [score(step, 0.2, sets=sets) for step in (0, 3, 6)]
    run = record_run(platform, make_model(platform), scores=scores)
    reward = (await web.get(f"/train/{run}/curves/reward.json")).json()
    by_name = {one["name"]: one["values"] for one in reward["series"]}
    assert (
        by_name["held-out a"] == by_name["held-out b-50"] == [0.2, None, None, 0.2, None, None, 0.2]
    )
    lines = (await web.get(f"/train/{run}.json")).json()["evaluations"]
    assert [(line["epoch"], line["a_score"], line["b50_score"]) for line in lines] == [
        (0, 0.2, 0.2),
        (3, 0.2, 0.2),
        (6, 0.2, 0.2),
    ]
    assert [line["grpo_reward_mean"] for line in lines] == [
        None,
        pytest.approx(0.1),
        pytest.approx(0.4),
    ]
    page = (await web.get(f"/train/{run}")).text
    assert "b50_score" in page


@pytest.mark.slow
async def test_a_paused_run_shows_why_and_is_overridden(platform, web):
    shown = {"trace_id": "a" * 32, "slug": "say-red", "reward": 1.0, "tokens": 9}
    paused = {
        "step": 6, "alarm": "reward diverges", "sentence": "It fell.", "best_step": 3, "best_checkpoint": None,
        "trajectories": [shown],
    }  # fmt: skip
    marks = {"by": "gone", "tasks": {}, "held_out": []}
    run = record_run(
        platform, make_model(platform), status="paused", guard={"paused": paused}, launched=marks
    )
    page = (await web.get(f"/train/{run}")).text
    assert "Paused by the guard after step 6: reward diverges" in page
    assert f'href="/trace/{"a" * 32}"' in page
    assert "checkpoint=base" in page
    assert 'name="override_guard" value="on">Resume anyway' in page
    other = record_run(platform, make_model(platform, "n"), status="paused", guard=["no record"])
    assert (await web.get(f"/train/{other}")).status_code == 200


async def test_an_unknown_curve_or_run_is_told(platform, web):
    run = record_run(platform, make_model(platform))
    for place in (
        f"/train/{run}/curves/nothing.json",
        "/train/nothing",
        f"/train/{'0' * 32}",
        "/train/launches/x",
    ):
        answer = await web.get(place)
        assert answer.status_code == 404, place


async def test_a_run_that_nobody_holds_is_interrupted(platform, web):
    run = record_run(platform, make_model(platform), status="running")
    assert (await web.get(f"/train/{run}.json")).json()["run"]["status"] == "interrupted"


@pytest.mark.slow
async def test_why_a_run_cannot_be_resumed_is_told(platform, web):
    run = record_run(platform, make_model(platform))
    assert "started by hud train" in (await web.get(f"/train/{run}")).text
    answer = await web.post(f"/train/{run}/resume")
    assert answer.status_code == 409
    assert "started by hud train" in answer.text


async def test_what_is_wrong_stands_beside_its_field(platform, web, folder):
    make_model(platform)
    sent = {
        **LAUNCH,
        "path": str(folder / "tasks.py"),
        "steps": "0",
        "lr": "fast",
        "loss_config": "clip",
    }
    answer = await web.post("/train", data=sent)
    assert answer.status_code == 422
    assert "Steps: it must be greater than or equal to 1." in answer.text
    assert "Learning rate: it must be a valid number" in answer.text
    assert "Each line is NAME=NUMBER, not &#39;clip&#39;." in answer.text
    assert 'value="fast"' in answer.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model": ""}, "Choose a model."),
        ({"model": "nobody"}, "There is no model"),
        ({"path": ""}, "Choose the tasks."),
        ({"path": "/nowhere/tasks.py"}, "There is no file or folder"),
        ({"held_out_path": "/nowhere/held.py"}, "There is no file or folder"),
        ({"start": "step-99"}, "has no checkpoint"),
        ({"loss": "nonsense"}, "nonsense"),
        ({"loss_config": "clop=1"}, "takes no key"),
        ({"stale": "correct"}, "needs a loss that bounds its importance weights"),
        ({"reasoning_effort": "banana"}, "Reasoning effort: it must be"),
        ({"reasoning_effort": "low"}, "reads neither enable_thinking nor reasoning_effort"),
    ],
)  # fmt: skip
async def test_bad_input_is_one_sentence(platform, web, folder, change, sentence):
    make_model(platform)
    answer = await web.post("/train", data={**LAUNCH, "path": str(folder / "tasks.py"), **change})
    assert answer.status_code == 422
    assert sentence in answer.text
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    ("given", "loss", "at_once"),
    [
        ({}, "importance_sampling", 64),
        ({"max_lag": "2"}, "ppo", 128),
        ({"max_lag": "2", "loss": "dro", "max_concurrent": "7"}, "dro", 7),
    ],
)
def test_the_form_as_it_stands_gives_the_defaults_that_the_command_has(given, loss, at_once):
    untouched = {one.name: one.value for group in fields({}, {}).values() for one in group}
    config, problems = config_of({**untouched, **given}, "m", "tasks.py", [])
    assert not problems
    assert (config.loss, config.max_concurrent) == (loss, at_once)


async def test_the_form_leaves_the_learning_rate_to_the_rule_of_the_model(platform, web, folder):
    """It sent 1e-4 explicitly, which ruins full fine-tuning of a pretrained model."""
    make_model(platform)
    page = (await web.get("/train/new")).text
    field = re.search(r'<input id="lr"[^>]*value="([^"]*)"', page)
    assert field.group(1) == ""
    assert "1e-5 for small full ones" in page
    untouched = {one.name: one.value for group in fields({}, {}).values() for one in group}
    config, _ = config_of(untouched, "m", "tasks.py", [])
    assert "lr" not in config.model_fields_set
    assert "lr" not in launched_config(config)
    stated, _ = config_of({**untouched, "lr": "1e-4"}, "m", "tasks.py", [])
    assert launched_config(stated)["lr"] == 1e-4


@pytest.mark.slow
async def test_what_is_trained_on_cannot_be_held_out(platform, web, folder):
    make_model(platform)
    path = str(folder / "tasks.py")
    answer = await web.post("/train", data={**LAUNCH, "path": path, "held_out_path": path})
    assert "must not be trained on" in answer.text


async def test_a_taskset_whose_environment_is_not_here_cannot_be_chosen(platform, web):
    make_model(platform)
    made = await web.post("/v2/tasks/upload", json={"taskset_name": "far", "tasks": ROWS})
    page = await web.get("/train/new?model=m")
    assert "cannot be played here" in page.text
    assert "No build of its environment &#39;nowhere&#39; is on this server" in page.text
    answer = await web.post("/train", data={**LAUNCH, "taskset": made.json()["taskset_id"]})
    assert answer.status_code == 422
    assert "cannot be played" in answer.text


@pytest.mark.slow
async def test_a_server_reads_no_files_that_a_browser_names(keyed, folder):
    make_model(keyed, team=Teams(keyed.store).default().id)
    async with sign_in(keyed, "train") as client:
        assert "of this machine" not in (await client.get("/train/new")).text
        answer = await client.post("/train", data={**LAUNCH, "path": str(folder / "tasks.py")})
    assert "chosen among its tasksets" in answer.text


@pytest.mark.parametrize("place", ["/train/new", "/jobs/new"])
async def test_without_a_taskset_a_server_says_how_one_is_uploaded(keyed, place):
    make_model(keyed, team=Teams(keyed.store).default().id)
    async with sign_in(keyed, "train") as client:
        page = (await client.get(place)).text
    assert "There is no taskset yet" in page
    assert "hud sync tasks NAME tasks.py" in page


@pytest.mark.slow
async def test_only_who_may_train_launches_stops_and_resumes(keyed):
    model = make_model(keyed, team=Teams(keyed.store).default().id)
    run = record_run(keyed, model)
    async with sign_in(keyed, "run") as client:
        assert "Train a model" not in (await client.get("/train")).text
        assert (await client.get(f"/train/{run}")).status_code == 200
        assert (await client.get("/train/new")).status_code == 403
        for place in ("/train", f"/train/{run}/stop", f"/train/{run}/resume"):
            assert (await client.post(place, data=LAUNCH)).status_code == 403, place


@pytest.mark.slow
async def test_runs_of_another_team_are_not_there(keyed):
    mine, other = Teams(keyed.store).default().id, Teams(keyed.store).find_or_create("other").id
    run = record_run(keyed, make_model(keyed, team=mine))
    async with sign_in(keyed, "admin", team=other) as client:
        assert (await client.get("/train.json")).json()["items"] == []
        for place in (f"/train/{run}", f"/train/{run}/curves/reward.json", f"/events/train/{run}"):
            assert (await client.get(place)).status_code == 404, place
        for place in (f"/train/{run}/stop", f"/train/{run}/resume"):
            assert (await client.post(place)).status_code == 404, place


async def test_hostile_names_are_escaped(platform, web):
    model = make_model(platform)
    runs = TrainingRuns(platform.store, model.team_id)
    config = {
        "model": "m",
        "tasks": "<script>alert(1)</script>\u202e",
        "steps": 1,
        "system_prompt": "<img src=x>",
    }
    run = runs.start(model.id, config, {"error": "<b>broken</b>"})
    runs.change(run["id"], "failed", None)
    text = (await web.get(f"/train/{run['id']}")).text + (await web.get("/train")).text
    assert "<script>alert" not in text
    assert "<img src=x>" not in text
    assert "<b>broken" not in text
    assert "\u202e" not in text


async def test_posted_scores_that_are_none_are_left_out(platform, web):
    model = make_model(platform)
    scores = [{"mean": "high"}, 7, {"step": 3, "mean": 0.25, "low": None, "high": None, "runs": 4}]
    run = TrainingRuns(platform.store, model.team_id).start(
        model.id, {"steps": 9}, {"scores": scores}
    )
    shown = await web.get(f"/train/{run['id']}")
    assert shown.status_code == 200
    assert "0.250" in shown.text


async def until(condition):
    async with asyncio.timeout(120):
        while True:
            if condition():
                return
            await asyncio.sleep(0.1)


async def ended(platform, launch):
    await asyncio.wait_for(asyncio.shield(launch.task), 120)
    return launch


@pytest.mark.slow
async def test_a_launched_run_trains_and_a_stopped_one_is_resumed(platform, web, folder):
    make_model(platform)
    sent = {
        **LAUNCH,
        "path": str(folder / "tasks.py"),
        "held_out_path": str(folder / "held.py"),
        "steps": "400",
    }
    answer = await web.post("/train", data=sent)
    assert answer.status_code == 303, answer.text
    launch = platform.service("dashboard").launches.of_team("0" * 32)[0]
    assert answer.headers["location"] == f"/train/launches/{launch.id}"
    again = await web.post("/train", data=sent)
    assert "is being trained already" in again.text or "A run is training &#39;m&#39;" in again.text

    runs = TrainingRuns(platform.store, "0" * 32)
    await until(lambda: launch.run_id and runs.get(launch.run_id)["next_step"])
    place = (await web.get(f"/train/launches/{launch.id}")).headers["location"]
    assert place == f"/train/{launch.run_id}"
    assert (await web.get(f"{place}.json")).json()["run"]["status"] == "running"
    assert (await web.post(f"{place}/stop")).status_code == 303
    await ended(platform, launch)
    stopped = (await web.get(f"{place}.json")).json()
    assert stopped["run"]["status"] == "stopped"
    assert stopped["why_not_resumed"] is None
    done = stopped["run"]["next_step"]

    assert (await web.post(f"{place}/resume")).status_code == 303
    resumed = platform.service("dashboard").launches.of_team("0" * 32)[0]
    assert resumed is not launch
    await until(lambda: resumed.over or runs.get(launch.run_id)["next_step"] > done)
    assert not resumed.over, resumed.sentence
    platform.service("dashboard").launches.stop(resumed)
    await ended(platform, resumed)
    assert [one["id"] for one in runs.recent(None)] == [launch.run_id]
    # The rollouts of both goes are there, and each evaluation once, whether it ended or was stopped.
    jobs = (await web.get(f"{place}.json")).json()["jobs"]
    assert len({job["id"] for job in jobs}) == len(jobs)
    assert [job["step"] is None for job in jobs].count(True) == 2
    first = (await web.get(f"{place}/steps/1.json")).json()
    assert [len(group["runs"]) for group in first["groups"]].count(4) >= 2
    assert all(group["prompt"].startswith("say ") for group in first["groups"])


@pytest.mark.slow
async def test_a_crash_shows_its_sentence(platform, web, folder):
    make_model(platform)
    (folder / "broken.py").write_text("raise RuntimeError('no world today')")
    answer = await web.post("/train", data={**LAUNCH, "path": str(folder / "broken.py")})
    launch = await ended(platform, platform.service("dashboard").launches.of_team("0" * 32)[0])
    page = await web.get(answer.headers["location"])
    assert launch.status == "failed"
    assert "no world today" in page.text
    assert "Traceback" not in page.text


@pytest.mark.slow
async def test_a_server_that_stops_leaves_a_run_that_can_be_resumed(platform, folder):
    make_model(platform)
    async with browse(platform.app) as web, platform.app.router.lifespan_context(platform.app):
        sent = {**LAUNCH, "path": str(folder / "tasks.py"), "steps": "400"}
        await web.post("/train", data=sent)
        launch = platform.service("dashboard").launches.of_team("0" * 32)[0]
        await until(lambda: launch.run_id)
        await platform.background.drain()
        run = TrainingRuns(platform.store, "0" * 32).get(launch.run_id)
        assert launch.over
        assert run["status"] == "interrupted"
        assert "Resume it" in run["state"]["error"]


async def test_a_run_whose_server_died_is_marked_at_the_next_start(platform):
    gone = f"launcher/{socket.gethostname()}/1/1/x"
    run = record_run(platform, make_model(platform), status="running", launched={"by": gone})
    TrainingRuns.mark_lost(platform.store, "gone")
    found = TrainingRuns(platform.store, "0" * 32).get(run)
    assert (found["status"], found["state"]["error"]) == ("interrupted", "gone")


def history(values, key="rollout_reward:mean", **more):
    return [{"step": step, "metrics": {key: value, **more}} for step, value in enumerate(values)]


def fallen(step, mean, since):
    change = {"since": since, "mean": -0.4, "low": -0.6, "high": -0.2, "below": 1}
    one = {"name": "held", "mean": mean, "low": None, "high": None, "runs": 8, "change": change}
    return score(step, mean, sets=[one])


@pytest.mark.parametrize(
    ("rows", "scores", "name"),
    [
        ([], [score(0, 0.2), score(10, 0.8), fallen(20, 0.4, since=10)], "held-out falls"),
        (history([0.8] * 8 + [0.1] * 8), [], "reward collapses"),
        (history([0.5] * 5, "sampler_k3:mean"), [], "KL"),
        (history([0.2] * 5, "sampler_gap:mean"), [], "logprob gap"),
        (history([2.0] * 6 + [0.01] * 6, "entropy:mean"), [], "entropy collapses"),
        (history([9.0] * 5, "groups_without_spread:sum", **{"groups_drawn:sum": 10.0}), [], "no signal"),
        (history([5.0] * 5, "failed_rollouts:sum", **{"runs:sum": 5.0}), [], "failures"),
        (history([1.0] * 12 + [50.0], "grad_norm:mean"), [], "gradient spike"),
    ],
)  # fmt: skip
def test_alarms_are_raised_for(rows, scores, name):
    assert [one.name for one in alarms(rows, scores_of({"scores": scores}))] == [name]


@pytest.mark.parametrize(
    ("limit", "names"), [(None, []), (0.5, []), (0.3, ["KL to the reference"])]
)
def test_the_kl_to_the_reference_has_a_band_where_one_is_set(limit, names):
    found = alarms(history([0.4] * 5, "reference_kl:mean"), [], Bands(reference_kl=limit))
    assert [(one.name, one.guarded) for one in found] == [(name, True) for name in names]


def test_a_run_that_goes_well_raises_no_alarm():
    rows = history(
        [step / 20 for step in range(20)], **{"sampler_k3:mean": 1e-6, "grad_norm:mean": 1.0}
    )
    scores = [Score(**score(0, 0.1)), Score(**score(10, 0.5)), Score(**score(20, 0.49))]
    assert alarms(rows, scores) == []
