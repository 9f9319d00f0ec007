"""Parts: each run has its own, up before its hooks and down after them; what breaks in one ends that run."""

from contextlib import asynccontextmanager

import pytest

from hud import Environment
from hud.agents import ScriptedAgent
from hud.capabilities import Capability
from hud.environment import OpenPart, Part, Template
from hud.environment.sources.manifest import manifest_of
from hud.environment.tools.tool import Tool
from hud.errors import NotFoundError, UsageError
from hud.eval import ForkRuntime, Run, Taskset
from hud.trace import ToolCall, ToolResult, ToolSpec

ECHO = ToolSpec(name="echo", description="Says it again.")


class Echo:
    spec = ECHO

    async def call(self, arguments, timeout=None):
        return ToolResult.of_text(arguments["text"])


class OpenBox(OpenPart):
    def __init__(self, number):
        self.number = number
        self.broken = None
        self.calls = 0
        self.mute = False
        self.capability = Capability.ssh("box", url="tcp://127.0.0.1:9")

    def tools(self):
        return {} if self.mute else {"echo": Echo()}

    async def observe(self):
        self.calls += 1
        return {"files": self.calls}

    def fault(self):
        return self.broken


class Box(Part):
    def __init__(self, name="box"):
        self.name = name
        self.log = []

    @asynccontextmanager
    async def open(self, run):
        self.log.append("up")
        yield OpenBox(self.log.count("up"))
        self.log.append("down")


box = Box()
env = Environment("boxed")
env.add(box)


@env.initialize
def begin():
    box.log.append("begin")
    env.state.number = env.opened(box).number


@env.shutdown
def end():
    box.log.append("end")


@env.tool
def smash() -> str:
    env.opened(box).broken = "The box is broken."
    return "smashed"


@env.template()
async def say(word: str = "tea", mute: bool = False):
    env.opened(box).mute = mute
    answer = yield f"Say {word}"
    yield float(answer == word)


async def echo(run: Run):
    result = await run.call_tool(ToolCall(id="1", name="echo", arguments={"text": "tea"}))
    run.trace.content = result.text


@pytest.mark.parametrize("runtime", [None, ForkRuntime], ids=["in process", "forked"])
async def test_a_parts_tools_are_the_runs_tools_and_what_it_shows_is_in_the_trace(runtime):
    seen = []

    async def look(run):
        seen.append(([tool.name for tool in run.tools], [one.name for one in run.capabilities]))
        await echo(run)

    source = runtime and runtime(__file__)
    try:
        job = await Taskset("t", [say()]).run(look, runtime=source)
    finally:
        if source is not None:
            await source.aclose()
    (run,) = job.runs
    assert (run.reward, run.error) == (1.0, None)
    assert seen == [(["smash", "echo"], ["box"])]
    assert [step.extra for step in run.trace.steps if step.source == "tool"] == [{"files": 1}]


@pytest.mark.parametrize("runtime", [None, ForkRuntime], ids=["in process", "forked"])
async def test_the_setup_half_of_a_task_decides_which_tools_its_agent_has(runtime):
    seen = []
    source = runtime and runtime(__file__)
    try:
        agent = ScriptedAgent(lambda run: seen.extend(tool.name for tool in run.tools))
        await Taskset("t", [say(mute=True)]).run(agent, runtime=source)
    finally:
        if source is not None:
            await source.aclose()
    assert seen == ["smash"]


async def test_parts_are_up_before_the_initialize_hooks_and_down_after_the_shutdown_hooks():
    box.log.clear()
    async with env.run() as run:
        assert run.state.number == 1
    assert box.log == ["up", "begin", "end", "down"]


async def test_a_part_that_says_so_ends_the_run_and_only_that_run():
    async def smasher(run):
        await run.call_tool(ToolCall(id="1", name="smash", arguments={}))

    job = await Taskset("t", [say()]).run(smasher)
    assert [(run.failure_kind, run.error) for run in job.runs] == [
        ("environment", "The box is broken.")
    ]
    job = await Taskset("t", [say()]).run(echo)
    assert job.runs[0].reward == 1.0


async def test_a_part_that_does_not_come_up_fails_the_run_and_leaves_nothing_up():
    class Bad(Part):
        name = "bad"

        @asynccontextmanager
        async def open(self, run):
            raise RuntimeError("no power")
            yield

    first = Box()
    broken = Environment("broken", capabilities=[first, Bad()])

    @broken.template()
    async def never():
        yield "?"
        yield 1.0

    job = await Taskset("t", [never()]).run(ScriptedAgent(lambda run: "x"))
    (run,) = job.runs
    assert run.failure_kind == "environment"
    assert run.error == (
        "Environment 'broken': 'bad' could not be brought up: RuntimeError: no power."
    )
    assert first.log == ["up", "down"]


async def test_an_attached_tool_works_on_the_agents_side_and_is_recorded_like_any_other():
    async def player(run):
        class Shout(Echo):
            spec = ToolSpec(name="shout")

        run.attach(Shout())
        run.attach(Echo())  # The environment's own stays.
        assert [tool.name for tool in run.tools] == ["smash", "echo", "shout"]
        result = await run.call_tool(ToolCall(id="1", name="shout", arguments={"text": "tea"}))
        run.trace.content = result.text

    job = await Taskset("t", [say()]).run(player)
    (run,) = job.runs
    assert run.reward == 1.0
    (step,) = [step for step in run.trace.steps if step.source == "tool"]
    assert (step.call.name, step.result.text, step.extra) == ("shout", "tea", {"files": 1})


async def test_what_is_not_offered_cannot_be_opened():
    async def player(run):
        with pytest.raises(NotFoundError, match=r"no 'cdp' \(it offers: box \(ssh/2\)\)"):
            await run.open("cdp")

    (run,) = (await Taskset("t", [say()]).run(player)).runs
    assert run.error is None


def test_a_part_is_no_runs_outside_a_run_and_has_a_name_of_its_own():
    with pytest.raises(UsageError, match="'box' is up inside a run alone"):
        env.opened(box)
    with pytest.raises(UsageError, match="already has a part 'box'"):
        env.add(Box())


def test_what_is_added_is_returned_and_listed_by_its_name():
    made = Environment("made")
    tool = made.add(Tool(smash, name="break"))
    template = made.add(Template(made, say.function, id="say"))
    capability = made.add(Capability.ssh("outside", url="tcp://127.0.0.1:9"))
    part = made.add(Box("crate"))
    assert (made.tools, made.templates) == ({"break": tool}, {"say": template})
    assert (made.capabilities, made.parts) == ([capability], {"crate": part})
    assert manifest_of(made)["capabilities"] == [{"name": "outside"}, {"name": "crate"}]
    with pytest.raises(UsageError, match="a part, not a dict"):
        made.add({})
