"""GRPO of the demo by Tinker's client against `hud train`: the same weights, tasks, groups, loss, rates and steps, all weights
trained.

    embedded   `hud train`, as the demo does it: policy and environments in one process
    alike      the same without replacing groups that have no signal, which the loop does not do either
    client     a loop over Tinker's client with `hud_integrations.tinker`, sampling and training on a `hud up` on loopback

Each side trains in a home of its own, in turn, some times, and plays the held-out incidents at the end. A step's seconds are without
the start of either side and without that; processor time is that of all processes, of both sides of the wire, with both. Needs the
package `tinker`: .venv-integrations/tinker/bin/python, of scripts/setup-integration.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from itertools import islice
from operator import attrgetter
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import records
from measure import processor_seconds
from remote_rollouts import serve
from sizes import size

from hud.eval.results.intervals import clustered_interval

if TYPE_CHECKING:
    from hud.agents.agent import Agent
    from hud.trace import ChatModel
    from hud.train.config import TrainConfig

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples" / "triage"))
SIDES = ("embedded", "alike", "client")
BAR = 1.15


def prepare(home: Path) -> None:
    """Make the demo's policy, before its first GRPO step."""
    os.environ["HUD_HOME"] = str(home)
    import demo

    from demo_driver import Progress

    async def phases() -> None:
        made = demo.Demo(Progress(home.parent, seed=0, steps=0, shuffle_advantages=False))
        await made.record_apprentice()
        await made.create()
        await made.teach()

    asyncio.run(phases())


def config_of(steps: int, **changed: int) -> TrainConfig:
    """Return the demo's configuration of GRPO, with changes."""
    import demo

    from hud.train.config import TrainConfig

    settings = {name: value for name, value in demo.GRPO.items() if name != "eval_every"}
    return TrainConfig(model=demo.POLICY, steps=steps, seed=0, **settings, **changed)


def agent_of(model: ChatModel, config: TrainConfig) -> Agent:
    """Return the agent that plays a rollout of the demo with a model."""
    from hud.agents.tool_loop import ToolLoopAgent
    from hud.agents.types import AgentConfig
    from hud.trace import SamplingParams

    return ToolLoopAgent(
        model,
        config=AgentConfig(max_steps=config.max_turns),
        params=SamplingParams(max_tokens=config.max_tokens),
    )


async def held_out(agent: Agent) -> list[float]:
    """Return the rewards of the held-out incidents."""
    import demo

    from hud import Taskset
    from hud.eval import Job

    job = await Job.start("held out", group=1)
    await Taskset.from_file(demo.HERE / "held_out.py").run(agent, job=job)
    await job.finish()
    return [run.reward or 0.0 for run in job.runs]


async def embedded(config: TrainConfig) -> tuple[float, list[float]]:
    """Train by `hud train`; return the seconds of its steps, and the held-out rewards."""
    import demo

    from hud import Taskset
    from hud.inference.models import chat_model
    from hud.train.loop import train

    done = await train(config, tasks=Taskset.from_file(demo.HERE / "tasks.py"))
    seconds = sum(one["metrics"]["seconds:sum"] for one in done.history)
    return seconds, await held_out(agent_of(await chat_model(demo.POLICY), config))


