"""Training where the policy calls subagents: they play with models of their own, and learn where they are joined."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import contextmanager
from dataclasses import replace

import pytest
from safetensors.torch import load_file
from tests.train import hierarchy_world as world

from hud.agents import ScriptedAgent
from hud.client import connect, disconnect
from hud.errors import UsageError
from hud.eval import StopSignal
from hud.exchange.supervision import conversation_of
from hud.trace import Completion, ToolCall
from hud.trace.recording.recorder import NullRecorder
from hud.train.config import TrainConfig
from hud.train.learner import Learner
from hud.train.loop import train, warm_up
from hud.train.monitoring.progress import Reporter
from hud.train.recipe import Recipe, follow, is_recipe, load_recipe, make_recipe
from hud.train.supervised.corpus import texts_of_messages

SIZES = {
    "vocab_size": 320,
    "hidden": 48,
    "layers": 1,
    "heads": 2,
    "kv_heads": 1,
    "max_context": 384,
}
SMALL = {"group": 3, "tasks_per_step": 2, "max_tokens": 40, "max_turns": 2, "steps": 2, "lr": 1e-3}


def relays(messages, tools, trace):
    """Asks about the word of the prompt, and is done."""
    if len(messages) > 1:
        return Completion(content="done")
    word = messages[0]["content"].split()[1]
    return Completion(tool_calls=[ToolCall(id="c", name="ask", arguments={"word": word})])


def says(messages, tools, trace):
    return Completion(content=messages[0]["content"].split()[1])


pytestmark = pytest.mark.sqlite  # Homes are copied, stores and all.


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """A home with a caller's policy that has learned to ask, and a subagent's that has learned nothing."""
    folder = tmp_path_factory.mktemp("taught") / "home"

    async def teach():
        agent = ScriptedAgent(relays, name="teacher")
        agent.subagents = {"ask": ScriptedAgent(says, name="sayer")}
        job = await world.calls.run(agent, group=24, recorder=NullRecorder())
        said = [conversation_of(run.trace) for run in job.runs]
        texts = [text for messages in said for text in texts_of_messages(messages)]
        for name in ("parent", "child"):
            body = {"name": name, "texts": texts, "sizes": SIZES}
            await connect().post("/v2/models/create", body)
        await warm_up("parent", job.runs, epochs=5, batch=12, lr=2e-2)
        disconnect(folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HUD_HOME", str(folder))
        patch.delenv("HUD_API_URL", raising=False)
        asyncio.run(teach())
    return folder


@pytest.fixture
def home_at(taught, tmp_path, monkeypatch):
    """Makes homes, each a copy of the taught one, and moves into them."""
    made = []
    monkeypatch.delenv("HUD_API_URL", raising=False)

    def move_to(name):
        folder = tmp_path / name
        if not folder.exists():
            shutil.copytree(taught, folder)
        monkeypatch.setenv("HUD_HOME", str(folder))
        made.append(folder)
        return folder

    yield move_to
    for folder in made:
        disconnect(folder)


@pytest.fixture
def home(home_at):
    return home_at("home")


def settings(**given):
    return TrainConfig(**{"model": "parent", **SMALL, **given})


async def tree_of(model):
    """The steps of a model's checkpoints, and its head."""
    nodes = await connect().get(f"/v2/models/{model}/checkpoints")
    row = await connect().get("/v2/models/resolve", params={"model": model})
    return nodes, row


async def training_runs(model):
    row = await connect().get("/v2/models/resolve", params={"model": model})
    return (await connect().get("/v2/training-runs", params={"model": row["id"]}))["items"]


async def weights_of(model):
    run = (await training_runs(model))[0]
    node = connect().embedded.parts.registry.tree.get(run["state"]["checkpoint"])
    return load_file(node.folder / "sampler" / "model.safetensors")


