"""Held-out loss of a supervised training, rejection sampling, and the guard that stops one which learns by heart or diverges."""

import json

import pytest
from tests.train.supervised.test_supervised_run import Notes, tasks
from tests.train.test_client_training import home

from hud.agents import ScriptedAgent
from hud.client import connect
from hud.errors import UsageError
from hud.train.monitoring.alarms import guarded_alarms
from hud.train.supervised.config import SupervisedConfig
from hud.train.supervised.supervised_run import learn_from

__all__ = ["home"]


def rows_of(*answers):
    return [
        {
            "messages": [
                {"role": "user", "content": f"say {word}"},
                {"role": "assistant", "content": word},
            ]
        }
        for word in answers
    ]


def written(path, *rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


async def learn(file, reporter=None, **values):
    config = SupervisedConfig(**{"model": "m", "batch": 2, "lr": 1e-2, **values})
    return await learn_from(config, file=file, reporter=reporter)


async def test_a_share_of_the_rows_is_not_trained_on_and_its_loss_is_a_curve(home, tmp_path):
    file = written(tmp_path / "rows.jsonl", *rows_of("red", "blue", "green", "yellow", "say"))
    report = await learn(file, test_share=0.2, epochs=3, eval_every=2)
    assert (report.runs, report.left_out, report.steps) == (4, 0, 6)
    steps = (await connect().get(f"/v2/training-runs/{report.run_id}/steps"))["items"]
    measured = [row["step"] for row in steps if "held_out_loss:mean" in row["metrics"]]
    assert measured == [1, 3, 5]
    assert steps[0]["metrics"]["initial_held_out_loss:mean"] == report.first_held_out_loss
    assert steps[-1]["metrics"]["held_out_loss:mean"] == report.last_held_out_loss
    assert report.last_held_out_loss < report.first_held_out_loss
    again = await learn(file, test_share=0.2, epochs=3, eval_every=2)
    assert (again.run_id, again.last_held_out_loss) == (report.run_id, report.last_held_out_loss)


async def test_the_loss_of_another_file_is_that_of_training_on_it(home, tmp_path):
    """Before training, the loss of the file that is trained on is that of the first step."""
    file = written(tmp_path / "rows.jsonl", *rows_of("red", "blue"))
    notes = Notes()
    report = await learn(file, notes, test=str(file))
    assert report.first_held_out_loss == pytest.approx(report.first_loss, abs=1e-5)
    assert [text for text in notes.texts if text.startswith("2 of the 2 runs whose loss")]


async def test_the_best_run_of_every_so_many_is_trained_on(home):
    answered = iter(["red", "no", "no", "blue", "no", "red", "no", "no"])
    job = await tasks.run(ScriptedAgent(lambda run: next(answered)), group=4)
    config = SupervisedConfig(model="m", jobs=[job.id], best_of=4)
    report = await learn_from(config)
    assert (report.runs, report.left_out) == (2, 6)
    rewards = {run.slug: [] for run in job.runs}
    for run in job.runs:
        rewards[run.slug].append(run.reward)
    solved = sum(max(of_task) for of_task in rewards.values())
    node = (await connect().get("/v2/models/m/checkpoints"))[0]
    assert node["metrics"]["trained_reward:mean"] == solved / 2


async def test_the_best_of_runs_without_rewards_is_refused(home, tmp_path):
    file = written(tmp_path / "rows.jsonl", *rows_of("red", "blue"))
    with pytest.raises(UsageError, match="chooses runs by their rewards, and none has one"):
        await learn(file, best_of=2)


def supervised_steps(losses, held_out=()):
    rows = [
        {"step": step, "metrics": {"epoch": 1.0, "loss:sum": loss * 10, "action_tokens:sum": 10.0}}
        for step, loss in enumerate(losses)
    ]
    for step, loss in held_out:
        rows[step - 1]["metrics"]["held_out_loss:mean"] = loss
    return rows


def test_a_loss_that_leaves_its_best_is_an_alarm_and_noise_is_none():
    falling = [3 - 0.1 * step + 0.05 * (step % 2) for step in range(20)]
    assert not [*guarded_alarms(supervised_steps(falling), [])]
    (alarm,) = guarded_alarms(supervised_steps([*falling, 2.5, 4.1, 5.0, 5.2, 5.5, 5.3]), [])
    assert (alarm.name, alarm.guarded, alarm.step) == ("loss diverges", True, 26)
    by_heart = [0.02 + 0.01 * (step % 3) for step in range(30)]
    assert not [*guarded_alarms(supervised_steps(by_heart), [])]


def test_a_held_out_loss_that_rises_while_that_of_training_falls_is_an_alarm():
    losses = [3 - 0.1 * step for step in range(20)]
    (alarm,) = guarded_alarms(supervised_steps(losses, [(5, 2.6), (10, 3.0), (15, 3.3)]), [])
    assert (alarm.name, alarm.best) == ("held-out loss rises", 5)
    assert not [*guarded_alarms(supervised_steps(losses, [(5, 2.6), (10, 3.0), (15, 2.5)]), [])]


@pytest.mark.slow
async def test_the_guard_pauses_a_training_that_learns_by_heart(home, tmp_path):
    file = written(tmp_path / "rows.jsonl", *rows_of("red", "blue", "green"))
    test = written(tmp_path / "test.jsonl", *rows_of("yellow", "a e i o u"))
    settings = {"test": str(test), "epochs": 60, "lr": 3e-2, "eval_every": 4, "guard": "stop"}
    report = await learn(file, **settings)
    assert (report.finished, report.paused.alarm) == (False, "held-out loss rises")
    assert "learns its examples by heart" in report.paused.advice("m")
    with pytest.raises(UsageError, match="--override-guard"):
        await learn(file, **settings)
    config = SupervisedConfig(model="m", batch=2, **settings)
    resumed = await learn_from(config, file=file, override_guard=True)
    assert resumed.first_step == report.next_step
