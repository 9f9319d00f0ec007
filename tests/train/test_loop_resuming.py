"""Killed at any instant and started again, training goes on as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from safetensors.torch import load_file

SCRIPT = textwrap.dedent(
    """
    import asyncio, json, os, signal, sys

    where = sys.argv[1]          # the place at which to die, with the step: "rollouts:1"; "" lives on
    place, _, at = where.partition(":")
    seen = {"step": -1, "runs": 0}

    def die(here):
        if here == place and seen["step"] == int(at):
            os.kill(os.getpid(), signal.SIGKILL)

    from hud import Environment
    from hud.client import connect
    from hud.eval import Taskset
    from hud_platform.training.trained_model import TrainedModel
    from hud_platform.models.checkpoint_tree import Tree
    from hud.train.config import TrainConfig
    from hud.train.run_journal import TrainingRun
    from hud.train.loop import train
    from hud.train.monitoring.progress import Reporter

    env = Environment("letters")

    @env.template()
    async def say(word: str):
        answer = yield f"Say {word}"
        yield min(1.0, len(set(answer) & set("aeiou")) / 5)

    write, append, report = TrainedModel._write, Tree.append, TrainingRun.report

    def dying_write(self, *given):
        write(self, *given)
        die("written")

    def dying_append(self, node, **options):
        die("renamed")
        append(self, node, **options)
        die("recorded")

    async def dying_report(self, *given):
        die("trained")
        await report(self, *given)
        die("reported")

    TrainedModel._write, Tree.append, TrainingRun.report = dying_write, dying_append, dying_report

    class Watch(Reporter):
        def phase(self, phase, step, total):
            if phase == "rollouts":
                seen.update(step=step, runs=0)

        def run_ended(self, reward):
            seen["runs"] += 1
            if seen["runs"] == 5:
                die("rollouts")

    words = "red green blue yellow black white".split()
    tasks = Taskset("words", [say(word=word) for word in words])

    async def main():
        client = connect()
        found = await client.get("/v2/models")
        if not found["items"]:
            sizes = dict(vocab_size=300, hidden=32, layers=1, heads=2, kv_heads=1, max_context=64)
            texts = [f"Say {word} aeiou" for word in words] * 3
            await client.post("/v2/models/create", {"name": "m", "texts": texts, "sizes": sizes})
        config = TrainConfig(
            model="m", steps=5, group=4, tasks_per_step=2, lr=1e-2, max_tokens=12, max_concurrent=1,
            max_turns=1, eval_every=2, keep=2, dynamic_sampling=1, curriculum="signal",
        )
        report = await train(config, tasks=tasks, held_out=tasks, reporter=Watch())
        head = await client.get(f"/v2/models/m/checkpoints/{report.head}")
        row = dict(run=report.run_id, first=report.first_step, finished=report.finished, head=report.head,
                   step=head["step"], folder=str(client.embedded.parts.registry.tree.get(report.head).folder),
                   steps=[one["step"] for one in report.history],
                   scores=[(one.step, one.mean) for one in report.scores])
        print(json.dumps(row))

    asyncio.run(main())
    """
)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "training.py"
    path.write_text(SCRIPT)
    return path


def start(script, home, where=""):
    environment = {**os.environ, "HUD_HOME": str(home), "OMP_NUM_THREADS": "1"}
    environment.pop("HUD_API_URL", None)
    return subprocess.run(
        [sys.executable, str(script), where],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_killed_everywhere_ends_with_the_weights_of_one_that_was_not(script, tmp_path):
    straight = start(script, tmp_path / "straight")
    assert straight.returncode == 0, straight.stderr
    expected = json.loads(straight.stdout)
    assert expected["finished"]

    home = tmp_path / "killed"
    # One process after another, each killed a little further on: in its rollouts, with the checkpoint written but
    # not renamed, renamed but not recorded, recorded but not known to the loop, and reported.
    for where in ("rollouts:0", "written:0", "renamed:1", "recorded:1", "trained:2", "reported:3"):
        killed = start(script, home, where)
        assert killed.returncode == -signal.SIGKILL, (where, killed.stdout, killed.stderr)
    last = start(script, home)
    assert last.returncode == 0, last.stderr
    found = json.loads(last.stdout)
    assert found["first"] == 4
    assert found["finished"]
    assert found["steps"] == expected["steps"] == [0, 1, 2, 3, 4]
    assert found["step"] == expected["step"] == 5
    assert found["scores"] == expected["scores"]

    for file in ("sampler/model.safetensors", "state.safetensors"):
        one = load_file(f"{expected['folder']}/{file}")
        other = load_file(f"{found['folder']}/{file}")
        assert one.keys() == other.keys()
        assert all(bool((one[name] == other[name]).all()) for name in one), file
    leftovers = [path.name for path in home.rglob(".writing-*")]
    assert leftovers == []
