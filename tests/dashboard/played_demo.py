"""`make demo` in small, in a process of its own: `python -m tests.dashboard.played_demo FOLDER` fills FOLDER/home."""

import asyncio
import os
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "triage"


def main(folder: Path) -> None:
    os.environ["HUD_HOME"] = str(folder / "home")
    sys.path.insert(0, str(EXAMPLE))
    import demo

    from hud.eval import Taskset

    demo.IMITATED_RUNS = demo.SPOKEN_RUNS = 60
    demo.GRPO = {**demo.GRPO, "group": 2, "tasks_per_step": 2, "eval_every": 1}
    small = demo.Demo(demo.Progress(folder=folder, seed=0, steps=2, shuffle_advantages=False))
    small.tasks = Taskset("tasks", list(small.tasks)[:30])
    small.held_out = Taskset("held-out", list(small.held_out)[:6])
    asyncio.run(small.run())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
