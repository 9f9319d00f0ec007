"""The whole loop in minutes, on a CPU: a policy from nothing, a mediocre start, GRPO, and proof that it got better.

    python examples/triage/demo.py --folder .demo

1. An apprentice, a script that works badly, plays training incidents; its runs are recorded.
2. A tiny transformer is made, its tokenizer learned from what was said in those runs.
3. It learns to imitate the apprentice: tools and format, and every bad habit.
4. GRPO trains it on its own rollouts, with a score on incidents that training never shows before and after.

Everything it makes is in the folder. Stop it when you like: the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from demo_report import Narrator, print_report, write_report

from hud import Taskset
from hud.cli.main import report as explain
from hud.client import connect
from hud.eval import Job, Run, StopSignal
from hud.train.config import TrainConfig
from hud.train.loop import train
from hud.train.supervised.corpus import texts_of_messages
from hud.train.supervised.recorded_runs import conversation_of
from hud.train.supervised.warm_up import warm_up

HERE = Path(__file__).parent
INTERRUPTED = 130

TEACHER = "triage-apprentice"
"""Slug of the model that imitates the apprentice; the policy is a fork of it, with a tree of its own."""
POLICY = "triage"

SIZES = {"vocab_size": 1024, "hidden": 128, "layers": 3}
IMITATED_RUNS = 4200
"""Runs of the apprentice to learn from, three of each training incident."""
SPOKEN_RUNS = 700
"""Runs whose words the tokenizer is learned from."""
WARM_UP = {"epochs": 1, "batch": 4, "lr": 2e-3}
GRPO: dict[str, Any] = {
    "group": 8,
    "tasks_per_step": 8,
    "lr": 1e-3,
    "lr_schedule": "linear",
    "lr_floor": 0.3,
    "warmup_steps": 3,
    "loss": "importance_sampling",
    "loss_config": {"token_mean": 1.0},
    "max_grad_norm": 1.0,
    "max_tokens": 40,
    "max_turns": 10,
    "eval_every": 10,
    "keep": 2,
}
STEPS = 40


@dataclass
class Progress:
    """What is done so far, kept in the folder so that a demo can be stopped at any instant."""

    folder: Path
    seed: int
    steps: int
    shuffle_advantages: bool
    taught: bool = False
    finished: bool = False
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        """Where it is kept."""
        return self.folder / "progress.json"

    def save(self) -> None:
        """Write it down, whole or not at all."""
        draft = self.file.with_suffix(".tmp")
        draft.write_text(json.dumps({**asdict(self), "folder": str(self.folder)}, indent=2) + "\n")
        os.replace(draft, self.file)

    async def timed(self, phase: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work`, and add its time to the phase's, also where it is interrupted."""
        started = perf_counter()
        try:
            await work()
        finally:
            spent = perf_counter() - started
            self.seconds[phase] = round(self.seconds.get(phase, 0.0) + spent, 2)
            self.save()


