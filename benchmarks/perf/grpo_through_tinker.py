"""GRPO on the demo's policy by Tinker's client against `hud train`: the same weights, tasks, groups and loss, all weights trained.

    embedded   `hud train`: policy and environments in one process
    client     a loop over Tinker's client with `hud.integrations.tinker`, sampling and training on a `hud up` on loopback

Each side plays in a home of its own, in turn, some times. A step's seconds are without the start of either side; processor time is
that of all processes, of both sides of the wire, with their start. Needs the package `tinker`: .venv-integrations/tinker/bin/python,
of scripts/setup-integration.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import records
from measure import processor_seconds
from remote_rollouts import serve

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples" / "triage"))
SIDES = ("embedded", "client")
BAR = 1.15


def prepare(home: Path) -> None:
    """Make the demo's policy, before its first GRPO step."""
    os.environ["HUD_HOME"] = str(home)
    import demo

    async def phases() -> None:
        made = demo.Demo(demo.Progress(home.parent, seed=0, steps=0, zero_advantages=False))
        await made.record_apprentice()
        await made.create()
        await made.teach()

    asyncio.run(phases())


async def embedded(steps: int) -> float:
    """Train by `hud train`; return the seconds of its steps."""
    import demo

    from hud import Taskset
    from hud.train.config import TrainConfig
    from hud.train.loop import train

    settings = {name: value for name, value in demo.GRPO.items() if name != "eval_every"}
    config = TrainConfig(model=demo.POLICY, steps=steps, seed=0, **settings)
    done = await train(config, tasks=Taskset.from_file(demo.HERE / "tasks.py"))
    return sum(one["metrics"]["seconds:sum"] for one in done.history)


async def client(steps: int) -> float:
    """Train by Tinker's client; return the seconds of its steps."""
    import demo
    import tinker

    from hud import Taskset
    from hud.agents.tool_loop import ToolLoopAgent
    from hud.agents.types import AgentConfig
    from hud.eval import Job
    from hud.integrations.tinker import TinkerModel, datums_of
    from hud.trace import SamplingParams
    from hud.train.config import TrainConfig

    grpo, order = demo.GRPO, random.Random(0)
    tasks = list(Taskset.from_file(demo.HERE / "tasks.py"))
    service = await asyncio.to_thread(tinker.ServiceClient)
    path = f"tinker://{demo.POLICY}/weights/head"
    training = await service.create_training_client_from_state(path)
    folder = training.get_info().model_data.tokenizer_id
    config = AgentConfig(max_steps=grpo["max_turns"])
    params = SamplingParams(max_tokens=grpo["max_tokens"])
    adam = tinker.AdamParams(learning_rate=grpo["lr"], grad_clip_norm=grpo["max_grad_norm"])
    at_once = TrainConfig(model=demo.POLICY).max_concurrent
    began = perf_counter()
    for _ in range(steps):
        sampler = await training.save_weights_and_get_sampling_client()
        agent = ToolLoopAgent(TinkerModel(sampler, folder), config=config, params=params)
        job = await Job.start("by Tinker's client", group=grpo["group"])
        step = Taskset("step", order.sample(tasks, grpo["tasks_per_step"]))
        await step.run(agent, job=job, max_concurrent=at_once)
        await job.finish()
        print(f"  reward {job.reward:.3f}", file=sys.stderr)
        if data := datums_of(job.runs, token_mean=True):
            passed = training.forward_backward(data, grpo["loss"])
            await training.optim_step(adam)
            await passed
    seconds = perf_counter() - began
    await service.close("success")
    return seconds


def play(side: str, home: Path, steps: int) -> tuple[float, float]:
    """Train in a process of its own; return the seconds and the processor seconds of a step."""
    environment = {**os.environ, "HUD_HOME": str(home)}
    environment.pop("OMP_NUM_THREADS", None)
    server = None
    if side == "client":
        served = home.with_name(f"{home.name}-served")
        shutil.copytree(home, served)
        server, url, key = serve(served)
        environment |= {"TINKER_BASE_URL": url, "TINKER_API_KEY": f"tml-{key}"}
    before = processor_seconds(server.pid) if server is not None else 0.0
    command = [sys.executable, __file__, "--side", side, "--steps", str(steps)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    seconds, processor = json.loads(done.stdout.splitlines()[-1])
    if server is not None:
        processor += processor_seconds(server.pid) - before
        server.terminate()
        server.wait()
    return seconds / steps, processor / steps


def main(rounds: int, steps: int) -> int:
    """Print the medians of both sides and their ratio; fail above the bar."""
    found: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as name:
        prepared = Path(name) / "prepared"
        subprocess.run([sys.executable, __file__, "--prepare", str(prepared)], check=True)
        for number in range(rounds):
            for side in SIDES:
                home = Path(name) / f"{side}-{number}"
                shutil.copytree(prepared, home)
                found[side].append(play(side, home, steps))
    held = []
    for place, (what, unit) in enumerate((("step", "s"), ("step's processor time", "CPU s"))):
        ours, peer = (statistics.median(one[place] for one in found[side]) for side in SIDES[::-1])
        held.append(
            records.report(
                f"GRPO {what} by Tinker's client",
                ours,
                unit,
                bar=BAR * peer,
                at_most=True,
                peer="hud train",
                peer_value=peer,
            )
        )
    return 0 if all(held) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--side", choices=SIDES)
    parser.add_argument("--prepare", type=Path)
    given = parser.parse_args()
    if given.prepare is not None:
        prepare(given.prepare)
    elif given.side is not None:
        taken = asyncio.run((embedded if given.side == "embedded" else client)(given.steps))
        print(json.dumps([taken, processor_seconds()]))
    else:
        sys.exit(main(given.rounds, given.steps))
