"""The depot of `make demo` is solvable, its apprentice leaves much to learn, and its held-out items are apart."""

import sys
from pathlib import Path

import pytest

from hud.environment.sources.loader import load_file
from hud.eval import NullRecorder, Taskset

DEPOT = Path(__file__).parents[2] / "examples" / "depot"


@pytest.fixture(autouse=True)
def _path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


def tasks(file):
    return Taskset.from_file(DEPOT / file)


async def play(taskset, agent, **options):
    return await taskset.run(agent, recorder=NullRecorder(), **options)


def test_no_held_out_item_is_trained_on():
    trained, held_out = (
        {task.args["item"] for task in tasks(file)} for file in ("tasks.py", "held_out.py")
    )
    assert len(trained) == 40
    assert len(held_out) == 24
    assert not trained & held_out


async def test_the_oracle_solves_every_task():
    scripted = load_file(DEPOT / "scripted.py")
    for file in ("tasks.py", "held_out.py"):
        job = await play(tasks(file), scripted.agent)
        assert {run.reward for run in job.runs} == {1.0}


async def test_the_apprentice_fails_in_several_ways():
    scripted = load_file(DEPOT / "scripted.py")
    job = await play(tasks("tasks.py"), scripted.apprentice(), group=4)
    assert 0.2 < job.reward < 0.5
    calls = [sum(step.source == "tool" for step in run.trace.steps) for run in job.runs]
    assert set(calls) == {0, 1}
    assert {run.reward for run, count in zip(job.runs, calls, strict=True) if count} == {0.0, 1.0}
