"""`torchrun ... -m hud.cli.distributed train`: the same command, with the trainer on two ranks."""

import json
import os
import subprocess
import sys

import pytest
from tests.cli.test_models_command import CREATE, home, hud  # noqa: F401

OPTIONS = "--steps 2 --group 4 --tasks-per-step 2 --max-tokens 8 --lr 0.001 --max-concurrent 1"


def ranks(folder, *arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--log-dir", str(folder / "ranks")]  # Else it leaves a folder of its own.
    command += ["--nproc-per-node", "2", "-m", "hud.cli.distributed", *arguments]
    return subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )


def metrics_of(home, run_id):  # noqa: F811
    lines = (home / "training" / run_id / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.slow
def test_two_ranks_train_what_one_would_and_one_goes_on(hud, home):  # noqa: F811
    hud(CREATE)
    hud("models fork tiny --name other --lora-rank 4")
    hud("models fork tiny --name third --lora-rank 4")
    done = ranks(home.parent, "train", "other", "tasks.py", *OPTIONS.split(), "--json")
    assert done.returncode == 0, done.stderr
    together = json.loads(done.stdout)
    alone = json.loads(hud(f"train third tasks.py {OPTIONS} --json"))
    assert together["finished"]
    assert alone["finished"]
    for mine, theirs in zip(
        metrics_of(home, together["run_id"]), metrics_of(home, alone["run_id"]), strict=True
    ):
        for name in ("reward:mean", "loss:sum", "grad_norm:mean", "entropy:mean"):
            assert abs(mine[name] - theirs[name]) < 1e-3, name
    # What two ranks left, one takes up.
    onward = json.loads(hud(f"train other tasks.py {OPTIONS} --fresh --json"))
    assert onward["finished"]
    assert len(json.loads(hud("models checkpoints other --json"))) == 4


@pytest.mark.slow
def test_several_ranks_train_and_do_nothing_else(hud, home):  # noqa: F811
    done = ranks(home.parent, "eval", "tasks.py")
    assert done.returncode != 0
    assert "Several ranks train: torchrun" in done.stderr


@pytest.mark.slow
def test_without_torchrun_it_says_how_to_start():
    done = subprocess.run(
        [sys.executable, "-m", "hud.cli.distributed", "train", "tiny", "tasks.py"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert "only where torchrun started them" in done.stderr
