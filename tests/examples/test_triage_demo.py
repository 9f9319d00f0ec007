"""`make demo` in small: every phase of it, on a few incidents."""

import json
import sys
from pathlib import Path

import pytest

from hud.client import disconnect
from hud.eval import Taskset

FOLDER = Path(__file__).parents[2] / "examples" / "triage"


@pytest.fixture
def demo(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    before = set(sys.modules)
    import demo

    monkeypatch.setattr(demo, "IMITATED_RUNS", 60)
    monkeypatch.setattr(demo, "SPOKEN_RUNS", 60)
    monkeypatch.setattr(
        demo, "GRPO", {**demo.GRPO, "group": 2, "tasks_per_step": 2, "eval_every": 0}
    )
    yield demo
    disconnect(tmp_path / "home")
    for name in set(sys.modules) - before:
        if str(FOLDER) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


async def test_every_phase_is_played_and_the_report_says_what_came_of_it(demo, tmp_path, capsys):
    progress = demo.Progress(folder=tmp_path, seed=0, steps=1, shuffle_advantages=False)
    small = demo.Demo(progress)
    small.tasks = Taskset("tasks", list(small.tasks)[:30])
    small.held_out = Taskset("held-out", list(small.held_out)[:4])
    await small.run()
    assert progress.taught
    assert progress.finished
    report = json.loads((tmp_path / "report.json").read_text())
    assert report
    assert (tmp_path / "curve.png").stat().st_size > 1000
    assert "loss per token" in capsys.readouterr().out
