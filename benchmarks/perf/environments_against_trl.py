"""TRL's `GRPOTrainer` with our environments against the same trainer alone: one toy task, 3.3M parameters, one thread.

    alone           TRL samples and scores with a function
    prompt_dataset  TRL samples; `HudSpec.prompt_dataset` and `hud_reward`
    rollout_func    our tool loop and sampler play the tasks in their environment; every run is recorded

Every side trains in a process of its own, one after another, some times. A step is what lies between the callbacks
`on_step_begin` and `on_step_end`; the first of each training is a warm-up. Its processor time counts the sampler's processes, and
is what a busy machine leaves comparable.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import records
import shapes
from measure import processor_seconds
from sizes import size

SIDES = ("alone", "prompt_dataset", "rollout_func")
NEW, BAR = size(32, 4), 1.1


def train(side: str, folder: Path, steps: int) -> list[tuple[float, float]]:
    """Return the seconds and the processor seconds of each step of a training but the first."""
    import torch
    import trl_peer
    from transformers import TrainerCallback
    from trl import GRPOTrainer

    from hud import Environment, Taskset
    from hud.agents.types import AgentConfig
    from hud_integrations.trl import HudSpec

    questions = shapes.incidents()[: trl_peer.PROMPTS]
    environment = Environment("incidents")

    @environment.template()
    async def question(number: int = 0):
        """Ask about one incident."""
        answer = yield questions[number]
        yield trl_peer.reward_of(answer or "")

    tasks = Taskset("incidents", [question(number=number) for number in range(len(questions))])
    spec = HudSpec(tasks, config=AgentConfig(max_steps=1), group=trl_peer.GROUP)
    arguments = trl_peer.trl_arguments(
        folder, questions, max_completion_length=NEW, max_steps=steps, temperature=1.0
    )
    if side != "alone":
        arguments["reward_funcs"] = spec.reward_funcs
    if side == "prompt_dataset":
        arguments["train_dataset"] = spec.prompt_dataset
    if side == "rollout_func":
        arguments |= {"train_dataset": spec.train_dataset, "rollout_func": spec.rollout_func}

    class Times(TrainerCallback):
        def __init__(self) -> None:
            self.seconds: list[tuple[float, float]] = []
            self.started = (0.0, 0.0)

        def on_step_begin(self, args, state, control, **_) -> None:
            self.started = (perf_counter(), processor_seconds())

        def on_step_end(self, args, state, control, **_) -> None:
            wall, processor = self.started
            self.seconds.append((perf_counter() - wall, processor_seconds() - processor))

    torch.set_num_threads(1)
    times = Times()
    trl_peer.quiet()
    trl_peer.train(GRPOTrainer(**arguments, callbacks=[times]))
    return times.seconds[1:]


def main(rounds: int, steps: int) -> int:
    """Print each side's median step and its ratio to TRL alone; fail above the bar."""
    found: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "policy"
        shapes.create_policy(folder, shapes.MIDDLE)
        for number in range(rounds):
            for side in SIDES:
                environment = {**os.environ, "HUD_HOME": f"{name}/{side}-{number}"}
                command = [sys.executable, __file__, "--side", side, "--folder", str(folder)]
                done = subprocess.run(
                    [*command, "--steps", str(steps)],
                    env=environment,
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                found[side] += json.loads(done.stdout.splitlines()[-1])
    held = []
    for place, (what, unit) in enumerate((("step", "s"), ("step's processor time", "CPU s"))):
        medians = {side: statistics.median(one[place] for one in found[side]) for side in SIDES}
        held += [
            records.report(
                f"TRL's {what} with {side}",
                medians[side],
                unit,
                bar=BAR * medians["alone"],
                at_most=True,
                peer="TRL alone",
                peer_value=medians["alone"],
            )
            for side in SIDES[1:]
        ]
    return 0 if all(held) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=size(4, 1))
    parser.add_argument("--steps", type=int, default=size(8, 2))
    parser.add_argument("--side", choices=SIDES)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    if given.side is not None:
        print(json.dumps(train(given.side, given.folder, given.steps)))
        sys.exit(0)
    sys.exit(main(given.rounds, given.steps))
