"""`hud plan --config`: the memory of a recipe's stages, with the subagents that their policies call."""

import asyncio
import json

import pytest
from tests.cli.test_models_command import home, hud  # noqa: F401

from hud.client import connect

DESKS = """
from hud.environment import AgentTool, Environment

clerk = Environment("clerk")
manager = Environment("manager")

@clerk.template(description="Say a word.")
async def say(word: str):
    answer = yield f"say {word}"
    yield min(1.0, len(answer) / 20)

manager.add_tool(AgentTool(say, model="junior", name="ask"))

@manager.template()
async def relay(word: str):
    answer = yield f"relay {word}"
    yield min(1.0, len(answer) / 20)
"""
RECIPE = """
steps = 1
group = 2

[[stages]]
model = "junior"
tasks = "clerk_tasks.py"

[[stages]]
model = "senior"
tasks = "manager_tasks.py"

[[stages]]
name = "together"
model = "senior"
joined = ["junior"]
tasks = "manager_tasks.py"
"""
SHAPE = "--hidden 32 --layers 1 --vocab-size 300 --max-context 96"


@pytest.fixture
def desks(hud, tmp_path):  # noqa: F811
    (tmp_path / "desks.py").write_text(DESKS)
    for name, template in (("clerk", "say"), ("manager", "relay")):
        text = f"from desks import {template}\ntasks = [{template}(word='red')]\n"
        (tmp_path / f"{name}_tasks.py").write_text(text)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    hud(f"models create junior --tasks clerk_tasks.py {SHAPE}")
    hud("models fork junior --name senior --lora-rank 4")
    return hud


def stages(desks, options=""):
    found = json.loads(desks(f"plan --config recipe.toml --gpu h100 --json {options}"))
    return {stage["name"]: stage for stage in found["stages"]}


@pytest.mark.slow
def test_each_stage_has_its_policy_and_its_subagents(desks):
    found = stages(desks)
    roles = {
        name: [(one["model"], one["role"]) for one in stage["models"]]
        for name, stage in found.items()
    }
    assert roles == {
        "junior": [("junior", "trained")],
        "senior": [("senior", "trained"), ("junior", "frozen")],
        "together": [("senior", "trained"), ("junior", "trained")],
    }


@pytest.mark.slow
def test_a_frozen_subagent_takes_weights_and_cache_and_a_joined_one_its_states_too(desks):
    found = stages(desks)
    alone = json.loads(desks("plan junior --gpu h100 --json"))
    _, frozen = found["senior"]["models"]
    _, joined = found["together"]["models"]
    states = alone["trainer"]["gradients"] + alone["trainer"]["optimizer"]
    assert (frozen["weights"], frozen["cache"]) == (alone["trainer"]["weights"], alone["cache"])
    assert (frozen["states"], joined["states"]) == (0.0, states)
    # Updates follow one another: the passes of both are not in memory at once.
    apart = found["senior"]["left"] - found["together"]["left"]
    passes = found["together"]["passing"] - found["senior"]["passing"]
    assert apart == pytest.approx(states + passes)
    assert found["junior"]["left"] == pytest.approx(alone["left"])


@pytest.mark.slow
def test_a_stage_that_does_not_fit_says_by_how_much_and_what_needs_less(desks):
    said = desks("plan --config recipe.toml --gpu h100 --gpu-memory 0.001")
    assert "Stage 2/3: senior, on one H100" in said
    assert said.count("Does not fit by") == 3
    assert "--recompute-layers" in said
    assert max(map(len, said.splitlines())) <= 80


def test_a_training_without_stages_is_one(desks, tmp_path):
    (tmp_path / "train.toml").write_text('model = "senior"\ntasks = "manager_tasks.py"\n')
    said = desks("plan --config train.toml --gpu h100")
    assert "Stage 1/1: senior" in said
    assert "junior                      frozen" in said


def test_a_frozen_model_of_a_provider_takes_no_memory(desks, tmp_path):
    given = {"name": "hosted", "provider": {"url": "http://127.0.0.1:9"}}
    asyncio.run(connect().post("/v2/models/provide", given))
    train = 'model = "senior"\ntasks = "manager_tasks.py"\nsubagents = { ask = "hosted" }\n'
    (tmp_path / "train.toml").write_text(train)
    said = " ".join(desks("plan --config train.toml --gpu h100").split())
    assert "Not counted: 'hosted' has no weights on this platform: its provider has them." in said


@pytest.mark.slow
def test_a_recipe_names_its_models_itself(desks, tmp_path):
    assert "--config names the models" in desks("plan junior --config recipe.toml", 2)
    (tmp_path / "recipe.toml").write_text(RECIPE.replace('"senior"', '"other"'))
    assert "There is no model 'other'" in desks("plan --config recipe.toml --gpu h100", 2)


@pytest.mark.slow
def test_the_most_requests_to_a_judge_are_counted(desks, tmp_path):
    critic = "def agent(messages, tools, trace):\n    return '{}'\n"
    (tmp_path / "critic.py").write_text(critic)
    lines = (
        'tasks = "clerk_tasks.py"\nmodel = "junior"\nsteps = 10\ngroup = 3\ntasks_per_step = 8\n'
    )
    judge = 'dynamic_sampling = 1\njudge = "critic.py"\njudge_by = "pairwise"\n'
    (tmp_path / "recipe.toml").write_text(lines + judge)
    printed = " ".join(desks("plan --config recipe.toml --gpu h100").split())
    assert "judge critic.py: 6 requests for a task of 3 runs, at most 120 in all" in printed
