"""On a GPU, `hud train` samples and trains in a process of its own: with the same results, and without losing a run to its crash."""

import asyncio
import os
import signal

import pytest
from tests.engine.waiting import until

from hud import Environment
from hud.client import connect, disconnect
from hud.eval import Taskset
from hud.train.backends import engine_process
from hud.train.config import TrainConfig
from hud.train.loop import train
from hud.train.monitoring.progress import Reporter

TEXTS = ["say red green blue yellow", "aeiou"] * 3
SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "max_context": 64}
SMALL = {"group": 4, "tasks_per_step": 2, "max_tokens": 8, "max_turns": 1, "lr": 1e-2, "steps": 3}

env = Environment("vowels")


@env.template()
async def say(word: str):
    answer = yield f"say {word}"
    yield min(1.0, len(answer) / 30)


TASKS = Taskset("words", [say(word=word) for word in ("red", "green", "blue", "yellow")])


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.setattr(engine_process, "has_gpu", lambda: True)
    yield tmp_path
    disconnect(tmp_path)


async def make(name):
    await connect().post("/v2/models/create", {"name": name, "texts": TEXTS, "sizes": SIZES})


def rewards(report):
    return [row["metrics"]["rollout_reward:mean"] for row in report.history]


class Watching(Reporter):
    """Notes the engine's processes after each step."""

    def __init__(self):
        super().__init__()
        self.engines = []

    def stepped(self, step, metrics):
        self.engines.append(connect().embedded.parts.used_engine)


async def pids():
    status = await connect().embedded.parts.used_engine.status()
    return status.get("pids", [])


@pytest.mark.slow
async def test_a_run_in_a_process_of_its_own_is_the_run_in_this_process(home):
    for name in ("apart", "here"):
        await make(name)
    watching = Watching()
    apart = await train(
        TrainConfig(model="apart", max_concurrent=1, **SMALL), tasks=TASKS, reporter=watching
    )
    assert all(type(engine).__name__ == "OwnedEngine" for engine in watching.engines)
    assert connect().embedded.parts.used_engine is None
    here = await train(
        TrainConfig(model="here", max_concurrent=1, engine_process="off", **SMALL), tasks=TASKS
    )
    assert (apart.finished, here.finished) == (True, True)
    assert rewards(apart) == pytest.approx(rewards(here))


@pytest.mark.slow
async def test_a_killed_engine_is_started_again_and_the_run_ends(home):
    await make("m")

    class Killing(Watching):
        def stepped(self, step, metrics):
            super().stepped(step, metrics)
            if step == 0:
                asyncio.get_running_loop().create_task(kill())

    async def kill():
        (pid,) = await pids()
        os.kill(pid, signal.SIGKILL)

    report = await train(TrainConfig(model="m", **SMALL), tasks=TASKS, reporter=Killing())
    assert report.finished
    assert report.next_step == 3
    assert all(reward > 0 for reward in rewards(report))


@pytest.mark.slow
async def test_its_processes_end_with_the_run(home):
    await make("m")
    seen = []

    class Noting(Watching):
        def stepped(self, step, metrics):
            asyncio.get_running_loop().create_task(note())

    async def note():
        seen.extend(await pids())

    await train(TrainConfig(model="m", **{**SMALL, "steps": 2}), tasks=TASKS, reporter=Noting())
    assert seen
    await until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in seen))


async def test_on_a_cpu_it_stays_in_this_process(home, monkeypatch):
    monkeypatch.setattr(engine_process, "has_gpu", lambda: False)
    async with engine_process.engine_process(connect(), TrainConfig(model="m")):
        assert connect().embedded.parts.used_engine is None
