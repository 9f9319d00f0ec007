"""A supervised training killed anywhere and started again: the weights of one that was not, and no reported step twice."""

import json
import logging
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.train.supervised.test_supervised_run import script, tasks
from tests.train.test_client_training import SIZES, TEXTS, home

from hud import TrainingClient
from hud.agents import ScriptedAgent, create_agent
from hud.cli.models.options import unsaved_note
from hud.client import connect
from hud.eval import StopSignal
from hud.eval.job import Job
from hud.train.monitoring.progress import Reporter
from hud.train.supervised import supervised_run
from hud.train.supervised.config import SupervisedConfig
from hud.train.supervised.supervised_run import learn_from
from hud_platform.models.checkpoint_files import SAMPLER, STATE

__all__ = ["home"]
LEARNER = Path(__file__).with_name("killed_learner.py")
ROOT = Path(__file__).parents[3]
SETTINGS = {"batch": 2, "epochs": 6, "lr": 1e-2}


class Steps(Reporter):
    """Records steps and sentences; asks the run to stop after a step."""

    def __init__(self, last=None):
        self.steps, self.notes, self.stop, self.last = [], [], StopSignal(), last
        self.metrics = []

    def stepped(self, step, metrics):
        self.steps.append(step)
        self.metrics.append(metrics)
        if step == self.last:
            self.stop.request()

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
async def job(home):
    """A job of 8 recorded runs; `m` and `n` are equal models."""
    await connect().post("/v2/models/create", {"name": "n", "texts": TEXTS, "sizes": SIZES})
    played = await Job.start("teacher", group=4)
    await tasks.run(ScriptedAgent(script), job=played)
    await played.finish()
    return played.id


async def learn(model, job, *, last=None, fresh=False, **values):
    heard = Steps(last)
    config = SupervisedConfig(**{"model": model, "jobs": [job], **SETTINGS, **values})
    report = await learn_from(config, tasks=tasks, reporter=heard, stop=heard.stop, fresh=fresh)
    return report, heard


def learner(model, job):
    """Start `killed_learner.py`."""
    command = [sys.executable, str(LEARNER), model, job]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


async def weights(model):
    head = next(one for one in await TrainingClient(model).checkpoints() if one.is_active)
    folder = connect().embedded.parts.registry.tree.get(head.id).folder
    files = [load_file(one) for one in sorted((folder / SAMPLER).glob("*.safetensors"))]
    return [*files, load_file(folder / STATE)]


async def assert_same_weights(first, second):
    for mine, other in zip(await weights(first), await weights(second), strict=True):
        assert mine.keys() == other.keys()
        assert all((mine[name] == other[name]).all() for name in mine)


@pytest.mark.slow
async def test_a_killed_training_goes_on_at_the_running_step_and_ends_with_the_same_weights(job):
    straight, _ = await learn("m", job)
    assert (straight.finished, straight.next_step) == (True, 24)
    rng, reported, firsts = random.Random(5), -1, []
    for kill_at in (0, rng.randrange(3, 9), rng.randrange(10, 20), None):
        process = learner("n", job)
        for line in process.stdout:
            if line.startswith("from "):
                firsts.append(int(line.split()[1]))
                assert firsts[-1] in (reported + 1, reported + 2), "no reported step is taken again"
            if line.startswith("step "):
                reported = int(line.split()[1])
                if kill_at is not None and reported >= kill_at:
                    process.send_signal(signal.SIGKILL)
                    break
        for line in process.stdout:
            reported = int(line.split()[1]) if line.startswith("step ") else reported
        assert process.wait() == (0 if kill_at is None else -signal.SIGKILL)
    assert firsts[0] == 0 < firsts[1] < firsts[2] < firsts[3]
    await assert_same_weights("m", "n")
    (run,) = [
        one
        for one in (await connect().get("/v2/training-runs"))["items"]
        if one["config"]["model"] == "n"
    ]
    rows = (await connect().get(f"/v2/training-runs/{run['id']}/steps"))["items"]
    assert [row["step"] for row in rows] == list(range(24))


