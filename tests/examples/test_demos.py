"""`make demo` and `make demo-tiny` in small: every phase, on a few tasks."""

import argparse
import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hud.client import disconnect
from hud.errors import UsageError
from hud.eval import NullRecorder, Taskset

in_a_browser = pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("chromium", "bwrap")),
    reason="needs Chromium and bubblewrap (scripts/setup-worlds)",
)
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


@in_a_browser
@pytest.mark.slow
async def test_the_pixels_demo_plays_every_phase_on_screenshots_of_chromium(demo_of, tmp_path):
    small = demo_of("pixels", tasks=4, held_out=2, imitated_runs=8)
    await small.run()
    assert small.progress.finished
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["before"]["runs"] == report["after"]["runs"] == 2
    assert len(list((tmp_path / "home" / "cache" / "pixels").glob("*.png"))) == 4


@pytest.mark.slow
@pytest.mark.timeout(3600)
@in_a_browser
def test_a_policy_learns_from_pixels_to_click_held_out_buttons(tmp_path):
    command = [sys.executable, str(EXAMPLES / "pixels" / "demo.py"), "--folder", str(tmp_path)]
    subprocess.run(command, check=True)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["after"]["low"] > report["before"]["high"], (report["before"], report["after"])


@in_a_browser
async def test_a_script_that_reads_pixels_clicks_held_out_buttons_and_no_page_is_in_both_sets(
    demo_of,
):
    small = demo_of("pixels", tasks=360, held_out=3)
    scripted, pages = importlib.import_module("scripted"), importlib.import_module("pages")
    job = await small.held_out.run(scripted.agent, recorder=NullRecorder())
    assert [run.reward for run in job.runs] == [1.0, 1.0, 1.0]
    training = {pages.page_of(seed).html for seed in range(360)}
    assert training.isdisjoint(pages.page_of(seed, held_out=True).html for seed in range(120))


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
