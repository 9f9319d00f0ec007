"""The driver of the demos: a script's runs, a model that imitates them, GRPO, and held-out scores before and after.

Each demo is a subclass of `Demo` with its tasks, its model and its settings. Everything that it makes is in one folder, and a
demo that was stopped goes on where it stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

from demo_report import Narrator, print_report, write_report
from hud import Taskset
from hud.agents import ScriptedAgent
from hud.cli.main import report as explain
from hud.client import connect
from hud.eval import Job, Run, StopSignal
from hud.train.config import TrainConfig
from hud.train.loop import train
from hud.train.supervised.supervised_run import warm_up

INTERRUPTED = 130
GRPO: dict[str, Any] = {
    "group": 8,
    "lr_schedule": "linear",
    "loss": "importance_sampling",
    "loss_config": {"token_mean": 1.0},
    "max_grad_norm": 1.0,
}
"""Settings of the training by reward that the demos have in common."""
DOWNLOADS = "cache"
"""Folder of HUD_HOME that `--fresh` leaves: downloads are the same in every demo."""


@dataclass
class Progress:
    """Finished phases and resources used, kept in the folder so that a demo can be stopped at any instant."""

    folder: Path
    seed: int
    steps: int
    shuffle_advantages: bool
    taught: bool = False
    finished: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time by phase."""
    cpu_seconds: float = 0.0
    """CPU time of all phases, over all threads and ended child processes."""

    @property
    def file(self) -> Path:
        """Path of the record."""
        return self.folder / "progress.json"

    def save(self) -> None:
        """Write the record atomically."""
        draft = self.file.with_suffix(".tmp")
        draft.write_text(json.dumps({**asdict(self), "folder": str(self.folder)}, indent=2) + "\n")
        os.replace(draft, self.file)

    async def timed(self, phase: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work`, and add its time to the phase's, also where it is interrupted."""
        started, used = perf_counter(), cpu_seconds()
        try:
            await work()
        finally:
            spent = perf_counter() - started
            self.seconds[phase] = round(self.seconds.get(phase, 0.0) + spent, 2)
            self.cpu_seconds = round(self.cpu_seconds + cpu_seconds() - used, 2)
            self.save()


class Demo(ABC):
    """One demo in one folder."""

    here: ClassVar[Path]
    """Folder of the example: `tasks.py` and `held_out.py`."""
    policy: ClassVar[str]
    """Slug of the trained model: a fork of the teacher's, with a tree of its own."""
    teacher: ClassVar[str]
    """Slug of the model that imitates the apprentice."""
    headings: ClassVar[tuple[str, str, str, str]]
    """Titles of the phases."""
    unseen: ClassVar[str]
    """Noun of the held-out tasks, in the plural."""
    default_steps: ClassVar[int]
    """GRPO steps."""
    folder_name: ClassVar[str]
    """Default of `--folder`."""

    def __init__(
        self,
        progress: Progress,
        *,
        imitated_runs: int,
        warm_up: dict[str, Any],
        grpo: dict[str, Any],
    ) -> None:
        """`imitated_runs`: runs of the apprentice, equally many of each training task; `warm_up` and `grpo`: settings of the trainings."""
        self.progress = progress
        self.imitated_runs, self.warm_up, self.grpo = imitated_runs, warm_up, grpo
        self.say = Narrator()
        self.tasks = Taskset.from_file(self.here / "tasks.py")
        self.held_out = Taskset.from_file(self.here / "held_out.py")
        self.runs: list[Run] = []
        """The apprentice's."""

    @abstractmethod
    def apprentice(self) -> ScriptedAgent:
        """Return the imperfect script that the warm-up imitates."""

    @abstractmethod
    async def make_teacher(self) -> None:
        """Make the model `teacher`; there is none of that name."""

    async def run(self) -> None:
        """Do the phases that are not done. The first three are one: what a kill leaves of them is made again."""
        progress, say = self.progress, self.say
        played, created, imitated, rewarded = self.headings
        if not progress.taught:
            say.heading(f"1/4  {played}")
            await progress.timed("apprentice", self.record_apprentice)
            say.heading(f"2/4  {created}")
            await progress.timed("create", self.create)
            say.heading(f"3/4  {imitated}")
            await progress.timed("warm_up", self.teach)
        say.heading(f"4/4  {rewarded}")
        await progress.timed("grpo", self.learn)

    async def record_apprentice(self) -> None:
        """Have the apprentice play the training tasks."""
        job = await Job.start("apprentice", group=self.imitated_runs // len(self.tasks))
        await self.tasks.run(self.apprentice(), job=job)
        await job.finish()
        self.runs = job.runs
        self.say.line(f"{len(job.runs)} runs, mean reward {job.reward:.3f}: job {job.id}")

    async def create(self) -> None:
        """Make the teacher's model; one that an interrupted warm-up left half taught is made again."""
        client = connect()
        slugs = await slugs_of_models()
        for slug in (self.policy, self.teacher):
            if slug in slugs:
                await client.delete(f"/v2/models/{slug}")
        await self.make_teacher()

    async def teach(self) -> None:
        """Imitate the apprentice, then fork, so that the policy's own tree begins with its first GRPO step."""
        taught = await warm_up(
            self.teacher, self.runs, seed=self.progress.seed, reporter=self.say, **self.warm_up
        )
        body = {"source_model_id": self.teacher, "name": self.policy}
        await connect().post("/v2/models/fork", body)
        self.say.line(f"loss per token {taught.first_loss:.3f} → {taught.last_loss:.3f}")
        self.progress.taught = True

    async def learn(self) -> None:
        """Train by GRPO, and report."""
        progress = self.progress
        config = TrainConfig(
            model=self.policy,
            steps=progress.steps,
            seed=progress.seed,
            shuffle_advantages=progress.shuffle_advantages,
            plot=str(progress.folder / "curve.png"),
            **self.grpo,
        )
        stop = StopSignal()
        started, used = perf_counter(), cpu_seconds()
        with stop.on_interrupt():
            result = await train(
                config, tasks=self.tasks, held_out=self.held_out, reporter=self.say, stop=stop
            )
        if result.finished:
            seconds = {**progress.seconds}
            seconds["grpo"] = seconds.get("grpo", 0.0) + perf_counter() - started
            write_report(
                progress.folder,
                result,
                seconds,
                cpu_seconds=progress.cpu_seconds + cpu_seconds() - used,
                seed=progress.seed,
                shuffle_advantages=progress.shuffle_advantages,
            )
            progress.finished = True


async def slugs_of_models() -> set[str]:
    """Return the slugs of the store's models."""
    models = await connect().get("/v2/models")
    return {model["model_name"] for model in models["items"]}


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its ended children."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main(kind: type[Demo], description: str) -> int:
    """Read the command line, and run or continue the demo."""
    options = arguments(kind, description)
    folder = Path(options.folder)
    progress = begin(folder, options)
    # Its own store, so that the demo touches nothing of yours and one `rm -r` removes it.
    os.environ["HUD_HOME"] = str((folder / "home").resolve())
    os.environ.pop("HUD_API_URL", None)
    try:
        asyncio.run(kind(progress).run())
        if progress.finished:
            print_report(folder, example=kind.here, unseen=kind.unseen)
            return 0
    except KeyboardInterrupt:
        pass
    except Exception as error:
        return explain(error, sys.argv[1:])
    print("\nInterrupted. Everything so far is kept; the same command goes on from here.")
    return INTERRUPTED


def arguments(kind: type[Demo], description: str) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--folder",
        default=kind.folder_name,
        help=f"where everything goes (default: {kind.folder_name})",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--fresh", action="store_true", help="begin again, whatever is there")
    which.add_argument("--resume", action="store_true", help="go on; never begin again")
    parser.add_argument("--shuffle-advantages", action="store_true", help="the null experiment")
    parser.add_argument(
        "--steps",
        type=int,
        default=kind.default_steps,
        help=f"GRPO steps (default: {kind.default_steps})",
    )
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
        recorded = json.loads(file.read_text())
        same = all(recorded[name] == value for name, value in wanted.items())
        if options.resume or (same and not recorded["finished"]):
            print(f"Going on with the demo in {folder} (--fresh begins again).")
            return Progress(**{**recorded, "folder": folder})
        print(
            f"The demo in {folder} {'was made with other options' if not same else 'is finished'}; beginning again."
        )
    elif options.resume:
        sys.exit(f"Error: there is no demo in {folder} to go on with; leave --resume out.")
    remove(folder)
    folder.mkdir(parents=True, exist_ok=True)
    progress = Progress(folder=folder, **wanted)
    progress.save()
    return progress


def remove(folder: Path) -> None:
    """Remove what a demo made. Other files stay, as the folder may be anything, and so do downloads."""
    home = folder / "home"
    for path in home.iterdir() if home.is_dir() else ():
        if path.is_dir() and path.name != DOWNLOADS:
            shutil.rmtree(path)
        elif path.is_file():
            path.unlink()
    for name in ("progress.json", "report.json", "curve.png"):
        (folder / name).unlink(missing_ok=True)
