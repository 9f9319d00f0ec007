"""A training loop of one's own, killed anywhere and started again, ends with the weights of one that was not."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.fleet.live_server import LiveServer

from hud_platform.models.checkpoint_files import SAMPLER, STATE

pytestmark = pytest.mark.timeout(400)

STEPS = 5
SCRIPT = textwrap.dedent(
    """
    import asyncio, os, signal, sys, threading

    # Where to die: a call, the step, and how: before it, milliseconds into it, at a place inside it, or after it.
    model, where = sys.argv[1], sys.argv[2]
    call, at, how = (where.split(":") + ["", "", ""])[:3]
    seen = {"step": -1}

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def due(name):
        return name == call and seen["step"] == int(at)

    from hud.client import connect
    from hud.train import TrainingClient, TrajectoryPayload, TrajectorySample

    def batch(step):
        return [
            TrajectoryPayload(
                samples=[
                    TrajectorySample(
                        prompt_token_ids=[5, 6, 7],
                        output_token_ids=[8 + step, 9, 10 + place],
                        output_logprobs=[-5.0, -5.0, -5.0],
                    )
                ],
                reward=float(place % 2),
            )
            for place in range(4)
        ]

    class Dying(TrainingClient):
        async def _call(self, made, *given, **options):
            if due(made.name) and how == "before":
                die()
            if due(made.name) and how.isdigit():
                threading.Timer(int(how) / 1000, die).start()
            answer = await super()._call(made, *given, **options)
            if due(made.name) and how == "after":
                die()
            return answer

    def die_inside():
        from hud.engine.learn.local_trainer import LocalTrainer
        from hud_platform.training.trained_model import TrainedModel
        from hud_platform.models.checkpoint_tree import Tree

        def dying(kind, name, place):
            work = getattr(kind, name)

            def method(self, *given, **options):
                if how == "before-" + place and due(call):
                    die()
                made = work(self, *given, **options)
                if how == "after-" + place and due(call):
                    die()
                return made

            setattr(kind, name, method)

        dying(LocalTrainer, "forward_backward", "gradient")
        dying(TrainedModel, "_optimize", "update")
        dying(TrainedModel, "_write", "files")
        dying(Tree, "append", "record")

    async def main():
        if connect().embedded is not None:
            die_inside()
        found = await connect().get("/v2/models")
        if model not in [one["model_name"] for one in found["items"]]:
            sizes = dict(vocab_size=300, hidden=32, layers=1, heads=2, kv_heads=1, max_context=64)
            texts = ["red green blue yellow", "what colour is it?"] * 3
            await connect().post("/v2/models/create", {"name": model, "texts": texts, "sizes": sizes})
        trainer = Dying(model)
        while (step := len(await trainer.checkpoints())) < STEPS:
            seen["step"] = step
            half = batch(step)
            await trainer.forward_backward(half[:2])
            await trainer.forward_backward(half[2:])
            made = await trainer.optim_step(learning_rate=1e-2)
        print((await trainer.head()).id)

    asyncio.run(main())
    """
).replace("STEPS", str(STEPS))


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "training.py"
    path.write_text(SCRIPT)
    return path


def play(script, environment, model, where=""):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HUD_")}
    return subprocess.run(
        [sys.executable, str(script), model, where],
        env={**kept, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )


def finished(script, environment, model):
    done = play(script, environment, model)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def assert_same_weights(home, one, other):
    def folder(head):
        (found,) = Path(home).glob(f"models/*/checkpoints/step-{STEPS}-{head[:6]}")
        return found

    for file in (f"{SAMPLER}/model.safetensors", STATE):
        first, second = load_file(folder(one) / file), load_file(folder(other) / file)
        assert first.keys() == second.keys()
        assert all(bool((first[name] == second[name]).all()) for name in first), file


@pytest.mark.slow
def test_in_one_process_with_the_platform(script, tmp_path):
    environment = {"HUD_HOME": str(tmp_path / "home")}
    expected = finished(script, environment, "straight")
    for where in (
        "forward-backward:0:after-gradient",
        "optim-step:0:before",
        "optim-step:1:after-files",
        "optim-step:2:after-record",
        "optim-step:3:before",
    ):
        killed = play(script, environment, "killed", where)
        assert killed.returncode == -signal.SIGKILL, (where, killed.stderr)
    assert_same_weights(tmp_path / "home", expected, finished(script, environment, "killed"))


@pytest.mark.slow
def test_against_a_server_that_lives_on_and_one_that_dies_too(script, tmp_path):
    server = LiveServer(tmp_path / "server", "--workers", "0")
    server.start()
    environment = {
        "HUD_HOME": str(tmp_path / "client"),
        "HUD_API_URL": server.url,
        "HUD_API_KEY": server.key,
    }
    try:
        expected = finished(script, environment, "straight")
        for where in (
            "forward-backward:0:5",
            "optim-step:0:before",
            "optim-step:0:1",
            "optim-step:1:4",
            "optim-step:2:8",
            "optim-step:3:after",
        ):
            # A timer may come too late for its step: the script then went on, and a later one finds it further.
            killed = play(script, environment, "killed", where)
            assert killed.returncode in (0, -signal.SIGKILL), (where, killed.stderr)
        again = play(script, environment, "twice", "optim-step:2:before")
        assert again.returncode == -signal.SIGKILL
        server.kill()
        server.start()
        assert_same_weights(tmp_path / "server", expected, finished(script, environment, "killed"))
        assert_same_weights(tmp_path / "server", expected, finished(script, environment, "twice"))
    finally:
        server.stop()
