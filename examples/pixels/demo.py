"""A tiny policy learns to click buttons from pixels, in minutes on a CPU, without a download.

    python examples/pixels/demo.py --folder .demo-pixels      or: make demo-pixels

1. Chromium takes the screenshots of the training pages; an apprentice, a script that slips, clicks in them.
2. A tiny Qwen3-VL is made: a vision tower and a text model, with random weights.
3. It learns to imitate the apprentice, not for long.
4. GRPO trains it, tower included, on its own clicks, with a score on held-out pages in a live browser before and after.

Everything it makes is in the folder. Stop it when you like: the same command goes on where it stopped.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import demo_driver
from demo_driver import Progress
from hud import Taskset
from hud.agents import ScriptedAgent
from hud.client import connect
from hud.eval import Job

HERE = Path(__file__).parent

RENDERED_AT_ONCE = 90
"""Screenshots that one browser takes."""
IMITATED_RUNS = 1440
"""Runs of the apprentice, four of each training page."""
WARM_UP = {"epochs": 1, "batch": 16, "lr": 3e-3, "lr_schedule": "constant"}
GRPO: dict[str, Any] = {
    **demo_driver.GRPO,
    "tasks_per_step": 8,
    "lr": 1e-3,
    "lr_floor": 0.3,
    "warmup_steps": 3,
    "dynamic_sampling": 0,
    "max_tokens": 4,
    "max_turns": 1,
    "eval_every": 0,
    "keep": 1,
}


class Demo(demo_driver.Demo):
    """Buttons of pages, clicked by a policy with a vision tower."""

    here = HERE
    policy, teacher = "pixels", "pixels-apprentice"
    headings = (
        "Chromium renders the training pages, and an apprentice clicks in them",
        "A tiny Qwen3-VL: a vision tower and a text model, random weights",
        "Warm-up: it learns to imitate the apprentice",
        "GRPO on its own clicks, judged on pages it never trains on",
    )
    unseen = "pages"
    default_steps = 30
    folder_name = ".demo-pixels"

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress, imitated_runs=IMITATED_RUNS, warm_up=WARM_UP, grpo=GRPO)

    def apprentice(self) -> ScriptedAgent:
        from scripted import apprentice

        return apprentice(self.progress.seed)

    async def record_apprentice(self) -> None:
        await self.render()
        await super().record_apprentice()

    async def render(self) -> None:
        """Take the screenshots of the training pages that have none."""
        from env import render
        from pages import screenshot_file

        firsts = range(0, len(self.tasks), RENDERED_AT_ONCE)
        missing = [
            render(first=first, pages=min(RENDERED_AT_ONCE, len(self.tasks) - first))
            for first in firsts
            if not screenshot_file(first).exists()
        ]
        if missing:
            job = await Job.start("screenshots")
            nobody = ScriptedAgent(lambda run: "Rendered.", name="nobody")
            await Taskset("screenshots", missing).run(nobody, job=job)
            await job.finish()
        self.say.line(f"{len(self.tasks)} screenshots")

    async def make_teacher(self) -> None:
        from env import INSTRUCTION
        from pages import CELLS
        from scripted import answer
        from tiny_model import write_model

        folder = self.progress.folder / "random-model"
        texts = [INSTRUCTION, *map(answer, range(CELLS * CELLS))]
        parameters = write_model(folder, texts, seed=self.progress.seed)
        body = {"source": str(folder.resolve()), "name": self.teacher}
        made = await connect().post("/v2/models/add", body)
        self.say.line(f"{made['model_name']}, {parameters:,} parameters")


if __name__ == "__main__":
    sys.exit(demo_driver.main(Demo, "Train a tiny policy with a vision tower to click."))
