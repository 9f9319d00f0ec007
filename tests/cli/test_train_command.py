"""`hud train`: settings by one name everywhere, and refusals that say what to do."""

import json
import re
import subprocess
import sys
import textwrap

import pytest
from tests.cli.test_models_command import CREATE, TRAIN, home, hud  # noqa: F401

from hud.cli.main import run
from hud.train.config import TrainConfig


def test_every_setting_is_an_option():
    from hud.cli.training.train import command

    options = {name for one in command.params for name in (one.name,)}
    assert set(TrainConfig.model_fields) <= options


@pytest.mark.slow
def test_settings_come_from_toml_and_the_command_line_wins(hud, tmp_path):  # noqa: F811
    hud(CREATE)
    (tmp_path / "train.toml").write_text(
        'model = "tiny"\ntasks = "tasks.py"\nsteps = 7\ngroup = 4\ntasks_per_step = 2\nmax_tokens = 8\n'
        'loss = "ppo"\n[loss_config]\nepsilon = 0.1\n'
    )
    report = json.loads(hud("train --config train.toml --steps 1 --json"))
    assert (report["finished"], report["next_step"]) == (True, 1)
    runs = (tmp_path / "home" / "training").iterdir()
    lines = [json.loads(line) for line in (next(runs) / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["step"] == 0
    assert "clip_fraction:mean" in lines[0]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("lerning_rate = 1", "no setting 'lerning_rate'"),
        ('model = "tiny"\nmax_lag = -1', "greater than or equal to 0"),
        ('model = "tiny"\nstale = "correct"', "bounds its importance weights"),
        ('model = "tiny"\nmax_lag = 1\njoined = ["tiny"]', "max_lag must be 0"),
        ('model = "tiny"\nloss = "pppo"', "no loss 'pppo'"),
        ('model = "tiny"\n[loss_config]\nbeta = 1', "takes no key 'beta'"),
        ('model = "tiny"\nloss = "cross_entropy"', "--from"),
        ('model = "tiny"\ntop_k = 20', "top_k: training samples from the whole distribution"),
        ("steps = ", "is not TOML"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_one_sentence(hud, tmp_path, content, told):  # noqa: F811
    (tmp_path / "train.toml").write_text(content)
    assert told in hud("train --config train.toml", 2)


@pytest.mark.slow
def test_arguments_that_make_no_sense_are_refused(hud):  # noqa: F811
    hud(CREATE)
    assert "There is no model 'tinny'" in hud(
        "train tinny tasks.py --group 2 --tasks-per-step 2", 2
    )
    assert "--top-p: training samples from the whole" in hud("train tiny tasks.py --top-p 0.9", 2)
    assert "--epochs goes with --from" in hud("train tiny tasks.py --epochs 2", 2)
    assert "KEY=NUMBER" in hud("train tiny tasks.py --loss-config epsilon=x", 2)
    assert "no runtime 'moon'" in hud("train tiny tasks.py --tasks-per-step 2 --runtime moon", 2)
    assert "no meaning with --from" in hud("train tiny tasks.py --from x --group 4", 2)
    assert "There are no tasks" in hud("train tiny", 2)
    assert "hud train MODEL TASKS" in hud("train", 2)
    assert "the model comes first: hud train tiny tasks.py" in hud("train tasks.py tiny", 2)


@pytest.mark.slow
def test_a_small_taskset_is_used_whole_and_that_is_said(hud):  # noqa: F811
    hud(CREATE)
    said = hud("train tiny tasks.py --steps 1 --group 2 --max-tokens 4 --tasks-per-step 9")
    assert "There are 4 tasks, so that a step plays 4 rather than 9" in " ".join(said.split())
    report = json.loads(
        hud("train tiny tasks.py --steps 2 --group 2 --max-tokens 4 --tasks-per-step 9 --json")
    )
    assert report["finished"]


@pytest.mark.slow
def test_a_recorded_job_warms_a_model_up(hud, tmp_path):  # noqa: F811
    hud(CREATE)
    (tmp_path / "teacher.py").write_text("def agent(messages, tools, trace):\n    return 'aeiou'\n")
    done = json.loads(hud("eval tasks.py teacher.py:agent --all --group 2 --runtime local --json"))
    job = done["job_id"]
    learn = (
        f"train tiny tasks.py --from {job} --epochs 10 --batch 4 --held-out tasks.py --max-tokens 4"
    )
    said = hud(learn)
    assert "reading 8 recorded runs" in said
    assert re.search(r"training tiny: run [0-9a-f]{12}, 20 steps, from the head", said)
    assert re.search(r"step +epoch +loss +rate +tok/s +took +left", said)
    assert re.search(r"\n +20 +10\.00 ", said)
    assert "Finished at step 20 of 20: tiny learned from 8 runs in 20 steps" in said
    report = json.loads(hud(f"{learn} --json"))
    assert (report["runs"], report["steps"], report["first_step"]) == (8, 20, 20)
    assert report["last_loss"] < report["first_loss"]
    assert [score["step"] for score in report["scores"]] == [0, 20]
    assert "has finished already, after 20 steps; nothing is trained" in " ".join(
        hud(learn).split()
    )
    assert "None of the 8 runs" in hud(f"train tiny tasks.py --from {job} --min-reward 2", 2)


@pytest.mark.slow
def test_a_recorded_job_is_learned_from_by_preferences(hud, tmp_path):  # noqa: F811
    hud(CREATE)
    (tmp_path / "teacher.py").write_text(
        "from itertools import cycle\n"
        "answers = cycle(['aeiou', 'x'])\n"
        "def agent(messages, tools, trace):\n"
        "    return next(answers)\n"
    )
    played = "eval tasks.py teacher.py:agent --all --group 4 --runtime local --json"
    job = json.loads(hud(f"{played} --max-concurrent 1"))["job_id"]
    learn = f"train tiny tasks.py --from {job} --loss dpo --loss-config beta=0.5 --epochs 5 --batch 2 --lr 0.003"
    said = hud(learn)
    assert "pairs of the best and the worst run of a task: 4" in said
    assert "Finished at step 10 of 10" in said
    assert re.search(r"loss per pair +0\.693 to 0\.[0-6]", said)
    assert "has finished already" in " ".join(hud(learn).split())
    assert "min_reward has no meaning" in hud(f"{learn} --min-reward 1", 2)
    assert "cross_entropy, dpo or bradley_terry" in hud(
        f"train tiny tasks.py --from {job} --loss ppo", 2
    )


HOLD = textwrap.dedent(
    """
    import asyncio
    from hud.client import connect

    async def hold():
        model = await connect().get("/v2/models/tiny")
        await connect().post(f"/v1/models/{model['id']}/train/open")
        print("held", flush=True)
        await asyncio.sleep(60)

    asyncio.run(hold())
    """
)


@pytest.mark.slow
def test_the_second_to_train_a_model_is_told_who_holds_it(hud):  # noqa: F811
    hud(CREATE)
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline().strip() == "held"
        told = hud(TRAIN, 2)
        assert f"process {process.pid} on " in told
        assert "hud models fork tiny" in told
        assert "cannot be moved" in hud("models head tiny --set base", 2)
        assert "cannot be removed" in hud("models rm tiny -y", 2)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert "Finished at step 2" in hud(TRAIN)


@pytest.mark.slow
def test_a_recipe_is_followed_stage_by_stage(hud, tmp_path):  # noqa: F811
    hud(CREATE)
    stage = '[[stages]]\nname = "{}"\nmodel = "tiny"\ntasks = "tasks.py"\nlr = {}\n'
    shared = "steps = 2\ngroup = 4\ntasks_per_step = 2\nmax_tokens = 8\n"
    (tmp_path / "recipe.toml").write_text(
        shared + stage.format("a", 1e-3) + stage.format("b", 1e-4)
    )
    report = json.loads(hud("train --config recipe.toml --steps 1 --json"))
    assert [(one["name"], one["finished"]) for one in report["stages"]] == [
        ("a", True),
        ("b", True),
    ]
    assert [one["report"]["next_step"] for one in report["stages"]] == [1, 1]
    assert "2 of 2 stages are finished" in hud("train --config recipe.toml --steps 1")
    told = hud("train tiny tasks.py --config recipe.toml", 2)
    assert "is a recipe, whose stages name models and tasks; give neither." in told
    assert "--subagents takes NAME=MODEL" in hud("train tiny tasks.py --subagents ask", 2)


@pytest.mark.slow
def test_a_run_that_the_guard_paused_exits_with_1_and_an_override_finishes_it(hud, capsys):  # noqa: F811
    hud(CREATE)
    # Any entropy is outside this band from the tenth step on.
    line = (
        "train tiny tasks.py --steps 11 --group 4 --tasks-per-step 2 --max-tokens 4 --max-turns 1 --lr 0.0001 "
        "--guard stop --guard-entropy-low 10"
    )
    assert run(line.split()) == 1
    said = capsys.readouterr()
    for told in (said.out + said.err, hud(line, 2)):
        shown = " ".join(told.split())
        assert "The guard paused the run after step 10: The entropy went from" in shown
        assert shown.count("hud trace ") == 3
    report = json.loads(hud(f"{line} --override-guard --json"))
    assert (report["first_step"], report["finished"], report["paused"]) == (10, True, None)
