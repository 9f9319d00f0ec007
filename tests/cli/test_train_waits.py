"""`hud train` without a terminal says what a slow step does; it printed nothing for a first step of a minute."""

import io

import pytest
from rich.console import Console

from hud.cli.training import panel
from hud.cli.training.panel import QUIET_SECONDS, Lines
from hud.train.config import TrainConfig


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(panel, "monotonic", lambda: now[0])
    return now


def test_a_slow_step_says_its_phase_and_its_runs(clock):
    out = io.StringIO()
    lines = Lines(TrainConfig(model="m", tasks="tasks.py"), Console(file=out, width=200))
    lines.started("a" * 32, 0, 5)
    lines.phase("rollouts", 0, 32)
    for _ in range(3):
        lines.run_ended(0.0)
    lines.waited()
    assert len(out.getvalue().splitlines()) == 1
    shown = []
    for _ in range(60):
        clock[0] += 1
        lines.waited()
        shown = out.getvalue().splitlines()[1:]
    assert shown == [f"step 1: rollouts, 3 of 32 runs, for {n} s" for n in (10, 20, 40)]
    lines.note("done")
    clock[0] += QUIET_SECONDS - 1
    lines.phase("update", 0, 0)
    lines.waited()
    clock[0] += 1
    lines.waited()
    assert out.getvalue().splitlines()[-1] == "step 1: update, for 10 s"


def test_the_first_supervised_step_gives_no_estimate(clock):
    out = io.StringIO()
    lines = Lines(TrainConfig(model="m", tasks="tasks.py"), Console(file=out, width=200))
    lines.started("a" * 32, 0, 5)
    metrics = {"epoch": 0.2, "seconds:sum": 5.0, "action_tokens:sum": 60.0, "loss:sum": 60.0}
    for step in range(2):
        clock[0] += 5
        lines.stepped(step, metrics)
    first, second = out.getvalue().splitlines()[-2:]
    assert first.endswith("–")
    assert second.endswith("15 s")


def test_a_slow_preparation_of_recorded_runs_is_no_step(clock):
    out = io.StringIO()
    lines = Lines(TrainConfig(model="m", tasks="tasks.py"), Console(file=out, width=200))
    lines.phase("examples", 0, 216)
    lines.run_ended(1.0)
    clock[0] += QUIET_SECONDS
    lines.waited()
    assert out.getvalue().splitlines() == [
        "reading 216 recorded runs",
        "preparing: 1 of 216 recorded runs read, for 10 s",
    ]
    for _ in range(215):
        lines.run_ended(1.0)
    clock[0] += 2 * QUIET_SECONDS
    lines.waited()
    assert "216 recorded runs read; preparing the first step, for " in out.getvalue()