@pytest.mark.slow
async def test_a_stopped_training_goes_on_and_a_finished_one_says_so(job):
    await learn("m", job)
    stopped, heard = await learn("n", job, last=4)
    assert (stopped.finished, stopped.next_step) == (False, 5)
    resumed, more = await learn("n", job)
    assert (resumed.first_step, resumed.finished) == (5, True)
    assert heard.steps + more.steps == list(range(24))
    await assert_same_weights("m", "n")
    epochs = [row["epoch"] for row in (*heard.metrics, *more.metrics)]
    assert (epochs[0], epochs[-1]) == (0.25, 6.0)

    again, heard = await learn("n", job)
    assert (again.finished, again.first_step, heard.steps) == (True, 24, [])
    assert again.last_loss == resumed.last_loss
    assert [note for note in heard.notes if "has finished already, after 24 steps" in note]
    longer, heard = await learn("n", job, epochs=7)
    assert (longer.run_id, heard.steps) == (again.run_id, list(range(24, 28)))
    longer, heard = await learn("n", job, steps=30)
    assert (longer.run_id, heard.steps) == (again.run_id, [28, 29])
    new, heard = await learn("n", job, fresh=True, epochs=1)
    assert (new.run_id != again.run_id, heard.steps) == (True, [0, 1, 2, 3])


@pytest.mark.slow
async def test_held_out_tasks_are_scored_and_the_run_is_in_the_journal(job, monkeypatch):
    monkeypatch.setattr(supervised_run, "_SAVE_EVERY", 10)
    heard = Steps()
    config = SupervisedConfig(model="m", jobs=[job], eval_every=8, max_tokens=4, **SETTINGS)
    report = await learn_from(config, tasks=tasks, held_out=tasks, reporter=heard)
    assert [note for note in heard.notes if "held-out tasks are trained on, too" in note]
    assert [score.step for score in report.scores] == [0, 8, 16, 24]
    nodes = await connect().get("/v2/models/m/checkpoints")
    assert [node["step"] for node in nodes] == [8, 10, 16, 20, 24]
    assert report.scores[1].checkpoint_id == nodes[0]["id"]
    logged = [json.loads(line) for line in report.metrics_file.read_text().splitlines()]
    assert [row["step"] for row in logged if "step" in row] == list(range(24))
    assert report.plot.is_file()
    assert report.last_loss < report.first_loss


@pytest.mark.slow
async def test_steps_without_a_checkpoint_survive_until_the_head_is_moved(job, caplog):
    """Another training of the model begins with them; a head that a person moved leaves them behind."""
    process = learner("n", job)
    for line in process.stdout:
        if line == "step 3\n":
            process.kill()
            break
    process.wait()
    assert await connect().get("/v2/models/n/checkpoints") == []
    steps = (await connect().get("/v2/models/n"))["unsaved_steps"]
    assert steps in (4, 5)
    with caplog.at_level(logging.WARNING, "hud.eval"):
        await create_agent("n").prepare()
    assert [record.getMessage() for record in caplog.records] == [
        f"note: The head of n plays, without {steps} newer steps of a training that runs or was stopped. The training's command "
        "makes a checkpoint of them."
    ]
    note = unsaved_note({"model_name": "n", "unsaved_steps": steps})
    assert note.startswith(f"note: {steps} steps of the training of n are on disk")
    report, heard = await learn("n", job, fresh=True, last=0)
    steps = [node["step"] for node in await connect().get("/v2/models/n/checkpoints")]
    assert (steps[0] in (4, 5), steps[1]) == (True, steps[0] + 1)
    assert (report.first_step, heard.steps) == (0, [0])
    assert (await connect().get("/v2/models/resolve", params={"model": "n"}))["unsaved_steps"] == 0
