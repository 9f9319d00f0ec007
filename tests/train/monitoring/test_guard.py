"""The guard: a gamed reward pauses the run, a person overrides it, and honest training goes on."""

import json
import sys
from pathlib import Path

import pytest
from benchmarks.guard_false_alarms import RECORD, caught_within, run_of, tables, trained

from hud import Environment
from hud.client import connect, disconnect
from hud.errors import UsageError
from hud.eval import Taskset
from hud.train.config import TrainConfig
from hud.train.loop import train
from hud.train.monitoring.alarms import Alarm
from hud.train.monitoring.guard import Trajectory, guard_record, showing
from hud.train.monitoring.progress import Reporter

ROOT = Path(__file__).parents[3]
env = Environment("letters")


@env.template()
async def say(word: str):
    answer = yield f"say {word}"
    yield min(1.0, len(answer) / 30)


WORDS = ("red", "green", "blue", "yellow")
TASKS = Taskset("letters", [say(word=word) for word in WORDS[:2]])
HELD_OUT = Taskset("other-letters", [say(word=word) for word in WORDS[2:]])


class Listener(Reporter):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
async def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    sizes = {"hidden": 32, "layers": 1, "vocab_size": 300, "max_context": 64}
    texts = [f"say {word}" for word in WORDS] * 5
    await connect().post("/v2/models/create", {"name": "m", "texts": texts, "sizes": sizes})
    yield tmp_path
    disconnect(tmp_path)


def config(**values):
    # Any entropy is outside this band from the tenth step on, and the reward does not rise.
    small = {"group": 4, "tasks_per_step": 2, "max_tokens": 4, "max_turns": 1, "lr": 1e-4}
    return TrainConfig(model="m", steps=13, eval_every=5, guard_entropy_low=10, **small, **values)


@pytest.mark.slow
async def test_a_paused_run_goes_on_only_when_a_person_overrides_it(home):
    heard = Listener()
    report = await train(config(guard="stop"), tasks=TASKS, held_out=HELD_OUT, reporter=heard)
    paused = report.paused
    assert (paused.step, paused.alarm, report.next_step, report.finished) == (
        10,
        "entropy collapses",
        10,
        False,
    )
    best = max(report.scores[:2], key=lambda one: (one.mean, one.step))
    assert (paused.best_step, paused.best_checkpoint) == (best.step, best.checkpoint_id)
    assert sum("Guard, entropy collapses after step 10" in note for note in heard.notes) == 1
    assert len({one.trace_id for one in paused.trajectories}) == 3
    (run,) = (await connect().get("/v2/training-runs"))["items"]
    assert run["status"] == "paused"
    assert guard_record(run["state"]).paused == paused
    for one in paused.trajectories:
        recorded = await connect().get(f"/v2/trace/{one.trace_id}/full")
        assert recorded["run"]["reward"] == one.reward

    # The same command again says why it does not go on, and how it would.
    with pytest.raises(UsageError, match="paused the run after step 10") as refused:
        await train(config(guard="stop"), tasks=TASKS, held_out=HELD_OUT)
    assert "hud models head m --set" in str(refused.value)
    assert "--override-guard" in str(refused.value)
    (run,) = (await connect().get("/v2/training-runs"))["items"]
    assert run["status"] == "paused"

    # What came before the override raises no alarm again.
    report = await train(config(guard="stop"), tasks=TASKS, held_out=HELD_OUT, override_guard=True)
    assert (report.first_step, report.finished, report.paused) == (10, True, None)
    (run,) = (await connect().get("/v2/training-runs"))["items"]
    record = guard_record(run["state"])
    assert (run["status"], record.paused, record.overridden) == ("finished", None, (10,))
    logged = [json.loads(line) for line in report.metrics_file.read_text().splitlines()]
    assert [row["guard"]["overridden"] for row in logged if "guard" in row] == [[], [10]]


@pytest.mark.slow
async def test_a_head_that_a_person_moved_back_needs_no_override(home):
    paused = await train(config(guard="stop"), tasks=TASKS)
    assert (paused.paused.best_step, paused.next_step) == (None, 10)
    nodes = await connect().get("/v2/models/m/checkpoints")
    await connect().put("/v2/models/m/head", {"checkpoint_id": nodes[3]["id"]})
    # Limits are no part of the experiment: the same run goes on within others.
    again = await train(config(guard="warn"), tasks=TASKS)
    assert (again.first_step, again.finished) == (4, True)


@pytest.mark.slow
@pytest.mark.parametrize(("guard", "warnings"), [("warn", 1), ("off", 0)])
async def test_a_guard_that_only_warns_lets_the_run_finish(home, guard, warnings):
    heard = Listener()
    report = await train(config(guard=guard), tasks=TASKS, reporter=heard)
    assert (report.finished, report.paused) == (True, None)
    assert sum(note.startswith("Guard, ") for note in heard.notes) == warnings


