"""Rollouts: the order of things, whose fault a failure was, and that every wait ends."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
from contextlib import asynccontextmanager

import pytest

from hud.environment import Environment, Task
from hud.errors import InfrastructureFault, StoreError
from hud.eval import episode, rollouts
from hud.eval.results.run_record import RunRecord
from hud.eval.rollouts import rollout
from hud.processes.backoff import Backoff
from hud.trace import AgentStep, Step, ToolCall
from hud.trace.recording.recorder import NullRecorder


class Recorder(NullRecorder):
    """Remembers what it is told."""

    def __init__(self):
        self.events = []
        self.runs = []

    def run_started(self, run):
        self.events.append("started")

    def step_recorded(self, trace_id, step):
        self.events.append((step.source, step.step_id))

    def run_ended(self, run):
        self.events.append("ended")
        self.runs.append(run)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(rollouts, "RETRY_PAUSES", Backoff(0.001))


env = Environment("letters")


@env.tool
async def peek(delay: float = 0.0) -> str:
    """Look at the letter."""
    await asyncio.sleep(delay)
    return "r"


@env.template()
async def count(word: str = "berry", fault: str = ""):
    """Count letters."""
    if fault == "setup":
        raise ValueError("no such word")
    if fault == "slow setup":
        await asyncio.sleep(60)
    answer = yield f"How many r in {word}?"
    if fault == "grade":
        raise ValueError("cannot count")
    if fault == "nan":
        yield float("nan")
    if fault == "slow grade":
        await asyncio.sleep(60)
    yield float(answer == str(word.count("r")))


async def right(run):
    run.trace.content = "2"


async def play(task, agent, **options):
    options.setdefault("recorder", NullRecorder())
    return await rollout(task, agent, runtime=lambda task: task.environment.run(), **options)


async def test_a_rollout_reads_setup_user_agent_tool_evaluate():
    async def agent(run):
        run.record(AgentStep(content="Let me see."))
        await run.call_tool(ToolCall(id="1", name="peek"))
        run.trace.record(AgentStep(content="2"))  # Not through the run: still reported.
        run.trace.content = "2"

    recorder = Recorder()
    run = await play(count(), agent, recorder=recorder, job_id="j", group_id="g")
    assert run.reward == 1.0
    assert run.evaluation["score"] == 1.0
    assert (run.job_id, run.group_id, run.slug, run.task_id) == ("j", "g", "count", "count")
    assert run.trace.status == "completed"
    assert run.runtime == "local"
    assert run.ended_at >= run.started_at
    assert [tool.name for tool in run.tools] == ["peek"]
    sources = ["task", "user", "agent", "tool", "agent", "task"]
    assert [step.source for step in run.trace.steps] == sources
    setup, evaluate = run.trace.steps[0].task_call, run.trace.steps[-1].task_call
    assert (setup.phase, evaluate.phase) == ("setup", "evaluate")
    assert evaluate.arguments == {"answer": "2"}
    assert recorder.events == [
        "started",
        *[(source, number) for number, source in enumerate(sources, start=1)],
        "ended",
    ]


async def test_an_agent_that_raises_is_reward_zero_and_never_graded():
    async def agent(run):
        await run.call_tool(ToolCall(id="1", name="peek"))
        run.trace.content = "2"
        raise ValueError("lost")

    run = await play(count(), agent)
    assert (run.failure_kind, run.reward, run.trace.status) == ("agent", 0.0, "error")
    assert "ValueError: lost (" in run.error
    assert "test_eval_rollout.py:" in run.error
    assert [step.source for step in run.trace.steps] == ["task", "user", "tool", "system"]
    assert run.trace.error == run.error


@pytest.mark.parametrize(
    ("fault", "kind"), [("setup", "environment"), ("grade", "grader"), ("nan", "grader")]
)
async def test_other_failures_have_no_reward(fault, kind):
    run = await play(count(fault=fault), right)
    assert (run.failure_kind, run.reward) == (kind, None)
    assert run.failed
    assert run.trace.steps[-1].error == run.error
    assert run.trace.steps[-1].task_call.phase == ("setup" if fault == "setup" else "evaluate")


@pytest.mark.parametrize(
    ("fault", "kind", "when"),
    [
        ("slow setup", "environment", "set the task up"),
        ("slow grade", "grader", "was graded"),
        ("slow agent", "agent", "agent was playing"),
        ("slow tool", "agent", "a tool was running"),
    ],
)
async def test_a_limit_that_passes_says_whose_it_was(fault, kind, when):
    async def agent(run):
        if fault == "slow tool":
            await run.call_tool(ToolCall(id="1", name="peek", arguments={"delay": 60}))
        if fault == "slow agent":
            await asyncio.sleep(60)
        run.trace.content = "2"

    run = await play(count(fault=fault), agent, rollout_timeout=0.1)
    assert run.failure_kind == kind
    assert run.error.startswith("The rollout passed its limit of 0.1 s")
    assert when in run.error
    assert run.trace.stop_reason == "timeout"
    assert run.reward == (0.0 if kind == "agent" else None)


async def test_an_agent_that_leaves_no_time_for_grading_earns_nothing():
    async def agent(run):
        await asyncio.sleep(0.7)
        run.trace.content = "2"

    run = await play(count(fault="slow grade"), agent, rollout_timeout=1)
    assert (run.failure_kind, run.reward) == ("agent", 0.0)
    assert run.error == "The rollout passed its limit of 1 s while the answer was graded."


async def test_a_tool_that_was_given_up_is_not_blamed_later():
    async def agent(run):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(
                run.call_tool(ToolCall(id="1", name="peek", arguments={"delay": 60})), 0.02
            )
        run.record(AgentStep(content="Never mind."))
        raise ValueError("my own fault")

    assert (await play(count(), agent)).failure_kind == "agent"


class Flaky:
    """A runtime that fails some times before it works."""

    def __init__(self, failures):
        self.failures = failures

    @asynccontextmanager
    async def __call__(self, task):
        if self.failures:
            self.failures -= 1
            raise InfrastructureFault("connection refused")
        async with task.environment.run() as connection:
            yield connection


async def test_infrastructure_is_retried_under_a_new_id_and_both_are_on_record():
    recorder = Recorder()
    run = await rollout(count(), right, runtime=Flaky(2), recorder=recorder, trace_id="a" * 32)
    assert run.reward == 1.0
    first, second, third = recorder.runs
    assert third is run
    assert first.trace_id == "a" * 32
    assert first.trace.extra["retried_as"] == second.trace_id
    assert second.trace.extra["retried_as"] == third.trace_id
    assert first.reward is None
    assert recorder.events.count("started") == recorder.events.count("ended") == 3


async def test_retries_are_bounded_and_meant_for_infrastructure_alone():
    runtime = Flaky(99)
    run = await rollout(count(), right, runtime=runtime, recorder=NullRecorder())
    assert run.failure_kind == "infrastructure"
    assert run.error == "connection refused"
    assert runtime.failures == 99 - 3
    attempts = 0

    async def wrong(run):
        nonlocal attempts
        attempts += 1
        run.trace.content = "7"

    assert (await play(count(), wrong)).reward == 0.0
    assert attempts == 1


async def test_an_environment_that_does_not_come_down_keeps_its_grade(monkeypatch):
    monkeypatch.setattr(episode, "CLOSE_SECONDS", 0.05)

    @asynccontextmanager
    async def runtime(task):
        async with task.environment.run() as connection:
            yield connection
            await asyncio.sleep(60)

    run = await rollout(count(), right, runtime=runtime, recorder=NullRecorder())
    assert run.reward == 1.0
    assert run.failure_kind is None
    assert "not down after 0.05 s" in run.trace.extra["close_error"]


async def test_cancelling_closes_the_environment_and_records_the_run():
    closed = []

    @asynccontextmanager
    async def runtime(task):
        async with task.environment.run() as connection:
            try:
                yield connection
            finally:
                closed.append(True)

    async def agent(run):
        await asyncio.sleep(60)

    recorder = Recorder()
    task = asyncio.ensure_future(rollout(count(), agent, runtime=runtime, recorder=recorder))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed == [True]
    (run,) = recorder.runs
    assert run.trace.status == "cancelled"
    assert run.reward is None


async def test_a_store_that_cannot_be_written_is_raised_and_the_run_is_none_that_completed():
    ended = []

    class Full(NullRecorder):
        def step_recorded(self, trace_id, step):
            raise StoreError("The disk is full.")

        def run_ended(self, run):
            ended.append((run.trace.status, run.failure_kind, run.reward, run.error))

    with pytest.raises(StoreError, match="full"):
        await play(count(), right, recorder=Full())
    assert ended == [("error", "infrastructure", None, "The disk is full.")]


async def test_recording_a_step_of_ones_own():
    async def agent(run):
        run.record(Step(source="system", extra={"note": 1}))
        run.trace.content = "2"

    run = await play(count(), agent)
    assert run.trace.steps[2].extra == {"note": 1}


async def test_a_run_that_ended_leaves_a_record_of_plain_data():
    run = await play(count(), right)
    kept = {one.name: getattr(run, one.name) for one in dataclasses.fields(RunRecord)}
    kept["task"] = Task.model_validate_json(run.task.model_dump_json())
    again = pickle.loads(pickle.dumps(RunRecord(**kept)))
    assert (again.trace, again.grade, again.prompt) == (run.trace, run.grade, run.prompt)
    assert (again.reward, again.slug, again.seconds) == (run.reward, run.slug, run.seconds)
    assert (run.live.connection, run.live.world, run.live.clients) == (None, None, None)
