"""What the first step needs is loaded and compiled when a training begins, not while a step waits for it."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, importlib, pkgutil, sys
import hud_kernels.cpu
from hud import Environment, Taskset
from hud.client import connect
from hud.train.client import TrainingClient
from hud.train.config import TrainConfig
from hud.train.loop import train

env = Environment("parity")


@env.template()
async def parity(number: int = 0):
    answer = yield f"Say anything about {number}."
    yield float(sum(map(ord, str(answer))) % 2)


def compiled():
    modules = [
        importlib.import_module(module.name)
        for module in pkgutil.iter_modules(hud_kernels.cpu.__path__, "hud_kernels.cpu.")
    ]
    functions = {id(value): value for module in modules for value in vars(module).values()}
    return sum(len(getattr(function, "signatures", ())) for function in functions.values())


async def main(training):
    texts = [f"Say anything about {number}. It is {number * number}." for number in range(60)]
    sizes = {"vocab_size": 300, "hidden": 64, "layers": 1}
    await connect().post("/v2/models/create", {"name": "base", "texts": texts, "sizes": sizes})
    fork = {"source_model_id": "base", "name": "m", "config": {"training": training}}
    await connect().post("/v2/models/fork", fork)
    trainer = TrainingClient("m", recorded=False)
    head = (await trainer.open(alone=True)).head
    await trainer.close()
    before = compiled()
    config = TrainConfig(model="m", steps=2, group=8, tasks_per_step=4, lr=1e-3, max_tokens=12)
    report = await train(config, tasks=Taskset("t", [parity(number=n) for n in range(8)]))
    print(head, before, compiled() - before, report.next_step)


asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize("training", ["full", pytest.param("lora", marks=pytest.mark.slow)])
def test_opening_compiles_what_the_steps_use(tmp_path, training):
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, training],
        env={**os.environ, "HUD_HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "HUD_API_URL": ""},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    head, before, more, steps = ended.stdout.split()
    assert (head, more, steps) == ("None", "0", "2")
    assert int(before) > 0
