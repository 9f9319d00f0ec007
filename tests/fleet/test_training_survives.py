"""`hud train` against a server goes on where an engine is killed under it, and takes every step once."""

import asyncio
import os
import random
import signal

import psutil
import pytest
from safetensors.torch import load_file
from tests.fleet.live_server import LiveServer
from tests.train.test_loop_steps import SIZES, SMALL, TEXTS, say, tasks_of

from hud import Environment
from hud.client import connect, disconnect
from hud.client.contributor import Contributor
from hud.errors import ConflictError, PlatformError
from hud.eval import Taskset
from hud.processes.backoff import Backoff
from hud.train import learner as learning
from hud.train.config import TrainConfig
from hud.train.loop import train
from hud.train.run_journal import TrainingRun
from hud_platform.models.checkpoint_files import SAMPLER

pytestmark = pytest.mark.timeout(240)


def engines(server):
    found = psutil.Process(server.process.pid).children(recursive=True)
    return [one.pid for one in found if any("engine_worker" in part for part in one.cmdline())]


@pytest.mark.slow
async def test_engines_that_are_killed_cost_no_step_and_repeat_none(tmp_path, monkeypatch):
    server = LiveServer(tmp_path / "server", "--workers", "0")
    server.start()
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "client"))
    monkeypatch.setenv("HUD_API_URL", server.url)
    monkeypatch.setenv("HUD_API_KEY", server.key)
    client = connect()
    made = await client.post("/v2/models/create", {"name": "m", "texts": TEXTS, "sizes": SIZES})
    config = TrainConfig(model="m", **{**SMALL, "steps": 6})
    training = asyncio.create_task(train(config, tasks=tasks_of(say)))
    chance, kills = random.Random(1), 0
    try:
        while not training.done() and kills < 3:
            await asyncio.sleep(chance.uniform(1.0, 3.0))
            for pid in engines(server):
                os.kill(pid, signal.SIGKILL)
                kills += 1
        report = await training
        nodes = await client.get(f"/v2/models/{made['id']}/checkpoints")
    finally:
        training.cancel()
        disconnect(tmp_path / "client")
        server.stop()
    assert kills
    assert report.finished
    assert [node["step"] for node in nodes] == list(range(1, len(nodes) + 1))
    assert len({node["idempotency_key"] for node in nodes}) == len(nodes)
    steps = [one["step"] for one in report.history]
    assert steps == list(range(6))


@pytest.mark.slow
async def test_a_step_whose_engine_is_lost_is_played_again_to_the_same_weights(
    tmp_path, monkeypatch
):
    """What a group shares is computed once, and differs in its last bits from what another process computes anew."""
    server = LiveServer(tmp_path / "server", "--workers", "0")
    server.start()
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "client"))
    monkeypatch.setenv("HUD_API_URL", server.url)
    monkeypatch.setenv("HUD_API_KEY", server.key)
    client, env, played, weights = connect(), Environment("vowels"), [], {}

    @env.template()
    async def count(word: str):
        answer = yield f"say {word} " + "and then another word " * 2
        played.append(word)
        if len(played) == 3 and "straight" in weights:
            for pid in engines(server):
                os.kill(pid, signal.SIGKILL)
        yield min(1.0, len(answer) / 30)

    try:
        for name, plays in (("straight", 8), ("disturbed", 16)):
            body = {"name": name, "texts": TEXTS, "sizes": SIZES, "seed": 1}
            await client.post("/v2/models/create", body)
            played.clear()
            tasks = Taskset("words", [count(word=word) for word in ("red", "blue")])
            config = TrainConfig(model=name, **{**SMALL, "steps": 1, "max_concurrent": 1})
            report = await train(config, tasks=tasks)
            (folder,) = server.home.glob(f"models/*/checkpoints/step-1-{report.head[:6]}")
            weights[name] = load_file(folder / SAMPLER / "model.safetensors")
            assert len(played) == plays
    finally:
        disconnect(tmp_path / "client")
        server.stop()
    one, other = weights.values()
    assert one.keys() == other.keys()
    assert all(bool((one[key] == other[key]).all()) for key in one)


class Platform:
    """Answers training calls from a script, and remembers them: a pass by the trace that it learns from, or `step`."""

    def __init__(self, *script):
        self.script = list(script)
        self.asked = []

    async def get(self, path, **options):
        return {"id": "m", "metrics": {}}

    async def post(self, path, body=None, **options):
        step = path.endswith("optim-step")
        self.asked.append("step" if step else body["inputs"][0])
        said = self.script.pop(0)
        if isinstance(said, Exception):
            raise said
        paths = {"checkpoint_id": said, "sampler_path": "", "state_path": "", "model": "m"}
        return {"step": 1, **paths} if step else {"metrics": {}, "num_datums": 1}

    async def update(self, *passes):
        """Learn from one trace in each pass, and return the checkpoint of the step."""
        run = TrainingRun(self, "r", "m", Contributor("c", "a test"), next_step=0, head=None)
        learner = learning.Learner(TrainConfig(model="m"), self, run)
        for trace in passes:
            await learner.forward_backward(0, [[trace]])
        _, checkpoint = await learner.optim_step(0, None)
        return checkpoint


LOST = ConflictError("send the whole batch again")
DOWN = PlatformError("started again", 503)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch, request):
    if "script" in request.fixturenames:
        monkeypatch.setattr(learning, "PAUSES", Backoff(0.0))


@pytest.mark.parametrize(
    ("script", "asked"),
    [
        (["p", "s"], ["pass", "step"]),
        ([DOWN, "p", "s"], ["pass", "pass", "step"]),
        # The step may have been taken before its answer was lost: it is asked for again, not the pass.
        (["p", DOWN, "s"], ["pass", "step", "step"]),
        (["p", DOWN, LOST, "p", "s"], ["pass", "step", "step", "pass", "step"]),
        ([DOWN, LOST, "p", "s"], ["pass", "pass", "pass", "step"]),
    ],
)
async def test_what_is_asked_again(script, asked):
    platform = Platform(*script)
    assert await platform.update("pass") == "s"
    assert platform.asked == asked


@pytest.mark.parametrize(
    ("script", "asked"),
    [
        (["1", "2", "s"], ["one", "two", "step"]),
        (["1", DOWN, "2", "s"], ["one", "two", "two", "step"]),
        (["1", LOST, "1", "2", "s"], ["one", "two", "one", "two", "step"]),
        (
            ["1", "2", LOST, "1", DOWN, "2", "s"],
            ["one", "two", "step", "one", "two", "two", "step"],
        ),
    ],
)
async def test_a_gradient_that_was_lost_is_made_again_of_all_its_parts(script, asked):
    platform = Platform(*script)
    assert await platform.update("one", "two") == "s"
    assert platform.asked == asked


@pytest.mark.parametrize(
    "script", [[LOST, LOST], ["p", LOST, "p", LOST], [PlatformError("no", 401)], [DOWN] * 8]
)
async def test_what_stays_in_the_way_is_told(script):
    platform = Platform(*script)
    with pytest.raises(type(script[-1])) as told:
        await platform.update("pass")
    assert told.value is script[-1]
    assert platform.script == []