ROLLOUTS = [
    Trajectory(f"{slug}{place}", slug, reward, tokens, {"grade_form:mean": form})
    for slug in "abcd"
    for place, (reward, tokens, form) in enumerate([(0.9, 10, 1.0), (0.1, 90, 0.5), (0.2, 20, 1.0)])
]


@pytest.mark.parametrize(
    ("name", "component", "place"),
    [
        ("reward diverges", None, 0),
        ("answers grow", None, 1),
        ("component saturates", "grade_form:mean", 2),
    ],
)
def test_three_trajectories_of_different_tasks_show_the_alarm_best(name, component, place):
    """The highest reward, the longest one, or the one that earned its component and the least beside it."""
    alarm = Alarm(name, 10, "", component=component)
    assert [one.trace_id for one in showing(alarm, ROLLOUTS)] == [
        f"{slug}{place}" for slug in "abc"
    ]
    few = showing(alarm, ROLLOUTS[:2])
    assert {one.trace_id for one in few} == {"a0", "a1"}, "of one task where there is one"


def test_the_documentation_shows_the_record_and_the_record_keeps_what_it_promises():
    record = json.loads(RECORD.read_text())
    page = (ROOT / "docs" / "guard.md").read_text()
    shown = tables(record)
    assert set(shown) == {"runs", "signs", "simulation"}
    assert [name for name, table in shown.items() if table not in page] == []
    runs = [run for part in ("demo", "train") for run in record.get(part, {"runs": []})["runs"]]
    honest = [run for run in runs if run["reward_of"] == "honest"]
    gamed = [run for run in runs if run["reward_of"] == "gamed"]
    assert len(honest) >= 10
    assert [run["seed"] for run in honest if run["paused"]] == []
    assert all(run["held_out"][-1][1] > run["held_out"][0][1] for run in honest)
    paused = [run for run in gamed if run["paused"]]
    assert {caught_within(run) for run in paused} == {2}, "two in a row are the fewest"
    assert 2 * len(paused) >= len(gamed)
    for run in gamed:
        means = [mean for _, mean in run["held_out"]]
        assert run["paused"] or means[-1] >= means[0], "a score that fell below the first is caught"


def test_recorded_signs_are_named_and_noise_is_not():
    runs = json.loads(RECORD.read_text())["signs"]["runs"]
    noisy = [run for run in runs if run["reward_of"] == "noisy"]
    assert len(noisy) >= 3
    assert [run["alarms"] for run in noisy if run["alarms"]] == []
    assert all(run["held_out"][-1][1] > run["held_out"][0][1] + 0.2 for run in noisy)
    for reward in ("length", "phrase", "judge"):
        for run in (run for run in runs if run["reward_of"] == reward):
            (name, step, guarded, sentence), *_ = run["alarms"]
            assert (name, guarded) == ("held-out stagnates", False)
            assert step <= run["held_out"][3][0], "within four evaluations"
            assert "show nothing of it over 3 evaluations" in sentence


@pytest.mark.slow
async def test_a_gamed_reward_is_learned_caught_and_mended(home):
    gamed = await trained(6, "gamed")
    rewards = [row["metrics"]["rollout_reward:mean"] for row in gamed.history]
    assert max(rewards) > 0.9 > 0.2 > rewards[0], "the policy learns what is paid for"
    assert gamed.paused.alarm == "reward diverges"
    means = [score.mean for score in gamed.scores]
    assert caught_within(run_of(gamed)) == 2
    assert gamed.paused.best_step == gamed.scores[means.index(max(means))].step
    assert len(gamed.paused.trajectories) == 3
    assert all(one.reward > 0.9 for one in gamed.paused.trajectories)

    mended = await trained(6, "honest")
    assert (mended.finished, mended.paused) == (True, None)
    assert mended.after.mean > mended.before.mean + 0.3


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_the_demo_s_policy_games_a_reward_is_paused_and_learns_from_the_mended_one(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    for name in ("demo", "env", "world", "observations"):  # Other tests load files of these names.
        monkeypatch.delitem(sys.modules, name, raising=False)
    before = set(sys.modules)
    import guard_on_demo

    demo = await guard_on_demo.warmed_up(tmp_path)
    gamed = await guard_on_demo.trained(demo, "gamed")
    rewards = [row["metrics"]["rollout_reward:mean"] for row in gamed.history]
    assert max(rewards) > rewards[0] + 0.1, "the policy learns what is paid for"
    assert gamed.paused.alarm == "reward diverges"
    assert caught_within(run_of(gamed)) == 2
    assert (len(gamed.paused.trajectories), gamed.finished) == (3, False)
    mended = await guard_on_demo.trained(demo, "honest")
    assert (mended.finished, mended.paused) == (True, None)
    assert mended.after.mean > mended.before.mean + 0.1
    disconnect(tmp_path / "home")
    for name in set(sys.modules) - before:
        if str(ROOT / "examples") in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]
