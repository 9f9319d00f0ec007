"""`--profile`: a trace of one step that a browser's trace viewer opens."""

import gzip
import json

import pytest

from hud import Environment
from hud.client import connect, disconnect
from hud.errors import UsageError
from hud.eval import Taskset
from hud.train.config import TrainConfig
from hud.train.loop import train

env = Environment("letters")
SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "max_context": 64}
SMALL = {"group": 4, "tasks_per_step": 2, "max_tokens": 8, "max_turns": 1, "lr": 1e-3}


@env.template()
async def say(word: str):
    answer = yield f"say {word}"
    yield min(1.0, len(answer) / 30)


TASKS = Taskset("letters", [say(word=word) for word in ("red", "green")])


@pytest.fixture
async def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    made = {"name": "m", "texts": ["say red green"] * 3, "sizes": SIZES}
    await connect().post("/v2/models/create", made)
    yield tmp_path
    disconnect(tmp_path / "home")


def events_of(file):
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt") as trace:
        return json.load(trace)["traceEvents"]


@pytest.mark.parametrize(("name", "steps"), [("step.json", 1), ("step.json.gz", 2)])
async def test_a_step_is_traced_with_the_operations_of_its_threads(home, name, steps):
    file = home / name
    config = TrainConfig(model="m", steps=steps, profile=str(file), **SMALL)
    report = await train(config, tasks=TASKS)
    assert report.finished
    events = [event for event in events_of(file) if event.get("ph") == "X"]
    assert {"update", "apply"} <= {event["name"] for event in events}
    operations = {event["tid"] for event in events if event["name"].startswith("aten::")}
    updates = {event["tid"] for event in events if event["name"] == "update"}
    assert operations - updates


async def test_a_run_that_goes_on_without_it_is_the_same_run(home):
    first = await train(TrainConfig(model="m", steps=1, **SMALL), tasks=TASKS)
    config = TrainConfig(model="m", steps=2, profile=str(home / "step.json"), **SMALL)
    second = await train(config, tasks=TASKS)
    assert second.run_id == first.run_id


async def test_a_file_that_cannot_be_written_is_refused_before_the_first_step(home):
    config = TrainConfig(model="m", steps=1, profile=str(home / "missing/step.json"), **SMALL)
    with pytest.raises(UsageError, match="--profile .*step.json: .*No such file"):
        await train(config, tasks=TASKS)
    assert (await connect().get("/v2/jobs"))["items"] == []


async def test_a_server_that_trains_is_not_profiled(home, monkeypatch):
    monkeypatch.setenv("HUD_API_URL", "http://127.0.0.1:9")
    with pytest.raises(UsageError, match="records the process that trains"):
        await train(TrainConfig(model="m", profile="step.json", **SMALL), tasks=TASKS)
