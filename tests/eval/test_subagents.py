"""Subagents: a tool call that is a run of its own, wherever the environment lives."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hud.agents import ScriptedAgent
from hud.environment import AgentTool, Environment, Task, load_environment
from hud.environment.channel import ControlServer
from hud.errors import UsageError
from hud.eval import ForkRuntime, LocalRuntime, Runtime, Taskset, rollouts
from hud.eval.rollouts import rollout
from hud.processes.backoff import Backoff
from hud.trace import AgentStep, Completion, SubagentStep, ToolCall, ToolStep, Usage
from hud.trace.recording.recorder import NullRecorder

SOURCE = Path(__file__).with_name("subagent_world.py")
world = load_environment(f"{SOURCE}:library")


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(rollouts, "RETRY_PAUSES", Backoff(0.001))


@pytest.fixture(params=["local", "fork", "served"])
async def runtime(request):
    if request.param == "local":
        yield LocalRuntime(world)
    elif request.param == "fork":
        forking = ForkRuntime(f"{SOURCE}:library")
        async with forking(world.templates["enquire"]()):
            pass  # The warm server is up: no test's limit counts its start.
        yield forking
        await forking.aclose()
    else:
        server = ControlServer(world)
        listening = await asyncio.start_server(server.connected, "127.0.0.1", 0, limit=1 << 24)
        yield Runtime(f"tcp://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
        listening.close()
        await server.sessions.close()


def call(name, **arguments):
    return ToolCall(id=f"{name}-{len(arguments)}", name=name, arguments=arguments)


async def bookworm(run):
    """Reads one page and says what stands there."""
    title = run.prompt_text.split()[2]
    page = await run.call_tool(call("turn_page", title=title))
    run.record(AgentStep(content=page.text))
    return page.text.split()[0]


def leading(script, **subagents):
    agent = ScriptedAgent(script, name="leader")
    agent.subagents = {"ask_reader": ScriptedAgent(bookworm, name="bookworm"), **subagents}
    return agent


async def asks(run):
    """Asks the reader about the book of the prompt, and repeats the answer."""
    title = run.prompt_text.split()[3]
    return (await run.call_tool(call("ask_reader", title=title))).text


async def play(agent, runtime=None, recorder=None, **options):
    task = world.templates["enquire"](**options.pop("args", {}))
    return await rollout(
        task,
        agent,
        runtime=runtime or LocalRuntime(world),
        recorder=recorder or NullRecorder(),
        **options,
    )


async def test_a_subagents_run_is_nested_in_its_callers_trace(runtime):
    run = await play(leading(asks), runtime)
    assert run.error is None
    assert run.reward == 1.0
    assert [step.source for step in run.trace.steps] == ["task", "user", "subagent", "tool", "task"]
    nested, told = run.trace.steps[2:4]
    assert isinstance(nested, SubagentStep)
    assert isinstance(told, ToolStep)
    assert (told.call.name, told.call.arguments, told.result.text) == (
        "ask_reader",
        {"title": "dune"},
        "sand",
    )
    inner = [step.source for step in nested.subagent.steps]
    assert inner == ["task", "user", "tool", "agent", "task"]
    assert nested.extra["reward"] == 1.0
    # The caller's grader sees the whole of it too.
    assert run.grade.info == {"rewards": [1.0], "seen": inner}


async def test_what_the_grader_needs_is_neither_shown_nor_taken(runtime):
    async def meddles(run):
        schema = next(tool for tool in run.tools if tool.name == "ask_reader").parameters
        assert sorted(schema["properties"]) == ["depth", "title"]
        assert schema["required"] == ["title"]
        return (await run.call_tool(call("ask_reader", title="dune", subject="anything"))).text

    run = await play(leading(meddles), runtime)
    assert run.failure_kind is None
    assert "there is no argument 'subject'" in run.trace.content
    assert run.trace.steps[2].result.is_error
    assert run.children == []


async def test_hidden_arguments_come_from_the_callers_task_and_template(runtime):
    wrong = await play(leading(asks), runtime, args={"expected": "water"})
    assert wrong.children[0].reward == 0.0
    assert wrong.children[0].task.args == {"title": "dune", "subject": "water", "strict": True}
    # `strict` has no default of None and is hidden by its mark; the template decides it here.
    lax = await play(leading(asks), runtime, args={"expected": "san", "strict": False})
    assert lax.children[0].reward == 1.0


async def test_a_nested_run_works_in_its_callers_world_with_a_state_of_its_own(runtime):
    async def twice(run):
        first, second = await asyncio.gather(
            run.call_tool(call("ask_reader", title="dune")),
            run.call_tool(call("ask_reader", title="emma")),
        )
        counted = await run.call_tool(call("count_pages"))
        return f"{first.text} {second.text} {counted.text}"

    run = await play(leading(twice), runtime)
    # Two readers turned one page each, of the same library; both left before their caller went on.
    assert run.trace.content == "sand match 2 pages, 2 readers left"
    texts = [
        step.result.text
        for child in run.children
        for step in child.trace.steps
        if step.source == "tool"
    ]
    assert sorted(texts) == ["match (1)", "sand (1)"]
    other = await play(leading(twice), runtime)
    assert other.trace.content == run.trace.content


class Kept(NullRecorder):
    """Remembers the runs and jobs that it is told of."""

    def __init__(self):
        self.jobs, self.runs = [], []

    def job_started(self, job):
        self.jobs.append(job)

    def run_ended(self, run):
        self.runs.append(run)


async def test_every_subagents_run_is_recorded_as_one_of_its_own(runtime):
    kept = Kept()
    run = await play(leading(asks), runtime, kept, job_id="1" * 32, group_id="2" * 32)
    assert [one.task_id for one in kept.runs] == ["read", "enquire"]
    child = kept.runs[0]
    assert run.children == [child]
    assert child.trace is run.trace.steps[2].subagent
    assert child.trace.extra["parent_trace_id"] == run.trace_id
    assert (child.model, child.task.env, child.reward) == ("bookworm", "reader", 1.0)
    # A job beside its caller's, so that neither's numbers enter the other's.
    assert child.job_id not in (None, run.job_id)
    assert [(job.id, job.called_by) for job in kept.jobs] == [(child.job_id, run.job_id)]


async def test_calls_are_compared_across_a_group_by_tool_and_turn():
    async def asks_twice(run):
        await run.call_tool(call("ask_reader", title="emma"))
        return await asks(run)

    kept = Kept()
    job = await Taskset("one", [world.templates["enquire"]()]).run(
        leading(asks_twice), runtime=LocalRuntime(world), group=3, recorder=kept
    )
    groups = {}
    for one in kept.runs:
        if one.caller is not None:
            groups.setdefault(one.group_id, []).append(one)
    assert len(groups) == 2
    for members in groups.values():
        assert {one.caller.trace_id for one in members} == {run.trace_id for run in job.runs}
        assert len({one.task.slug for one in members}) == 1
        assert sorted(one.attempt for one in members) == [0, 1, 2]


@pytest.mark.parametrize("fault", ["setup", "grade"])
async def test_a_broken_environment_is_not_the_callers_fault_and_a_broken_grader_costs_only_its_own(
    runtime, fault
):
    run = await play(leading(asks), runtime, args={"trouble": fault})
    child = run.children[0]
    if fault == "setup":
        assert child.failure_kind == "environment"
        assert (run.failure_kind, run.reward) == ("environment", None)
        assert "the lamp is out" in run.error
        assert child.trace_id in run.error
    else:
        assert (child.failure_kind, child.reward) == ("grader", None)
        assert (run.failure_kind, run.reward) == (None, 1.0)


async def test_a_subagent_that_fails_by_itself_is_a_tool_error(runtime):
    async def clumsy(run):
        raise RuntimeError("dropped the book")

    agent = leading(asks, ask_reader=ScriptedAgent(clumsy, name="clumsy"))
    run = await play(agent, runtime)
    assert (run.children[0].failure_kind, run.children[0].reward) == ("agent", 0.0)
    assert run.trace.steps[-2].result.is_error
    assert "dropped the book" in run.trace.content
    assert run.reward == 0.0


async def test_infrastructure_that_breaks_is_tried_again_before_the_caller_hears_of_it():
    from hud.errors import InfrastructureFault

    tries = []

    async def unlucky(run):
        tries.append(run.trace_id)
        if len(tries) < 3:
            raise InfrastructureFault("the line went dead")
        return await bookworm(run)

    run = await play(leading(asks, ask_reader=ScriptedAgent(unlucky, name="unlucky")))
    assert run.reward == 1.0
    assert len(set(tries)) == 3
    assert run.trace.steps[2].subagent.trace_id == tries[-1]
    assert all(one.trace.extra["parent_trace_id"] == run.trace_id for one in run.children)


async def test_cancelling_the_caller_cancels_its_subagents(runtime):
    asleep, kept = asyncio.Event(), Kept()

    async def dozes(run):
        asleep.set()
        await run.call_tool(call("doze", seconds=60))

    agent = leading(asks, ask_reader=ScriptedAgent(dozes, name="dozer"))
    playing = asyncio.create_task(play(agent, runtime, kept))
    await asleep.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert [(one.task_id, one.trace.status) for one in kept.runs] == [
        ("read", "cancelled"),
        ("enquire", "cancelled"),
    ]


async def test_a_subagent_has_no_more_time_than_its_caller(runtime):
    async def dozes(run):
        await run.call_tool(call("doze", seconds=60))

    agent = leading(asks, ask_reader=ScriptedAgent(dozes, name="dozer"))
    run = await play(agent, runtime, rollout_timeout=0.6)
    assert run.trace.stop_reason == "timeout"
    assert run.failure_kind == "agent"
    assert run.children[0].live.limit_seconds <= 0.6
    assert run.children[0].trace.status != "completed"


async def test_a_subagents_own_limit_leaves_its_caller_time():
    hurried = Environment("hurried")
    tool = hurried.add_tool(AgentTool(world.tools["ask_reader"].template, timeout=0.1))

    @hurried.template()
    async def enquire():
        answer = yield "Ask."
        yield float("passed its limit of 0.1 s" in answer)

    async def leader(run):
        return (await run.call_tool(call("read", title="dune"))).text

    async def dozes(run):
        await run.call_tool(call("doze", seconds=60))

    agent = ScriptedAgent(leader)
    agent.subagents = {"read": ScriptedAgent(dozes)}
    assert tool.seconds == 0.1
    run = await rollout(enquire(), agent, recorder=NullRecorder())
    assert run.error is None
    assert run.reward == 1.0
    assert run.children[0].trace.stop_reason == "timeout"


def rambling(tokens):
    """A policy that always calls its own subagent, and says so in `tokens` tokens."""

    def policy(messages, tools, trace):
        names = [tool.name for tool in tools]
        usage = Usage(completion_tokens=tokens)
        if "ask_another" in names or "ask_reader" in names:
            name = "ask_reader" if "ask_reader" in names else "ask_another"
            made = ToolCall(id=f"c{len(messages)}", name=name, arguments={"title": "dune"})
            return Completion(tool_calls=[made], usage=usage)
        return Completion(content="sand", usage=usage)

    return policy


def family(run):
    return [run, *(below for child in run.children for below in family(child))]


async def test_recursion_is_bounded():
    agent = ScriptedAgent(rambling(1), name="rambler", max_steps=1)
    agent.subagents = {"ask_reader": agent, "ask_another": agent}
    run = await play(agent)
    depths = [one.depth for one in family(run)]
    assert depths == [0, 1, 2, 3]
    deepest = family(run)[-1]
    assert [tool.name for tool in deepest.tools] == ["turn_page", "doze"]


@pytest.mark.parametrize(("limit", "most"), [({"total_steps": 5}, 5), ({"total_tokens": 50}, 5)])
async def test_turns_and_tokens_are_shared_with_subagents(limit, most):
    agent = ScriptedAgent(rambling(10), name="rambler", max_steps=100, **limit)
    below = ScriptedAgent(rambling(10), name="below", max_steps=2)
    agent.subagents = {"ask_reader": below, "ask_another": below}
    run = await play(agent)
    turns = [step for one in family(run) for step in one.trace.steps if step.source == "agent"]
    assert len(turns) == most
    assert run.trace.stop_reason == ("max_steps" if "total_steps" in limit else "length")


async def test_an_environment_limits_its_subagents_turns():
    limited = Environment("limited")
    limited.add_tool(AgentTool(world.tools["ask_reader"].template, name="ask_reader", max_steps=2))

    @limited.template()
    async def enquire():
        answer = yield "Ask."
        yield float("gave no answer; it stopped: max_steps" in answer)

    async def leader(run):
        return (await run.call_tool(call("ask_reader", title="dune"))).text

    def endless(messages, tools, trace):
        return Completion(tool_calls=[call("turn_page", title="dune")])

    agent = ScriptedAgent(leader)
    agent.subagents = {"ask_reader": ScriptedAgent(endless, name="endless", max_steps=50)}
    run = await rollout(enquire(), agent, recorder=NullRecorder())
    assert run.reward == 1.0
    turns = [step.source for step in run.children[0].trace.steps].count("agent")
    assert turns == 2


async def test_the_environments_model_plays_where_nobody_else_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    run = await play(ScriptedAgent(asks))
    # There is no such model here, which is the environment's word, not the orchestrator's doing.
    assert (run.failure_kind, run.reward) == ("environment", None)
    assert "'ask_reader'" in run.error
    assert "'bookworm'" in run.error


def test_a_subagent_is_declared_with_what_can_work():
    template = world.tools["ask_reader"].template
    with pytest.raises(UsageError, match="takes a template or a task, not str"):
        AgentTool("read")
    with pytest.raises(UsageError, match="needs the environment of task 'read'"):
        AgentTool(Task(env="reader", id="read"))
    with pytest.raises(UsageError, match="no hidden argument of template 'read'"):
        AgentTool(template, from_task={"title": "expected"})
    with pytest.raises(UsageError, match="has no argument 'tone'"):
        AgentTool(template, visible=["tone"])
    with pytest.raises(UsageError, match="already has a tool"):
        world.add_tool(AgentTool(template, name="ask_reader"))
    fixed = AgentTool(template(title="emma"), visible=["subject"])
    assert sorted(fixed.spec.parameters["properties"]) == ["depth", "subject"]


@pytest.mark.slow
def test_the_environment_of_a_file_is_the_one_whose_subagents_the_others_are():
    assert load_environment(SOURCE).name == "library"
    assert load_environment(SOURCE, name="reader").name == "reader"


@pytest.mark.slow
async def test_an_environment_is_forked_from_its_file_whichever_of_several_it_is():
    reader = world.tools["ask_reader"].template.environment
    forking = ForkRuntime(reader)
    try:
        task = reader.templates["read"](title="dune", subject="sand")
        run = await rollout(task, ScriptedAgent(bookworm), runtime=forking, recorder=NullRecorder())
    finally:
        await forking.aclose()
    # Of a run of its own it has no caller's library to read in, and says so.
    assert "no state outside a run" in run.trace.steps[2].result.text