async def client(steps: int) -> tuple[float, list[float]]:
    """Train by Tinker's client; return the seconds of its steps, and the held-out rewards."""
    import demo
    import tinker

    from hud import Taskset
    from hud.eval import Job
    from hud.train.rollouts.seeds import draw_tasks
    from hud_integrations.tinker import SamplingProcess, TinkerModel, datums_of

    config, count = config_of(steps), demo.GRPO["tasks_per_step"]
    tasks = list(Taskset.from_file(demo.HERE / "tasks.py"))
    service = await asyncio.to_thread(tinker.ServiceClient)
    path = f"tinker://{demo.POLICY}/weights/head"
    training = await service.create_training_client_from_state(path)
    folder = training.get_info().model_data.tokenizer_id
    with await asyncio.to_thread(SamplingProcess) as process:
        sampler = await training.save_weights_and_get_sampling_client()
        began = perf_counter()
        for number in range(steps):
            model = TinkerModel(process.client(sampler), folder, group=config.group)
            job = await Job.start("by Tinker's client", group=config.group)
            step = Taskset("step", islice(draw_tasks(tasks, config.seed, number, count), count))
            await step.run(agent_of(model, config), job=job, max_concurrent=config.max_concurrent)
            await job.finish()
            print(f"  reward {job.reward:.3f}", file=sys.stderr)
            if data := datums_of(job.runs, token_mean=True):
                adam = tinker.AdamParams(
                    learning_rate=config.learning_rate_of(number),
                    grad_clip_norm=config.max_grad_norm,
                )
                # The service computes them in this order; none waits here for the one before.
                passed = training.forward_backward(data, config.loss)
                stepped = training.optim_step(adam)
                saved = training.save_weights_and_get_sampling_client()
                await passed
                await stepped
                sampler = await saved
        seconds = perf_counter() - began
        last = TinkerModel(process.client(sampler), folder)
        rewards = await held_out(agent_of(last, config))
    await service.close("success")
    return seconds, rewards


class Training(NamedTuple):
    """Measurements of one side's training."""

    seconds: float
    """Of a step."""
    processor: float
    """Processor seconds of a step, of all processes."""
    rewards: list[float]
    """Of the held-out incidents."""


def play(side: str, home: Path, steps: int) -> Training:
    """Train in a process of its own."""
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
    seconds, rewards, processor = json.loads(done.stdout.splitlines()[-1])
    if server is not None:
        processor += processor_seconds(server.pid) - before
        server.terminate()
        server.wait()
    return Training(seconds / steps, processor / steps, rewards)


def main(rounds: int, steps: int) -> int:
    """Print the medians of both sides and their ratio; fail above the bar, or with a score below the interval of `hud train`."""
    found: dict[str, list[Training]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as name:
        prepared = Path(name) / "prepared"
        subprocess.run([sys.executable, __file__, "--prepare", str(prepared)], check=True)
        for number in range(rounds):
            for side in SIDES:
                home = Path(name) / f"{side}-{number}"
                shutil.copytree(prepared, home)
                found[side].append(play(side, home, steps))
    held = []
    for what, unit, of in (
        ("step", "s", attrgetter("seconds")),
        ("step's processor time", "CPU s", attrgetter("processor")),
    ):
        peer, alike, ours = (statistics.median(map(of, found[side])) for side in SIDES)
        name = f"GRPO {what} by Tinker's client"
        held.append(
            records.report(
                name, ours, unit, bar=BAR * peer, at_most=True, peer="hud train", peer_value=peer
            )
        )
        records.report(f"{name}, equal groups", ours, unit, peer="hud train", peer_value=alike)
    known, theirs = (
        [reward for one in found[side] for reward in one.rewards] for side in ("embedded", "client")
    )
    interval = clustered_interval(
        list(zip(*(one.rewards for one in found["embedded"]), strict=True))
    )
    assert interval is not None
    held.append(
        records.report(
            "held-out score of GRPO by Tinker's client",
            statistics.mean(theirs),
            "of 1",
            bar=interval.low,
            peer="hud train",
            peer_value=statistics.mean(known),
        )
    )
    return 0 if all(held) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=size(3, 1))
    parser.add_argument("--steps", type=int, default=size(40, 2))
    parser.add_argument("--side", choices=SIDES)
    parser.add_argument("--prepare", type=Path)
    given = parser.parse_args()
    if given.prepare is not None:
        prepare(given.prepare)
    elif given.side is not None:
        work = {
            "embedded": lambda: embedded(config_of(given.steps)),
            "alike": lambda: embedded(config_of(given.steps, dynamic_sampling=0)),
            "client": lambda: client(given.steps),
        }
        taken = asyncio.run(work[given.side]())
        print(json.dumps([*taken, processor_seconds()]))
    else:
        sys.exit(main(given.rounds, given.steps))
