"""Rollouts that wait: for memory, and for a model whose requests wait; a job always goes on."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from tests.inference.test_request_window import LimitedProvider

from hud.agents.providers.openai_chat import OpenAIChatAgent
from hud.client import connect, disconnect, recorder
from hud.environment import Environment
from hud.eval import Job, Taskset
from hud.eval.concurrency import admission
from hud.eval.concurrency.admission import Admission, MemoryGate
from hud.eval.concurrency.in_force import ConcurrencyInForce, ConcurrencyWatch
from hud.inference.connection_pool import Lanes
from hud.inference.request_window import window_of

env = Environment("errands")
GB = 1 << 30


@env.template()
async def errand(number: int):
    """An errand."""
    yield "Say hi."
    yield 1.0


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    yield tmp_path
    disconnect(tmp_path)


class Machine:
    """A machine's memory, of which each rollout that runs takes a part."""

    def __init__(self, monkeypatch, free, taken):
        self.before, self.taken = free, taken
        self.running = self.most = 0
        self.gate = MemoryGate(lambda: self.before - self.running * self.taken)
        monkeypatch.setattr(admission, "machine_memory", lambda: self.gate)
        monkeypatch.setattr(admission, "READING_SECONDS", 0.0)
        monkeypatch.setattr(admission, "POLL_SECONDS", 0.001)

    async def __call__(self, run):
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.003)
        self.running -= 1
        run.trace.content = "hi"


def tasks(count):
    return Taskset("errands", [errand(number=number) for number in range(count)])


async def test_new_rollouts_wait_while_memory_is_short(monkeypatch):
    machine = Machine(monkeypatch, free=8 * GB, taken=2 * GB)
    job = await tasks(30).run(machine, max_concurrent=16)
    assert [run.reward for run in job.runs] == [1.0] * 30
    # Of 8 GB four take 2 GB each; a reserve of 0.5 GB lets the fourth begin.
    assert machine.most == 4


async def test_a_job_goes_on_with_one_rollout_whatever_is_free(monkeypatch):
    machine = Machine(monkeypatch, free=8 * GB, taken=0)
    machine.before = 0
    job = await tasks(6).run(machine, max_concurrent=16)
    assert [run.reward for run in job.runs] == [1.0] * 6
    assert machine.most == 1


async def test_a_job_within_a_rollout_goes_on_too(monkeypatch):
    machine = Machine(monkeypatch, free=8 * GB, taken=0)
    machine.before = 0

    async def agent(run):
        inner = await tasks(2).run(machine, max_concurrent=2)
        run.trace.content = str(inner.reward)

    job = await tasks(2).run(agent, max_concurrent=2)
    assert [run.trace.content for run in job.runs] == ["1.0", "1.0"]


async def test_new_rollouts_wait_while_requests_do():
    gate = Admission(MemoryGate(lambda: 8 * GB))
    window = window_of("https://busy.test", "busy")
    window.limit, window.refusals = 1.0, 1
    release = asyncio.Event()

    async def hold():
        async with window.slot():
            await release.wait()

    holding = [asyncio.create_task(hold()) for _ in range(2)]
    await asyncio.sleep(0)
    waiting = asyncio.create_task(gate.admit(lambda: 2, lambda: False))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    assert gate.held_by == "requests"
    release.set()
    await asyncio.gather(*holding, waiting)
    assert gate.held_by is None


async def test_a_stop_ends_the_wait():
    gate = Admission(MemoryGate(lambda: 8 * GB))
    gate._memory._free = lambda: 0
    stopping = False
    waiting = asyncio.create_task(gate.admit(lambda: 1, lambda: stopping))
    await asyncio.sleep(0.05)
    assert (waiting.done(), gate.held_by) == (False, "memory")
    stopping = True
    await asyncio.wait_for(waiting, 5)


async def test_the_numbers_in_force_are_recorded_with_the_job(home, monkeypatch):
    """A provider that takes two at a time: no run is lost, and job and store say what was in force."""
    provider = LimitedProvider("openai", at_once=2)
    monkeypatch.setattr(
        Lanes, "handle_async_request", httpx.MockTransport(provider).handle_async_request
    )
    agent = OpenAIChatAgent(model="m", base_url="https://provider.test")
    said = []
    job = await Job.start("errands", planned=40)
    await tasks(40).run(agent, job=job, max_concurrent=12, on_wait=said.append)
    await job.finish()
    assert [run.reward for run in job.runs] == [1.0] * 40
    assert job.concurrency["max_concurrent"] == 12
    assert 1 <= job.concurrency["requests"]["m"] <= 3
    assert [line for line in said if line.startswith("In force: ")]
    await recorder().flush()
    stored = await connect().get(f"/v2/jobs/{job.id}")
    assert stored["concurrency"] == job.concurrency
    assert (stored["status"], stored["planned"]) == ("completed", 40)


async def test_limits_are_said_again_only_when_they_have_halved_or_doubled():
    said = []
    job = Job("j", "job")
    watch = ConcurrencyWatch(job, 32, Admission(MemoryGate(lambda: 8 * GB)), said.append)
    window = window_of("https://provider.test", "m")
    watch.look()
    assert (said, job.concurrency) == ([], None)
    window.refusals = 1
    for limit in (16.0, 15.5, 12.0, 8.0, 9.0, 15.0, 16.0):
        window.limit = limit
        watch.look()
    assert said == [f"In force: {count} requests at once to m." for count in (16, 8, 16)]
    assert job.concurrency["requests"] == {"m": 16}


def test_no_number_is_above_the_users_limit():
    async def look():
        window = window_of("https://provider.test", "m")
        window.limit, window.refusals = 50.0, 1
        return ConcurrencyInForce.of(3, 8, Admission(MemoryGate(lambda: 8 * GB)))

    assert asyncio.run(look()).requests == {"m": 8}
