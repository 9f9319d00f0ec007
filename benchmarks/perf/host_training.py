"""Processor time of the host for a decode step of `hud train`, the device's work aside: five-turn tool rollouts, 128 at once.

`train` plays a tool task with a stand-in that sleeps in place of the device's work and samples tool calls of 32 to 96 tokens.
The engine runs in a process of its own, as on a GPU, and then with `engine_process="off"` in that of the rollouts. What counts
is the processor time of all threads from the first rollout of a step to its last, over the decode steps meanwhile:

- of the engine's process, which has the bar: requests, admission, prompts, decode steps, delivery, garbage collection. The
  host's time between two launches is a part of it;
- of the rollouts' process: environments, tools, chat format, recording, and its side of the engine's socket.

The stand-in's own time is left out, and so are gradients and the first step, which loads the model. How many sequences a step
has depends on how fast the rollouts' process asks, so that a busy machine shows fewer of them.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import shapes
from records import report
from sizes import size
from sleeping_device import Account, play

from hud.environment import Environment
from hud.train.monitoring.progress import Reporter

Mode = Literal["auto", "off"]
"""Value of `TrainConfig.engine_process`."""

TASKS, GROUP, AT_ONCE, STEPS = size((32, 8, 128, 3), (2, 2, 4, 2))
TURNS = 5
SHORTEST, LONGEST = 32, 96
SLOTS = 256
"""Most active sequences: a GPU's default."""
SIZES = {"vocab_size": 600, "hidden": 64, "layers": 2}
CONTEXT = 2048
MODES: tuple[Mode, ...] = ("auto", "off")
LIMIT_MS = 2.0

environment = Environment("bench")


@environment.tool
async def look_up(key: str) -> str:
    """Look a key up."""
    return f"The value of {key[:20]} is 42."


@environment.template()
async def question(number: int = 0):
    """Ask for a value that takes five look-ups."""
    yield f"Question {number}: {shapes.incidents()[number]} Look five keys up."
    yield random.random()


@dataclass
class Spent:
    """Processor time of both processes, in seconds, and decode steps, in a step's rollouts."""

    engine: float
    rollouts: float
    steps: int


@dataclass
class Clock(Reporter):
    """Notes what the rollouts of each step took."""

    account: Account
    spent: list[Spent] = field(default_factory=list)
    _begun: Spent | None = None

    def phase(self, phase: str, step: int, total: int) -> None:
        now = self._now()
        if phase == "rollouts":
            self._begun = now
        elif self._begun is not None:
            begun = vars(self._begun)
            self.spent.append(
                Spent(**{name: value - begun[name] for name, value in vars(now).items()})
            )
            self._begun = None

    def note(self, text: str) -> None:
        print(f"  {text}", flush=True)

    def _now(self) -> Spent:
        account, engine = self.account, 0.0
        if account.process:
            engine = processor_seconds(account.process) - account.seconds
        ours = time.process_time() if account.process != os.getpid() else 0.0
        return Spent(engine, ours, account.steps)


def processor_seconds(process: int) -> float:
    """Return the processor time of another process: its clock's id is made as in Linux's posix-timers.h."""
    return time.clock_gettime((~process << 3) | 2)


async def create_models() -> None:
    """Create the model of each mode, with the files of `shapes.create_policy`."""
    from hud.client import connect

    texts = [*shapes.incidents(), *shapes.words()]
    sizes = {**SIZES, "max_context": CONTEXT}
    for name in MODES:
        body = {"name": name, "texts": texts, "sizes": sizes, "config": {"slots": SLOTS}}
        await connect().post("/v2/models/create", body)


def turns_of(folder: Path) -> list[list[int]]:
    """Return tool calls of so many tokens, each with the end of the turn."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    chance, words = random.Random(0), shapes.words()
    turns = []
    for length in (chance.randint(SHORTEST, LONGEST) for _ in range(64)):
        key, ids = chance.choice(words), []
        while len(ids) < length:
            key += f" {chance.choice(words)}"
            call = f'<tool_call>{{"name": "look_up", "arguments": {{"key": "{key}"}}}}</tool_call>'
            ids = tokenizer.encode(call, add_special_tokens=False).ids
        turns.append([*ids, tokenizer.token_to_id("<|end|>")])
    return turns


async def measure(mode: Mode, account: Account, folder: Path) -> Spent:
    """Train, and return the sums of the steps after the first."""
    import hud.train.backends.engine_process as module
    from hud.eval import LocalRuntime, Taskset
    from hud.train.config import TrainConfig
    from hud.train.loop import train

    module.has_gpu = lambda: True
    tasks = Taskset("bench", [question(number=number) for number in range(TASKS)])
    clock = Clock(account)
    config = TrainConfig(
        model=mode,
        steps=STEPS,
        group=GROUP,
        tasks_per_step=TASKS,
        max_concurrent=AT_ONCE,
        max_turns=TURNS,
        eval_every=0,
        guard="off",
        engine_process=mode,
        metrics_file=str(folder / f"{mode}.jsonl"),
        plot=str(folder / f"{mode}.png"),
    )
    await train(config, tasks=tasks, runtime=LocalRuntime(environment), reporter=clock)
    steps = clock.spent[1:]
    return Spent(**{key: sum(getattr(spent, key) for spent in steps) for key in vars(steps[0])})


async def main(folder: Path) -> int:
    """Print the times of both modes; return 1 where the limit is exceeded."""
    await create_models()
    shapes.create_policy(folder / "policy", SIZES, max_context=CONTEXT)
    turns = turns_of(folder / "policy")
    account = play(folder, turns)
    apart = await measure("auto", account, folder)
    tokens = (STEPS - 1) * TASKS * GROUP * TURNS * sum(map(len, turns)) / len(turns)
    print(f"  {tokens / apart.steps:.0f} sequences in a decode step", flush=True)
    held = report(
        f"hud train, {AT_ONCE} rollouts at once: the engine's process, a decode step",
        apart.engine / apart.steps * 1000,
        "ms",
        bar=LIMIT_MS,
        at_most=True,
    )
    report("the rollouts' process meanwhile", apart.rollouts / apart.steps * 1000, "ms")
    together = await measure("off", account, folder)
    report("both in one process, a decode step", together.engine / together.steps * 1000, "ms")
    return int(not held)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        os.environ["HUD_HOME"] = f"{name}/home"
        os.environ.pop("HUD_API_URL", None)
        sys.exit(asyncio.run(main(Path(name))))