@pytest.mark.slow
async def test_a_frozen_subagent_plays_with_its_own_model_and_keeps_its_weights(home):
    before, _ = await tree_of("child")
    report = await train(settings(), tasks=world.calls)
    assert report.finished
    assert [one["step"] for one in report.history] == [0, 1]
    counted = report.history[0]["metrics"]
    assert counted["subagent_runs:sum"] >= SMALL["group"] * SMALL["tasks_per_step"]
    assert 0.0 < counted["subagent_reward:mean"] <= 1.0
    after, _ = await tree_of("child")
    assert after == before
    assert await training_runs("child") == []
    # What it did is on record all the same, with the tokens that it drew: anybody may train it on that.
    jobs = {job["name"].split(",")[0]: job for job in (await connect().get("/v2/jobs"))["items"]}
    page = await connect().get(f"/v2/jobs/{jobs['ask']['id']}/traces", params={"limit": 5})
    full = await connect().get(f"/v2/trace/{page['items'][0]['trace_id']}/full")
    turns = [step for step in full["trace"]["steps"] if step["source"] == "agent"]
    assert turns[0]["sample"]["output_token_ids"]
    assert full["run"]["model"] == "child"


@pytest.mark.slow
async def test_a_joined_subagent_learns_from_the_runs_that_were_played_with_it(home):
    report = await train(settings(joined=["child"]), tasks=world.calls)
    assert report.finished
    (run,) = await training_runs("child")
    assert run["status"] == "finished"
    steps = (await connect().get(f"/v2/training-runs/{run['id']}/steps"))["items"]
    assert [one["step"] for one in steps] == [0, 1]
    taught = [one["metrics"] for one in steps if "loss:sum" in one["metrics"]]
    assert taught
    for metrics in taught:
        # Each caller's attempt asks once: a group is the same call of all attempts.
        assert metrics["runs:sum"] % SMALL["group"] == 0
        assert metrics["sampler_gap:max"] < 1e-3
    assert run["state"]["checkpoint"] != run["state"]["start"]


@pytest.mark.slow
async def test_a_joint_training_that_dies_between_two_updates_goes_on_as_if_it_had_not(
    home_at, monkeypatch
):
    config = settings(joined=["child"], steps=3, max_concurrent=1)
    home_at("straight")
    straight = await train(config, tasks=world.calls)
    expected = [await weights_of(model) for model in ("parent", "child")]

    home_at("killed")
    apply = Learner.optim_step

    async def dying(self, step, reward):
        if self.config.model == "parent" and step == 1:
            raise KeyboardInterrupt  # The child has learned this step; its caller has not.
        return await apply(self, step, reward)

    monkeypatch.setattr(Learner, "optim_step", dying)
    with pytest.raises(KeyboardInterrupt):
        await train(config, tasks=world.calls)
    monkeypatch.setattr(Learner, "optim_step", apply)
    child = (await training_runs("child"))[0]
    assert child["next_step"] == 2
    again = await train(config, tasks=world.calls)
    assert (again.first_step, again.resumed, again.finished) == (1, True, True)
    rewards = [
        [one["metrics"]["rollout_reward:mean"] for one in report.history]
        for report in (straight, again)
    ]
    assert rewards[0] == rewards[1]
    for found, wanted in zip(
        [await weights_of(model) for model in ("parent", "child")], expected, strict=True
    ):
        assert all(bool((found[name] == wanted[name]).all()) for name in wanted)


async def test_subagents_that_are_not_there_are_refused_before_anything_is_played(home):
    with pytest.raises(UsageError, match=r"joined names 'nobody'.*their models are: child"):
        await train(settings(joined=["nobody"]), tasks=world.calls)
    with pytest.raises(UsageError, match=r"subagents names 'aks'.*there are: ask, child"):
        await train(settings(subagents={"aks": "child"}), tasks=world.calls)
    assert [run["config"]["loss"] for run in await training_runs("parent")] == ["cross_entropy"]


STAGES = {
    **{name: value for name, value in SMALL.items() if name != "max_turns"},
    "stages": [
        {
            "name": "speaker",
            "model": "child",
            "tasks": "hierarchy_world.py:sayings",
            "max_turns": 1,
            "max_tokens": 12,
        },
        {
            "name": "caller",
            "model": "parent",
            "tasks": "hierarchy_world.py:calls",
            "max_turns": 2,
            "joined": ["child"],
        },
    ],
}


