"""`make demo-tiny` in small, in a process of its own: `python -m tests.dashboard.played_demo FOLDER` fills FOLDER/home."""

import asyncio
import os
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "triage"


def main(folder: Path) -> None:
    os.environ["HUD_HOME"] = str(folder / "home")
    sys.path.insert(0, str(EXAMPLE))
    import demo

    from demo_driver import Progress
    from hud.eval import Taskset

    small = demo.Demo(Progress(folder=folder, seed=0, steps=2, shuffle_advantages=False))
    small.imitated_runs = small.spoken_runs = 60
    small.grpo = {**small.grpo, "group": 2, "tasks_per_step": 2, "eval_every": 1}
    small.tasks = Taskset("tasks", list(small.tasks)[:30])
    small.held_out = Taskset("held-out", list(small.held_out)[:6])
    asyncio.run(small.run())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