class Demo:
    """One demo in one folder."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.say = Narrator()
        self.tasks = Taskset.from_file(HERE / "tasks.py")
        self.held_out = Taskset.from_file(HERE / "held_out.py")
        self.runs: list[Run] = []
        """The apprentice's."""

    async def run(self) -> None:
        """Do the phases that are not done. The first three are one: what a kill leaves of them is made again."""
        progress, say = self.progress, self.say
        if not progress.taught:
            say.heading("1/4  An apprentice plays training incidents, badly")
            await progress.timed("apprentice", self.record_apprentice)
            say.heading("2/4  A tiny policy: random weights, a tokenizer from what was said")
            await progress.timed("create", self.create)
            say.heading("3/4  Warm-up: it learns to imitate the apprentice")
            await progress.timed("warm_up", self.teach)
        say.heading("4/4  GRPO on its own rollouts, judged on incidents it never trains on")
        await progress.timed("grpo", self.learn)

    async def record_apprentice(self) -> None:
        """Have the apprentice play."""
        from scripted import apprentice

        job = await Job.start("apprentice", group=IMITATED_RUNS // len(self.tasks))
        await self.tasks.run(apprentice(self.progress.seed), job=job)
        await job.finish()
        self.runs = job.runs
        self.say.line(f"{len(job.runs)} runs, mean reward {job.reward:.3f}: job {job.id}")

    async def create(self) -> None:
        """Make the model; one that an interrupted warm-up left half taught is made again."""
        client = connect()
        known = {model["model_name"] for model in (await client.get("/v2/models"))["items"]}
        for slug in (POLICY, TEACHER):
            if slug in known:
                await client.delete(f"/v2/models/{slug}")
        said = [conversation_of(run.trace) for run in self.runs[:SPOKEN_RUNS]]
        texts = [text for messages in said for text in texts_of_messages(messages)]
        body = {"name": TEACHER, "texts": texts, "seed": self.progress.seed, "sizes": SIZES}
        made = await client.post("/v2/models/create", body)
        self.say.line(f"{made['model_name']}, {SIZES['layers']} layers of {SIZES['hidden']}")

    async def teach(self) -> None:
        """Imitate the apprentice, then fork, so that the policy's own tree begins with its first GRPO step."""
        taught = await warm_up(
            TEACHER, self.runs, seed=self.progress.seed, reporter=self.say, **WARM_UP
        )
        await connect().post("/v2/models/fork", {"source_model_id": TEACHER, "name": POLICY})
        self.say.line(f"loss per token {taught.first_loss:.3f} → {taught.last_loss:.3f}")
        self.progress.taught = True

    async def learn(self) -> None:
        """Train by GRPO, and report."""
        progress = self.progress
        config = TrainConfig(
            model=POLICY,
            steps=progress.steps,
            seed=progress.seed,
            shuffle_advantages=progress.shuffle_advantages,
            plot=str(progress.folder / "curve.png"),
            **GRPO,
        )
        stop = StopSignal()
        started = perf_counter()
        with stop.on_interrupt():
            result = await train(
                config, tasks=self.tasks, held_out=self.held_out, reporter=self.say, stop=stop
            )
        if result.finished:
            seconds = {**progress.seconds}
            seconds["grpo"] = seconds.get("grpo", 0.0) + perf_counter() - started
            write_report(
                progress.folder, result, seconds, progress.seed, progress.shuffle_advantages
            )
            progress.finished = True


def main() -> int:
    """Read the command line, and run or continue the demo."""
    options = arguments()
    folder = Path(options.folder)
    progress = begin(folder, options)
    # Its own store, so that the demo touches nothing of yours and one `rm -r` removes it.
    os.environ["HUD_HOME"] = str((folder / "home").resolve())
    os.environ.pop("HUD_API_URL", None)
    try:
        asyncio.run(Demo(progress).run())
        if progress.finished:
            print_report(folder)
            return 0
    except KeyboardInterrupt:
        pass
    except Exception as error:
        return explain(error, sys.argv[1:])
    print("\nInterrupted. Everything so far is kept; the same command goes on from here.")
    return INTERRUPTED


def arguments() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description="Train a tool-using agent from scratch.")
    parser.add_argument("--folder", default=".demo", help="where everything goes (default: .demo)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--fresh", action="store_true", help="begin again, whatever is there")
    which.add_argument("--resume", action="store_true", help="go on; never begin again")
    parser.add_argument("--shuffle-advantages", action="store_true", help="the null experiment")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"GRPO steps (default: {STEPS})")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser.parse_args()


def begin(folder: Path, options: argparse.Namespace) -> Progress:
    """Return the progress of the demo in the folder: an unfinished one's, or that of a new one."""
    file = folder / "progress.json"
    wanted = {
        "seed": options.seed,
        "steps": options.steps,
        "shuffle_advantages": options.shuffle_advantages,
    }
    if file.exists() and not options.fresh:
        known = json.loads(file.read_text())
        same = all(known[name] == value for name, value in wanted.items())
        if options.resume or (same and not known["finished"]):
            print(f"Going on with the demo in {folder} (--fresh begins again).")
            return Progress(**{**known, "folder": folder})
        print(
            f"The demo in {folder} {'was made with other options' if not same else 'is finished'}; beginning again."
        )
    elif options.resume:
        sys.exit(f"Error: there is no demo in {folder} to go on with; leave --resume out.")
    # Only what a demo makes is removed: the folder may be anything.
    shutil.rmtree(folder / "home", ignore_errors=True)
    for name in ("progress.json", "report.json", "curve.png"):
        (folder / name).unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    progress = Progress(folder=folder, **wanted)
    progress.save()
    return progress


if __name__ == "__main__":
    sys.exit(main())
