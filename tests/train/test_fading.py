"""Process rewards fade as training goes on: its progress comes to graders with each run, wherever the environment is."""

from pathlib import Path

import pytest

from hud import Environment
from hud.agents import create_agent
from hud.client import connect, disconnect
from hud.eval import ForkRuntime, LocalRuntime, SubprocessRuntime, Taskset, rollout
from hud.eval.run import Run
from hud.eval.runtimes.hosted import _submission
from hud.fleet.worker import _run_of
from hud.graders import Fade, training_progress
from hud.train.config import TrainConfig
from hud.train.loop import train
from hud_platform.routes.rollouts import Submission

TEXTS = ["say red green blue yellow", "aeiou"] * 3
SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "max_context": 64}
SMALL = {"group": 3, "tasks_per_step": 1, "max_tokens": 4, "max_turns": 1, "steps": 4, "lr": 1e-3}

env = Environment("fading")


@env.template()
async def say(word: str):
    answer = yield f"say {word}"
    # Spread in the process alone: the outcome is always the same.
    yield Fade(start=0.0, end=0.5, share=0.5)(process=min(1.0, len(answer) / 30), outcome=0.25)


@env.template()
async def whole(word: str):
    answer = yield f"say {word}"
    yield Fade(end=1.0)(process=min(1.0, len(answer) / 30), outcome=0.25)


async def speaker(run):
    run.trace.content = "x" * 30


def playing(progress):
    async def agent(run):
        await speaker(run)

    if progress is not None:
        agent.training_progress = progress
    return agent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("progress", "share", "reward"),
    [(0.0, 0.5, 0.625), (0.25, 0.25, 0.4375), (0.75, 0.0, 0.25), (None, 0.0, 0.25)],
)
@pytest.mark.parametrize("runtime", ["local", "fork", "subprocess"])
async def test_a_run_is_graded_at_the_progress_of_its_training(runtime, progress, share, reward):
    if runtime != "local" and progress not in (0.25, None):
        return  # One point in training and one outside show that it travels.
    here = Path(__file__)
    runtimes = {"local": LocalRuntime, "fork": ForkRuntime, "subprocess": SubprocessRuntime}
    provider = runtimes[runtime]() if runtime == "local" else runtimes[runtime](here)
    run = await rollout(say(word="red"), playing(progress), runtime=provider)
    assert run.error is None
    assert run.reward == pytest.approx(reward)
    (fade,) = [part for part in run.grade.subscores if part["name"] == "fade"]
    assert fade["value"] == pytest.approx(share)
    assert training_progress() == 1.0


def test_progress_goes_with_a_rollout_that_the_platform_plays():
    run = Run(task=say(word="red"), model="m", training_progress=0.5)
    agent = create_agent("m")
    spec = Submission(**_submission(run, agent, None)).model_dump()
    given = {"spec": spec, "trace_id": run.trace_id, "job_id": None}
    assert _run_of(given, None).training_progress == 0.5


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1])
async def test_a_training_run_fades_and_its_held_out_runs_do_not(tmp_path, monkeypatch, lag):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    await connect().post("/v2/models/create", {"name": "m", "texts": TEXTS, "sizes": SIZES})
    tasks = Taskset("words", [whole(word=word) for word in ("red", "green", "blue")])
    config = TrainConfig(model="m", max_lag=lag, **SMALL)
    try:
        report = await train(config, tasks=tasks, held_out=tasks)
        shares = [row["metrics"]["fade_share:mean"] for row in report.history]
    finally:
        disconnect(tmp_path / "home")
    assert shares == pytest.approx([0.5, 0.375, 0.25, 0.125])
    # Outside training the outcome alone counts, and it is the same in every run.
    assert {score.mean for score in report.scores} == {0.25}
