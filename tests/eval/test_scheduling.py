"""Jobs of many runs: order, groups, resuming, stopping."""

from __future__ import annotations

import asyncio
import gc
import os
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hud.environment import Environment
from hud.errors import ConflictError, StoreError, UsageError
from hud.eval import Job, NullRecorder, RunSummary, StopSignal, Taskset, plan_missing

env = Environment("numbers")


@env.template()
async def number(value: int, broken: bool = False):
    """Say a number."""
    if broken:
        raise ValueError("broken")
    answer = yield str(value)
    yield float(answer == str(value))


def taskset(count, **args):
    tasks = []
    for value in range(count):
        task = number(value=value, **args)
        task.slug = f"n{value}"
        tasks.append(task)
    return Taskset("numbers", tasks)


async def echo(run):
    # The later tasks end first.
    await asyncio.sleep(0.02 / (1 + int(run.prompt_text)))
    run.trace.content = run.prompt_text


async def run(tasks, agent=echo, **options):
    options.setdefault("recorder", NullRecorder())
    return await tasks.run(agent, runtime=lambda task: task.environment.run(), **options)


async def test_runs_stand_in_task_order_whatever_ended_first():
    ended = []
    job = await run(taskset(6), group=2, max_concurrent=12, on_run=ended.append)
    assert [(r.slug, r.attempt) for r in job.runs] == [
        (f"n{value}", attempt) for value in range(6) for attempt in range(2)
    ]
    assert ended[0].slug != "n0"
    assert len(ended) == 12
    groups = {(r.slug, r.group_id) for r in job.runs}
    assert len(groups) == 6
    assert len({group for _, group in groups}) == 6


async def test_no_more_rollouts_than_allowed_run_together():
    running = most = 0

    async def agent(run):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1

    await run(taskset(20), agent, max_concurrent=3)
    assert most == 3


async def test_a_failing_rollout_fails_only_itself():
    async def agent(run):
        if run.slug == "n1":
            raise ValueError("not this one")
        run.trace.content = run.prompt_text

    tasks = taskset(3)
    job = await run(Taskset("mixed", [*tasks, *_renamed(taskset(1, broken=True))]), agent)
    assert [r.reward for r in job.runs] == [1.0, 0.0, 1.0, None]
    assert [r.failure_kind for r in job.errors] == ["agent", "environment"]
    assert job.reward == pytest.approx(2 / 3)


def _renamed(tasks):
    for task in tasks:
        task.slug += "-broken"
    return tasks


async def test_batches_add_to_a_job_that_is_open():
    events = []

    class Recorder(NullRecorder):
        def job_started(self, job):
            events.append("start")

        def job_ended(self, job):
            events.append("end")

    job = await Job.start("training", group=2, recorder=Recorder())
    for _ in range(2):
        assert await run(taskset(2), job=job) is job
    assert len(job.runs) == 8
    assert len({r.group_id for r in job.runs}) == 4
    assert all(r.job_id == job.id for r in job.runs)
    assert events == ["start"]
    await job.finish()
    assert events == ["start", "end"]


summaries = st.builds(
    RunSummary,
    slug=st.sampled_from(["n0", "n1", "elsewhere"]),
    reward=st.sampled_from([None, 0.0, 1.0]),
    group_id=st.sampled_from([None, "g"]),
    attempt=st.integers(0, 3),
)


@pytest.mark.slow
@given(st.lists(summaries, max_size=8), st.integers(1, 4))
def test_the_plan_fills_every_group_exactly(finished, group):
    planned = plan_missing(taskset(2), group, finished)
    for slug in ("n0", "n1"):
        there = [f for f in finished if f.slug == slug and f.reward is not None]
        new = [p for p in planned if p.task.slug == slug]
        assert len(new) == max(0, group - len(there))
        assert not {p.attempt for p in new} & {f.attempt for f in there}
        assert len({p.group_id for p in new}) <= 1


