"""Runs: each has its own state, its hooks run around it, and what it records is its own."""

from __future__ import annotations

import asyncio
import datetime
import gc
import weakref

import pytest

from hud.environment import Environment
from hud.errors import EnvironmentFault, UsageError
from hud.eval.rollouts import rollout
from hud.trace import ToolCall, ToolResult, ToolSpec
from hud.trace.recording.recorder import NullRecorder


def counting_environment():
    env = Environment("counter")

    @env.initialize
    async def begin():
        env.state.items = []

    @env.tool
    async def add(item: str, pause: float = 0.0) -> list[str]:
        env.state.items.append(item)
        await asyncio.sleep(pause)
        return list(env.state.items)

    @env.tool
    def add_in_thread(item: str) -> list[str]:
        env.state.items.append(item)
        return list(env.state.items)

    @env.template()
    async def collect(who: str):
        env.state.who = who
        await asyncio.sleep(0)
        yield f"Collect for {who}."
        await asyncio.sleep(0)
        mine = env.state.who == who and all(item.startswith(who) for item in env.state.items)
        yield float(mine and len(env.state.items) == 6)

    return env


async def test_concurrent_runs_of_one_environment_never_see_each_others_state():
    env = counting_environment()

    async def one(who):
        async with env.run() as run:
            await run.start("collect", {"who": who})
            for number in range(3):
                await run.call_tool("add", {"item": f"{who}-{number}", "pause": 0.001})
                await run.call_tool("add_in_thread", {"item": f"{who}-{number}"})
            return await run.grade("", None)

    frames = await asyncio.gather(*(one(f"run{number:02}") for number in range(40)))
    assert [frame["score"] for frame in frames] == [1.0] * 40


async def test_one_task_that_drives_two_runs_in_turn_keeps_them_apart():
    env = counting_environment()
    async with env.run() as first, env.run() as second:
        await first.call_tool("add", {"item": "a"})
        await second.call_tool("add_in_thread", {"item": "b"})
        assert (await first.call_tool("add_in_thread", {"item": "c"})).result.text == '["a","c"]'
        assert second.state.items == ["b"]


async def test_a_run_inside_a_tool_of_another_environment_has_its_own_state():
    inner = counting_environment()
    outer = Environment("outer")

    @outer.initialize
    def begin():
        outer.state.calls = 0

    @outer.tool
    async def delegate() -> int:
        outer.state.calls += 1
        async with inner.run() as run:
            await run.call_tool("add", {"item": "x"})
            outer.state.calls += len(run.state.items)
        return outer.state.calls

    async with outer.run() as run:
        assert (await run.call_tool("delegate", {})).result.text == "2"
        with pytest.raises(UsageError, match="no state outside a run"):
            _ = inner.state


async def test_state_outside_a_run_and_state_never_set_are_told():
    env = counting_environment()
    with pytest.raises(UsageError, match="Environment 'counter' has no state outside a run"):
        _ = env.state

    @env.tool
    def peek():
        return env.state.missing

    async with env.run() as run:
        result = (await run.call_tool("peek", {})).result
    assert result.is_error
    assert "state has no 'missing'" in result.text


async def test_hooks_run_around_every_run_in_order():
    env = Environment("hooks")
    calls = []

    @env.initialize
    def first():
        calls.append("first")
        env.state.ready = True

    @env.initialize
    async def second():
        calls.append("second")

    @env.shutdown
    async def last():
        calls.append(f"last {env.state.ready}")

    @env.shutdown
    def very_last():
        calls.append("very last")

    for _ in range(2):
        async with env.run():
            calls.append("run")
    assert calls == ["first", "second", "run", "last True", "very last"] * 2
    assert first is not None  # The functions stay callable as they were.


async def test_an_initialize_hook_that_raises_names_itself_and_shutdown_still_runs():
    env = Environment("hooks")
    calls = []

    @env.initialize
    def connect():
        raise ConnectionError("no database")

    @env.initialize
    def never():
        calls.append("never")

    @env.shutdown
    def clean():
        calls.append("clean")

    with pytest.raises(
        EnvironmentFault,
        match="Environment 'hooks': its initialize hook 'connect' raised ConnectionError: no database",
    ):
        async with env.run():
            calls.append("run")
    assert calls == ["clean"]


