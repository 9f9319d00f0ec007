"""`hud train --sweep`: a sweep that is killed goes on, and one that grows plays only what is new."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tests.cli.test_models_command import CREATE, home, hud  # noqa: F401

SWEEP = (
    "train tiny tasks.py --steps 2 --group 4 --tasks-per-step 2 --max-tokens 8 --max-turns 1 "
    "--held-out held.py --sweep lr=1e-5,1e-2"
)
HELD_OUT = """
from hud import Environment

env = Environment("vowels")

@env.template()
async def say(word: str):
    answer = yield f"say {word}"
    yield min(1.0, len(answer) / 20)

tasks = [say(word=f"w{number}") for number in range(8)]
"""


def test_what_cannot_be_swept_exits_with_two(hud):  # noqa: F811
    assert "17 combinations, each a training of its own" in hud(
        f"train tiny tasks.py --sweep seed={','.join(map(str, range(17)))}", 2
    )
    assert "--sweep takes SETTING=A,B, not 'lr'" in hud("train tiny tasks.py --sweep lr", 2)
    assert "held-out scores: give held-out tasks" in hud(
        "train tiny tasks.py --sweep seed=1,2 --yes", 2
    )
    assert "goes with" in hud("train tiny tasks.py --yes", 2)


@pytest.mark.slow
def test_a_killed_sweep_goes_on_and_a_longer_one_plays_what_is_new(hud, tmp_path):  # noqa: F811
    (tmp_path / "held.py").write_text(HELD_OUT)
    hud(CREATE)
    command = [sys.executable, "-m", "hud.cli.main", *SWEEP.split()]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ.copy())
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Sweep 2/2"):
            break
    time.sleep(1.0)
    process.send_signal(signal.SIGKILL)
    process.wait()

    report = json.loads(hud(f"{SWEEP} --json"))
    assert [row["label"] for row in report["rows"]] == ["lr=1e-05", "lr=0.01"]
    assert [row["model"] for row in report["rows"]] == ["tiny-sweep-1", "tiny-sweep-2"]
    assert [row["finished"] for row in report["rows"]] == [True, True], report
    assert all(row["rollouts"] >= 16 for row in report["rows"]), report
    assert report["verdict"]
    played = len(json.loads(hud("jobs --json")))
    assert json.loads(hud(f"{SWEEP} --json")) == report
    assert len(json.loads(hud("jobs --json"))) == played, "nothing is played again"

    longer = json.loads(hud(f"{SWEEP},1e-3 --json"))
    assert longer["rows"][:2] == report["rows"]
    assert longer["rows"][2]["model"] == "tiny-sweep-3"
    table = hud(f"{SWEEP},1e-3")
    assert "combination" in table
    assert "has finished already" in table
    (model, *forks) = json.loads(hud("models list --json"))
    assert (model["head_checkpoint_id"], len(forks)) == (None, 3), "forks alone learn"

    best = longer["rows"][1]
    playing = "--tasks held.py --group 1 --max-turns 1 --max-tokens 8"
    hud(f"models promote tiny {best['checkpoint']} --from {best['model']} --force {playing}")
    longest = json.loads(hud(f"{SWEEP},1e-3,1e-4 --json"))
    assert longest["rows"][:3] == longer["rows"], "its own promotion does not end a sweep"
    assert longest["rows"][3]["before"]["mean"] == best["before"]["mean"], "from the same weights"