async def test_resuming_runs_only_what_is_missing_and_joins_its_groups():
    tasks = taskset(3)
    first = await run(tasks.filter(["n0", "n1"]), group=2)
    kept = first.runs[:3]
    job = await run(tasks, group=2, finished=kept)
    assert [(r.slug, r.attempt) for r in job.runs] == [("n1", 1), ("n2", 0), ("n2", 1)]
    assert job.runs[0].group_id == kept[2].group_id


async def test_stopping_once_finishes_what_is_in_flight():
    stop = StopSignal()

    async def agent(run):
        stop.request() if not stop.stopping else None
        await asyncio.sleep(0.01)
        run.trace.content = run.prompt_text

    job = await run(taskset(20), agent, max_concurrent=4, stop=stop)
    assert job.interrupted
    assert 1 <= len(job.runs) <= 4
    assert all(r.reward == 1.0 for r in job.runs)


async def test_stopping_twice_cancels():
    stop = StopSignal()
    recorded = []

    class Recorder(NullRecorder):
        def run_ended(self, run):
            recorded.append(run)

    async def agent(run):
        if run.slug == "n0":
            run.trace.content = run.prompt_text
            return
        await asyncio.sleep(0.02)
        stop.request()
        await asyncio.sleep(60)

    job = await asyncio.wait_for(
        run(taskset(6), agent, max_concurrent=4, stop=stop, recorder=Recorder()), 5
    )
    assert job.interrupted
    assert [r.slug for r in job.runs] == ["n0"]
    assert sorted(r.trace.status for r in recorded) == ["cancelled"] * (len(recorded) - 1) + [
        "completed"
    ]


async def test_a_full_store_stops_the_job_with_its_own_error():
    class Full(NullRecorder):
        def run_ended(self, run):
            raise StoreError("The disk is full.")

    with pytest.raises(StoreError, match="full"):
        await run(taskset(5), recorder=Full())


async def test_cancelling_the_caller_cancels_the_workers():
    async def agent(run):
        await asyncio.sleep(60)

    task = asyncio.ensure_future(run(taskset(5), agent))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(asyncio.all_tasks()) == 1


async def test_an_agent_that_cannot_be_made_ready_starts_nothing():
    class Agent:
        model_name = None

        async def prepare(self):
            raise ConflictError("no such model")

        async def __call__(self, run):
            raise AssertionError

    with pytest.raises(ConflictError):
        await run(taskset(2), Agent())


@pytest.mark.parametrize("options", [{"group": 0}, {"max_concurrent": 0}, {"rollout_timeout": 0}])
async def test_limits_that_make_no_sense_are_refused(options):
    with pytest.raises(UsageError):
        await run(taskset(1), **options)


async def test_an_empty_taskset_is_an_empty_job():
    job = await run(Taskset("none", []))
    assert job.runs == []
    assert job.reward is None


async def test_a_runtime_that_cannot_be_used_is_told_once():
    async def agent(run):
        raise AssertionError

    def runtime(task):
        raise UsageError("There is no file env.py.")

    with pytest.raises(UsageError, match=r"no file env\.py"):
        await taskset(50).run(agent, runtime=runtime, recorder=NullRecorder())


async def test_ctrl_c_is_heard_as_a_request():
    stop = StopSignal()

    async def agent(run):
        if run.slug == "n0":
            os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.02)
        run.trace.content = run.prompt_text

    with stop.on_interrupt():
        job = await run(taskset(10), agent, max_concurrent=2, stop=stop)
    assert job.interrupted
    assert {r.reward for r in job.runs} == {1.0}
    assert len(job.runs) <= 2


async def test_overlapping_batches_leave_the_garbage_collector_as_it_was():
    before = gc.get_threshold()
    seen = []

    async def agent(run):
        seen.append(gc.get_threshold())
        await asyncio.sleep(0.01 * (1 + int(run.prompt_text)))

    await asyncio.gather(run(taskset(1), agent), run(taskset(3), agent))
    assert gc.get_threshold() == before
    assert min(seen)[0] > before[0]
