"""examples/hierarchy: its tasks can be done, badly too, and its recipe can be followed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hud.agents import ScriptedAgent
from hud.environment.sources.loader import load_file
from hud.eval import Taskset
from hud.eval.rollouts import rollout
from hud.trace import ToolCall
from hud.trace.recording.recorder import NullRecorder
from hud.train.recipe import load_recipe
from hud.train.rollouts.subagents import subagents_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "hierarchy"


@pytest.fixture(autouse=True)
def _path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(ROOT)


def tasks(file, count):
    whole = Taskset.from_file(FOLDER / file)
    return Taskset(whole.name, list(whole)[:count])


@pytest.mark.slow
async def test_who_does_it_right_settles_every_order_with_a_clerk_who_does():
    scripted = load_file(FOLDER / "scripted.py")
    job = await tasks("tasks.py", 40).run(scripted.agent, recorder=NullRecorder())
    assert job.reward == 1.0
    answers = {run.content for run in job.runs}
    assert answers == {"ship", "wait"}
    below = [child for run in job.runs for child in run.children]
    assert {child.reward for child in below} == {1.0}
    # The manager never names the stock, and the clerk always works in the manager's.
    assert all(child.task.args["seed"] == child.caller.task.args["seed"] for child in below)
    for run in job.runs:
        (tool,) = run.tools
        assert list(tool.parameters["properties"]) == ["item"]


@pytest.mark.slow
async def test_there_is_much_to_learn_from_the_apprentices():
    scripted = load_file(FOLDER / "scripted.py")
    clerk, manager = scripted.apprentices()
    for file, agent in (("clerk_tasks.py", clerk), ("tasks.py", manager)):
        job = await tasks(file, 60).run(agent, recorder=NullRecorder())
        assert 0.3 < job.reward < 0.8
        assert len({run.reward for run in job.runs}) > 2


@pytest.mark.parametrize("guess", ["ship", "wait"])
async def test_nothing_is_earned_without_asking(guess):
    async def guesses(run):
        return guess

    job = await tasks("tasks.py", 10).run(guesses, recorder=NullRecorder())
    assert job.reward == 0.0


@pytest.mark.slow
async def test_held_out_tasks_are_never_trained_on():
    for train, held_out in (("clerk_tasks.py", "clerk_held_out.py"), ("tasks.py", "held_out.py")):
        shown = {str(task.args) for task in tasks(train, None)}
        assert not shown & {str(task.args) for task in tasks(held_out, None)}


@pytest.mark.slow
def test_its_recipe_trains_the_clerk_then_the_manager_then_both():
    recipe = load_recipe(FOLDER / "recipe.toml")
    found = [(stage.name, stage.config.model, stage.config.joined) for stage in recipe.stages]
    assert found == [
        ("clerk", "clerk", []),
        ("manager", "manager", []),
        ("together", "manager", ["clerk"]),
    ]
    for stage in recipe.stages:
        whole = Taskset.from_file(stage.config.tasks)
        (held_out,) = stage.config.held_out
        assert len(Taskset.from_file(held_out)) >= 80
        played = subagents_of(stage.config, whole)
        assert {one.model for one in played.values()} == (
            set() if stage.config.model == "clerk" else {"clerk"}
        )


async def test_the_pages_first_example_is_played_as_it_stands(tmp_path):
    page = (ROOT / "docs" / "hierarchies.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    (tmp_path / "desks.py").write_text(code)
    (task,) = Taskset.from_file(tmp_path / "desks.py")

    async def lead(run):
        call = ToolCall(id="a", name="ask_reader", arguments={"title": "dune"})
        return (await run.call_tool(call)).text

    async def read(run):
        call = ToolCall(id="b", name="open_book", arguments={"title": "dune"})
        return (await run.call_tool(call)).text

    agent = ScriptedAgent(lead)
    agent.subagents = {"reader": ScriptedAgent(read)}
    run = await rollout(task, agent, recorder=NullRecorder())
    assert (run.reward, run.children[0].reward) == (1.0, 1.0)