def staged(**shared):
    recipe = make_recipe({**STAGES, **shared})
    own = {"child": world.sayings, "parent": world.calls}
    return Recipe(
        [
            replace(one, tasks=own[one.config.model], held_out=own[one.config.model])
            for one in recipe.stages
        ]
    )


@pytest.mark.slow
async def test_a_recipe_trains_the_subagent_first_and_then_its_caller(home):
    reports = await follow(staged())
    assert [(one.name, one.finished) for one in reports] == [("speaker", True), ("caller", True)]
    assert all([score.step for score in one.scores] == [0, 2] for one in reports)
    # It played as it was trained to: with 12 tokens in a turn, not with its caller's 40.
    jobs = (await connect().get("/v2/jobs"))["items"]
    asked = next(job for job in jobs if job["name"].startswith("ask, called"))
    page = await connect().get(f"/v2/jobs/{asked['id']}/traces", params={"limit": 100})
    assert page["items"]
    assert max(row["completion_tokens"] for row in page["items"]) <= 12
    # What joined is scored again on its own held-out tasks, after it learned along.
    assert reports[1].joined["child"].runs == len(world.sayings)


@pytest.mark.slow
async def test_a_recipe_that_is_stopped_goes_on_in_the_stage_where_it_was(home):
    stop = StopSignal()

    class Stops(Reporter):
        def started(self, run_id, first_step, steps):
            started.append((stage_name[-1], first_step))

        def stepped(self, step, metrics):
            if stage_name[-1] == "caller" and step == 0:
                stop.request()

    started, stage_name = [], []

    @contextmanager
    def showing(stage):
        stage_name.append(stage.name)
        yield Stops()

    first = await follow(staged(), showing=showing, stop=stop)
    assert [(one.name, one.finished) for one in first] == [("speaker", True), ("caller", False)]
    second = await follow(staged(), showing=showing)
    assert [(one.name, one.finished) for one in second] == [("speaker", True), ("caller", True)]
    assert started == [("speaker", 0), ("caller", 0), ("caller", 1)]
    assert second[0].scores == first[0].scores
    # All is done: the same recipe again trains nothing, and a new one on demand.
    third = await follow(staged(), showing=showing)
    assert all(one.finished and one.report is None for one in third)
    fourth = await follow(staged(steps=1), showing=showing, fresh=True)
    assert all(one.finished and one.report is not None for one in fourth)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("stages = 3", "stages must be tables"),
        ('[[stages]]\nmodel = "m"', "stage 'm' has no tasks"),
        (
            '[[stages]]\nmodel = "m"\ntasks = "t"\ntop_p = 0.9',
            "top_p: training samples from the whole",
        ),
        ('[[stages]]\nmodel = "m"\ntasks = "t"\nstep = 3', "stage 'm': there is no setting 'step'"),
        (
            '[[stages]]\nmodel = "m"\ntasks = "t"\n[[stages]]\nmodel = "m"\ntasks = "t"',
            "stage 'm' is there twice",
        ),
    ],
)
def test_a_recipe_that_cannot_be_followed_says_which_stage_is_wrong(tmp_path, text, problem):
    file = tmp_path / "recipe.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=problem) as refused:
        load_recipe(file)
    assert str(file) in str(refused.value)


def test_what_stands_above_the_stages_holds_for_all_and_what_is_given_for_each(tmp_path):
    file = tmp_path / "recipe.toml"
    stage = '[[stages]]\nmodel = "{}"\ntasks = "t.py"\n'
    file.write_text("lr = 0.5\ngroup = 4\n" + stage.format("a") + "group = 6\n" + stage.format("b"))
    recipe = load_recipe(file, {"steps": 3})
    found = [(one.name, one.config.lr, one.config.group, one.config.steps) for one in recipe.stages]
    assert found == [("a", 0.5, 6, 3), ("b", 0.5, 4, 3)]
    assert is_recipe(file)
    assert recipe.fingerprint == load_recipe(file).fingerprint, "more steps continue its trainings"
    assert recipe.fingerprint != load_recipe(file, {"lr": 0.1}).fingerprint
