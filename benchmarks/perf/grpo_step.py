"""One GRPO step on the demo's policy: 64 rollouts of several turns, then the update, checkpoint included.

Prints the median seconds of a step and of its phases, and the ratio of the whole step to its two unavoidable
phases, rollouts and update: what is above 1 is packing, the checkpoint, metrics and Python.

The policy is a small model of the demo's shape after a short warm-up, in a folder of its own that is removed.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from records import report
from sizes import size

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples" / "triage"))

STEPS = size(8, 1)
WARM_UP_RUNS = 1400
BAR_SECONDS = 3.0


async def main() -> None:
    import demo as triage

    from demo_driver import Progress
    from hud import Taskset
    from hud.train.config import TrainConfig
    from hud.train.loop import train

    folder = Path(tempfile.mkdtemp(prefix="grpo-step-"))
    os.environ["HUD_HOME"] = str(folder / "home")
    try:
        progress = Progress(folder=folder, seed=0, steps=STEPS, shuffle_advantages=False)
        demo = triage.Demo(progress)
        demo.imitated_runs = WARM_UP_RUNS
        await demo.record_apprentice()
        await demo.create()
        await demo.teach()
        config = TrainConfig(model=triage.POLICY, steps=STEPS, **{**triage.GRPO, "eval_every": 0})
        metrics = folder / "metrics.jsonl"
        config = config.model_copy(
            update={"metrics_file": str(metrics), "plot": str(folder / "curve.png")}
        )
        await train(
            config, tasks=Taskset.from_file(ROOT / "examples/triage/tasks.py"), reporter=demo.say
        )
        report_steps(metrics)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def report_steps(metrics: Path) -> None:
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [row for row in rows if "seconds:sum" in row]

    def median(name: str) -> float:
        return statistics.median(row[name] for row in steps)

    whole, rollouts, update = (
        median(f"seconds{phase}:sum") for phase in ("", "_rollouts", "_update")
    )
    report(
        "GRPO step of the demo, 8 x 8 rollouts, median",
        whole,
        "s",
        bar=BAR_SECONDS,
        at_most=True,
        peer="rollouts and update",
        peer_value=rollouts + update,
    )
    report("its rollouts", rollouts, "s")
    report("its update", update, "s")
    report("tokens sampled and read", median("tokens_per_second:mean"), "/s")


if __name__ == "__main__":
    asyncio.run(main())
