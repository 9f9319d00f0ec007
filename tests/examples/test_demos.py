"""`make demo` and `make demo-tiny` in small: every phase, on a few tasks."""

import argparse
import importlib
import json
import sys
from pathlib import Path

import pytest

from hud.client import disconnect
from hud.errors import UsageError
from hud.eval import Taskset

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def demo_of(monkeypatch, tmp_path):
    """Return a function that makes the demo of an example, smaller than it is, in `tmp_path`."""
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)

    def make(example, *, tasks, held_out, **settings):
        sys.path.insert(0, str(EXAMPLES / example))
        demo = importlib.import_module("demo")
        driver = importlib.import_module("demo_driver")
        progress = driver.Progress(folder=tmp_path, seed=0, steps=1, shuffle_advantages=False)
        small = demo.Demo(progress)
        small.tasks = Taskset("tasks", list(small.tasks)[:tasks])
        small.held_out = Taskset("held-out", list(small.held_out)[:held_out])
        small.grpo = {**small.grpo, "group": 2, "tasks_per_step": 2, "eval_every": 0}
        for name, value in settings.items():
            setattr(small, name, value)
        return small

    yield make
    disconnect(tmp_path / "home")
    for name in set(sys.modules) - before:
        if str(EXAMPLES) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


async def test_the_tiny_demo_plays_every_phase_and_reports_what_came_of_it(
    demo_of, tmp_path, capsys
):
    small = demo_of("triage", tasks=30, held_out=4, imitated_runs=60, spoken_runs=60)
    await small.run()
    assert small.progress.taught
    assert small.progress.finished
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["before"]["runs"] == report["after"]["runs"] == 4
    assert report["seconds"]["cpu"] > 0
    assert (tmp_path / "curve.png").stat().st_size > 1000
    assert "loss per token" in capsys.readouterr().out


@pytest.mark.slow
async def test_the_demo_trains_a_pretrained_model(demo_of, pretrained_home, tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(pretrained_home))
    small = demo_of(
        "depot", tasks=2, held_out=2, imitated_runs=4, warm_up={"epochs": 1, "batch": 4, "lr": 1e-3}
    )
    await small.run()
    assert small.progress.finished
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["model"] == "depot"
    assert report["steps"] == 1
    disconnect(pretrained_home)


async def test_without_a_download_the_demo_names_the_one_that_needs_none(demo_of, monkeypatch):
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    small = demo_of("depot", tasks=2, held_out=2, imitated_runs=2)
    with pytest.raises(UsageError, match=r"could not be fetched.*`make demo-tiny`"):
        await small.run()
    assert not small.progress.taught


def test_a_demo_goes_on_where_it_stopped_and_begins_again_with_its_download(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    driver = importlib.import_module("demo_driver")
    (tmp_path / "home" / "cache").mkdir(parents=True)
    (tmp_path / "home" / "hud.db").touch()
    (tmp_path / "mine.txt").touch()
    options = argparse.Namespace(
        seed=0, steps=1, shuffle_advantages=False, fresh=False, resume=False
    )
    progress = driver.begin(tmp_path, options)
    assert {path.name for path in tmp_path.rglob("*")} == {
        "home",
        "cache",
        "mine.txt",
        "progress.json",
    }
    progress.taught = True
    progress.save()
    assert driver.begin(tmp_path, options).taught
    progress.finished = True
    progress.save()
    assert not driver.begin(tmp_path, options).taught
