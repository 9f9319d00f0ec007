"""A hierarchy trained from nothing, on a CPU: a clerk, then the manager who calls it, then both together.

    python examples/hierarchy/demo.py --folder .demo-hierarchy

1. Apprentices, scripts that work badly, play both desks; their runs are recorded.
2. Two tiny policies are made, and learn to imitate them.
3. `recipe.toml` trains the clerk on its own questions, the manager on its orders with the clerk frozen, and both
   together, each judged on tasks that training never shows.

Everything it makes is in the folder. Stop it when you like: the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from hud import Taskset
from hud.cli.main import report as explain
from hud.cli.training.panel import Lines
from hud.client import connect
from hud.eval import Job, StopSignal
from hud.eval.results.held_out_scores import Score
from hud.eval.results.intervals import with_interval
from hud.exchange.supervision import conversation_of
from hud.train.recipe import Stage, StageReport, follow, load_recipe
from hud.train.supervised.corpus import texts_of_messages
from hud.train.supervised.supervised_run import warm_up

HERE = Path(__file__).parent
INTERRUPTED = 130
SIZES = {"vocab_size": 512, "hidden": 96, "layers": 2}
IMITATED_RUNS = 1800
"""Runs of each apprentice to learn from, three of each task."""
SPOKEN_RUNS = 300
"""Runs whose words the tokenizers are learned from."""
WARM_UP = {"epochs": 2, "batch": 6, "lr": 3e-3}


async def teach(seed: int) -> None:
    """Make both policies, and have them imitate the apprentices."""
    from scripted import apprentices

    client = connect()
    known = {model["model_name"] for model in (await client.get("/v2/models"))["items"]}
    files = {"clerk": "clerk_tasks.py", "manager": "tasks.py"}
    for (name, file), apprentice in zip(files.items(), apprentices(seed), strict=True):
        if name in known:
            await client.delete(f"/v2/models/{name}")
        tasks = Taskset.from_file(HERE / file)
        job = await Job.start(f"{name}'s apprentice", group=IMITATED_RUNS // len(tasks))
        await tasks.run(apprentice, job=job)
        await job.finish()
        said = [conversation_of(run.trace) for run in job.runs[:SPOKEN_RUNS]]
        texts = [text for messages in said for text in texts_of_messages(messages)]
        body = {"name": name, "texts": texts, "seed": seed, "sizes": SIZES}
        await client.post("/v2/models/create", body)
        taught = await warm_up(name, job.runs, seed=seed, **WARM_UP)
        print(
            f"{name}: its apprentice's mean reward is {job.reward:.3f}; imitated, loss per token "
            f"{taught.first_loss:.3f} → {taught.last_loss:.3f} in {taught.seconds:.0f} s",
            flush=True,
        )


async def learn(options: argparse.Namespace) -> list[StageReport]:
    """Follow the recipe."""
    given: dict[str, Any] = {"seed": options.seed}
    if options.steps is not None:
        given["steps"] = options.steps
    stop = StopSignal()

    @contextmanager
    def showing(stage: Stage) -> Iterator[Lines]:
        from hud.cli.output import console

        print(f"\n{stage.name}", flush=True)
        yield Lines(stage.config, console())

    with stop.on_interrupt():
        return await follow(load_recipe(HERE / "recipe.toml", given), showing=showing, stop=stop)


async def demo(folder: Path, options: argparse.Namespace) -> bool:
    """Do what is not done; returns whether all of it is."""
    started = perf_counter()
    taught = folder / "taught.json"
    if not taught.exists():
        await teach(options.seed)
        taught.write_text(json.dumps({"seconds": round(perf_counter() - started, 1)}) + "\n")
    reports = await learn(options)
    if not all(report.finished for report in reports):
        return False
    rows = [
        {
            "stage": report.name,
            "model": report.model,
            "scores": [score.as_dict() for score in report.scores],
            "joined": {name: score.as_dict() for name, score in report.joined.items()},
        }
        for report in reports
    ]
    seconds = round(perf_counter() - started, 1)
    result = {"seed": options.seed, "seconds": seconds, "stages": rows}
    (folder / "report.json").write_text(json.dumps(result, indent=2) + "\n")
    taught.unlink()
    print(f"\nHeld-out reward ({seconds:.0f} s in all)")
    for report in reports:
        first, last = report.scores[0], report.scores[-1]
        print(f"  {report.name:<9} before {shown(first)}   after {shown(last)}")
        for name, score in report.joined.items():
            print(f"  {'':<9} {name}, which learned along: {shown(score)}")
    return True


def shown(score: Score) -> str:
    """Return a score with its interval."""
    return with_interval(score.mean, score.low, score.high)


def main() -> int:
    """Read the command line, and run or continue the demo."""
    parser = argparse.ArgumentParser(description="Train a clerk, then the manager who calls it.")
    parser.add_argument("--folder", default=".demo-hierarchy", help="where everything goes")
    parser.add_argument("--steps", type=int, help="steps of each stage (default: the recipe's)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder = Path(options.folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["HUD_HOME"] = str(folder / "home")
    os.environ.pop("HUD_API_URL", None)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # Policies this small gain nothing from a second.
    os.chdir(HERE.parents[1])  # The recipe's files are named from there.
    try:
        if asyncio.run(demo(folder, options)):
            return 0
    except KeyboardInterrupt:
        pass
    except Exception as error:
        return explain(error, sys.argv[1:])
    print("\nInterrupted. Everything so far is kept; the same command goes on from here.")
    return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
