"""One rollout's state is no other's: what a template, a tool or an agent changes is its own run's."""

from hud import Environment
from hud.agents import ScriptedAgent
from hud.environment.tools.tool import Tool
from hud.eval import Taskset
from hud.trace import Message, ToolCall

env = Environment("separate")
GREETING = Message(role="user", content="Greet.")


@env.template()
async def pops(items, more: dict = {"a": [1, 2]}):  # noqa: B006
    items["rows"].pop()
    more["a"].pop()
    yield f"{items} {more}"
    yield float(items == {"rows": [1, 2]} and more == {"a": [1]})


@env.template()
async def greets():
    yield [GREETING]
    yield 1.0


@env.tool
def take(items: list, options: dict):
    items.pop()
    options["tags"].clear()
    return {"items": items, "options": options}


def calls(arguments):
    async def play(run):
        await run.call_tool(ToolCall(id="1", name="take", arguments=arguments))
        return "-"

    return play


async def test_every_attempt_of_a_task_gets_its_arguments_unchanged():
    task = pops(items={"rows": [1, 2, 3]})
    job = await Taskset("t", [task]).run(ScriptedAgent(lambda run: "-"), group=3)
    assert [run.reward for run in job.runs] == [1.0] * 3
    assert task.args == {"items": {"rows": [1, 2, 3]}}
    setups = [step.task_call.arguments for run in job.runs for step in run.trace.steps[:1]]
    assert setups == [task.args] * 3


async def test_a_call_is_recorded_as_it_was_made():
    arguments = {"items": [1, 2], "options": {"tags": ["x"]}}
    job = await greets().run(ScriptedAgent(calls(arguments)))
    (step,) = [step for step in job.runs[0].trace.steps if step.source == "tool"]
    assert step.call.arguments == arguments == {"items": [1, 2], "options": {"tags": ["x"]}}
    assert step.result.structured_content == {"items": [1], "options": {"tags": []}}


async def test_a_call_of_the_agents_own_tool_is_recorded_as_it_was_made():
    class Changing(Tool):
        async def call(self, arguments, timeout=None):
            return await super().call({"items": arguments.pop("items"), "options": {"tags": []}})

    async def play(run):
        run.attach(Changing(take, name="grab"))
        await run.call_tool(ToolCall(id="1", name="grab", arguments={"items": [1]}))
        return "-"

    job = await greets().run(ScriptedAgent(play))
    (step,) = [step for step in job.runs[0].trace.steps if step.source == "tool"]
    assert step.call.arguments == {"items": [1]}


async def test_an_agent_changes_the_tools_and_the_prompt_of_its_run_alone():
    seen = []

    def play(run):
        seen.append((len(run.tools), run.prompt[0].content))
        run.tools.clear()
        run.prompt[0].content = "changed"
        return "-"

    await Taskset("t", [greets()]).run(ScriptedAgent(play), group=2, max_concurrent=1)
    assert seen == [(1, "Greet.")] * 2