async def test_shutdown_hooks_that_raise_are_all_run_and_all_told():
    env = Environment("hooks")
    calls = []

    @env.shutdown
    def one():
        raise ValueError("one")

    @env.shutdown
    async def two():
        calls.append("two")
        raise ValueError("two")

    with pytest.raises(
        EnvironmentFault, match=r"'one' raised ValueError: one \(.*; .*'two' raised"
    ):
        async with env.run():
            pass
    assert calls == ["two"]


async def test_a_grade_stands_though_the_environment_cannot_be_taken_down():
    env = Environment("hooks")

    @env.template()
    async def task():
        yield "?"
        yield 1.0

    @env.shutdown
    def clean():
        raise ValueError("stuck")

    async def agent(run):
        run.trace.content = "x"

    run = await rollout(
        task(), agent, runtime=lambda _: env.run(), recorder=NullRecorder(), rollout_timeout=20
    )
    assert run.reward == 1.0
    assert "stuck" in run.trace.extra["close_error"]


async def test_a_rollout_of_a_broken_environment_is_its_fault_and_has_no_reward():
    env = Environment("hooks")

    @env.initialize
    def connect():
        raise ConnectionError("no database")

    @env.template()
    async def task():
        yield "?"
        yield 1.0

    async def agent(run):
        run.trace.content = "x"

    run = await rollout(task(), agent, runtime=lambda _: env.run(), recorder=NullRecorder())
    assert (run.failure_kind, run.reward) == ("environment", None)
    assert "no database" in run.error


async def test_the_state_is_recorded_after_the_setup_and_after_every_tool_call():
    env = counting_environment()

    @env.observe
    def snapshot():
        return {"items": list(env.state.items), "on": datetime.date(2024, 2, 29)}

    async def agent(run):
        await run.call_tool(ToolCall(id="1", name="add", arguments={"item": "a-1"}))
        await run.call_tool(ToolCall(id="2", name="nonsense", arguments={}))
        await run.call_tool(ToolCall(id="3", name="add_in_thread", arguments={"item": "a-2"}))

    task = env.templates["collect"](who="a")
    run = await rollout(task, agent, runtime=lambda _: env.run(), recorder=NullRecorder())
    states = [step.extra["state"] for step in run.trace.steps if "state" in step.extra]
    assert [step.source for step in run.trace.steps if "state" in step.extra] == [
        "task",
        *["tool"] * 3,
    ]
    assert states == [
        {"items": [], "on": "2024-02-29"},
        {"items": ["a-1"], "on": "2024-02-29"},
        {"items": ["a-1"], "on": "2024-02-29"},
        {"items": ["a-1", "a-2"], "on": "2024-02-29"},
    ]


class Poke:
    """A tool that works past the environment, as one over a capability does."""

    spec = ToolSpec(name="poke")

    def __init__(self, act):
        self.act = act

    async def call(self, arguments, timeout):
        self.act()
        return ToolResult.of_text("poked")


async def test_the_state_is_recorded_after_a_tool_over_a_capability_too():
    env, left = Environment("pile"), [3]

    @env.observe
    async def pile():
        return {"left": left[0]}

    @env.template()
    async def take():
        yield "Take one."
        yield 1.0

    async def agent(run):
        run.attach(Poke(lambda: left.append(left.pop() - 1)))
        await run.call_tool(ToolCall(id="1", name="poke", arguments={}))

    run = await rollout(take(), agent, runtime=lambda _: env.run(), recorder=NullRecorder())
    states = [step.extra["state"] for step in run.trace.steps if "state" in step.extra]
    assert states == [{"left": 3}, {"left": 2}]


async def test_a_state_hook_that_raises_is_the_environments_fault():
    env = counting_environment()

    @env.observe
    async def snapshot():
        raise RuntimeError("cannot read")

    async with env.run() as run:
        with pytest.raises(
            EnvironmentFault, match="observe hook 'snapshot' raised RuntimeError: cannot"
        ):
            await run.call_tool("add", {"item": "a"})


async def test_closing_twice_runs_the_hooks_once():
    env = Environment("hooks")
    calls = []
    env.shutdown(lambda: calls.append("down"))
    run = await env.run().open()
    await run.close()
    await run.close()
    assert calls == ["down"]


async def test_a_run_that_ended_is_freed_at_once_without_the_collector():
    env = counting_environment()
    run = await env.run().open()
    await run.start("collect", {"who": "me"})
    await run.close()
    kept = weakref.ref(run)
    gc.disable()
    try:
        del run
        assert kept() is None
    finally:
        gc.enable()
