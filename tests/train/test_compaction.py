"""Training across compaction: segments of a run share its reward, and a run that never reaches the threshold is as before."""

import hashlib
import itertools
from collections import Counter

import pytest
from pydantic import ValidationError

from hud import Environment
from hud.client import connect, disconnect
from hud.eval import Taskset
from hud.train.config import TrainConfig
from hud.train.loop import train

SIZES = {
    "vocab_size": 300,
    "hidden": 32,
    "layers": 1,
    "heads": 2,
    "kv_heads": 1,
    "max_context": 800,
}
TEXTS = ["say red green blue yellow", "aeiou"] * 3
LONG = {
    "group": 4, "tasks_per_step": 1, "max_tokens": 40, "max_turns": 16, "steps": 2, "lr": 1e-3, "max_concurrent": 1,
}  # fmt: skip
ATTEMPTS = itertools.count()

env = Environment("talk")


@env.template()
async def talk(word: str):
    answer = yield f"say {word}"
    yield min(1.0, len(answer or "") / 30) + next(ATTEMPTS) % 2


@pytest.fixture
async def model(tmp_path, monkeypatch):
    homes = []

    async def made(name):
        folder = tmp_path / name
        monkeypatch.setenv("HUD_HOME", str(folder))
        monkeypatch.delenv("HUD_API_URL", raising=False)
        await connect().post("/v2/models/create", {"name": "m", "texts": TEXTS, "sizes": SIZES})
        homes.append(folder)
        return folder

    yield made
    for folder in homes:
        disconnect(folder)


def tasks():
    tasks = [talk(word=word) for word in ("red", "green")]
    for task in tasks:  # Turns that are cut off do not end a run, so that conversations grow long.
        task.agent_config = {"stop_on": []}
    return Taskset("talk", tasks)


async def trained(**settings):
    """Train, and return the report with the runs' rows of the first job of training."""
    global ATTEMPTS
    ATTEMPTS = itertools.count()
    report = await train(TrainConfig(model="m", **{**LONG, **settings}), tasks=tasks())
    jobs = (await connect().get("/v2/jobs"))["items"]
    rows = [
        row
        for job in jobs
        if job["purpose"] == "training"
        for row in (await connect().get(f"/v2/jobs/{job['id']}/traces"))["items"]
    ]
    return report, rows


def weights(home):
    """Digests of the weights of every checkpoint."""
    files = sorted(home.glob("models/**/*.safetensors"))
    return sorted(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)


@pytest.mark.slow
async def test_a_policy_plays_past_its_window_and_learns_from_every_segment(model):
    await model("compacted")
    report, rows = await trained(context_policy="compact", compact_at=400)
    metrics = report.history[0]["metrics"]
    assert metrics["datums_per_run:max"] > 2
    assert metrics["trained_tokens:mean"] == 1.0
    # Exact ids: the trainer computes the probabilities that the sampler recorded.
    assert abs(metrics["sampler_k3:mean"]) < 1e-6
    assert {row["stop_reason"] for row in rows} <= {"done", "max_steps"}
    longest = max(rows, key=lambda row: row["turns"])
    assert longest["turns"] > LONG["max_turns"]
    full = await connect().get(f"/v2/trace/{longest['trace_id']}/full")
    assert full["run"]["extra"]["compaction"] == longest["turns"] - LONG["max_turns"]
    groups = Counter(row["group_id"] for row in rows)
    assert set(groups.values()) == {LONG["group"]}
    await model("stopped")
    _, rows = await trained(steps=1)
    assert "length" in {row["stop_reason"] for row in rows}  # The window is shorter than the task.


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_runs_below_the_threshold_train_bit_for_bit_as_before(model, seed):
    short = {"max_turns": 4, "seed": seed}
    home = await model("stop")
    _, plain = await trained(**short)
    before = weights(home)
    home = await model("compact")
    _, rows = await trained(**short, context_policy="compact", compact_at=10_000)
    assert weights(home) == before
    assert len(set(before)) > 2
    assert [row["reward"] for row in rows] == [row["reward"] for row in plain]
    home = await model("null")
    await trained(**short, context_policy="compact", compact_at=60)
    assert weights(home) != before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"context_policy": "compact"}, "needs compact_at"),
        ({"compact_at": 9}, "need context_policy"),
        ({"context_policy": "compact", "compact_at": 9, "agent": "mini-swe-agent"}, "own prompts"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        TrainConfig(model="m", **settings)
