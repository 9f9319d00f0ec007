"""What an agent changes in its run is changed for no other attempt at the task."""

import json

from hud import Environment
from hud.agents import ScriptedAgent
from hud.errors import InfrastructureFault
from hud.eval import Taskset

env = Environment("numbers")


@env.tool
def look(numbers: list[int]):
    return numbers


@env.template()
async def total(numbers: list[int]):
    yield f"add {numbers}"
    yield 1.0


def planned():
    task = total(numbers=[1, 2])
    task.columns = {"family": ["sums"]}
    task.agent_config = {"system_prompt": "add"}
    return task


def changes(run):
    run.task.args["numbers"].append(3)
    run.task.columns["family"].append("changed")
    run.task.agent_config["system_prompt"] = "changed"
    run.tools.clear()
    return "-"


async def test_an_agent_that_changes_its_task_changes_no_other_attempt():
    task, seen = planned(), []

    def play(run):
        seen.append((run.prompt_text, len(run.tools), json.dumps(run.agent_config)))
        return changes(run)

    await Taskset("x", [task]).run(ScriptedAgent(play), group=3, max_concurrent=1)
    assert task == planned()
    assert set(seen) == {("add [1, 2]", 1, '{"system_prompt": "add"}')}


async def test_a_repeated_attempt_gets_the_task_as_it_was():
    seen = []

    def play(run):
        seen.append(run.prompt_text)
        changes(run)
        if len(seen) == 1:
            raise InfrastructureFault("the network is gone")
        return "-"

    job = await planned().run(ScriptedAgent(play))
    assert seen == ["add [1, 2]"] * 2
    assert job.runs[0].task.args == {"numbers": [1, 2, 3]}
