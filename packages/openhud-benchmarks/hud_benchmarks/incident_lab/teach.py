"""Teach small policies to investigate by imitation: one alone (flat), and a lead and a specialist (hierarchical).

    INCIDENT_LAB=.lab/varied HUD_HOME=.lab/home python -m hud_benchmarks.incident_lab.teach
    HUD_HOME=.lab/home python -m hud_benchmarks.incident_lab.compare lab-flat lab-lead --specialists lab-specialist --group 4

All three have the same size, start from random weights, and see the oracle play the same incidents once. Judge them on
incidents that they were not taught with: the second command plays those of the package.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from time import perf_counter

from hud.agents import Agent
from hud.client import connect
from hud.eval import LocalRuntime, NullRecorder, Run, Taskset
from hud.exchange.supervision import conversation_of
from hud.train.supervised.corpus import texts_of_messages
from hud.train.supervised.supervised_run import warm_up
from hud_benchmarks.incident_lab import flat, hierarchical, players

SIZES = {"vocab_size": 2048, "hidden": 128, "layers": 3, "max_context": 8192}
SPOKEN_RUNS = 150
"""Runs whose words a tokenizer is learned from."""


async def played(tasks: Taskset, agent: Agent) -> list[Run]:
    """Have the oracle play; runs that did not come out right are left out."""
    job = await tasks.run(agent, recorder=NullRecorder(), runtime=LocalRuntime(), max_concurrent=4)
    return [run for run in job.runs if run.reward == 1.0]


async def make(model: str, runs: list[Run], seed: int) -> None:
    """Make a model of random weights, with a tokenizer of what was said in the runs."""
    client = connect()
    if model in {item["model_name"] for item in (await client.get("/v2/models"))["items"]}:
        await client.delete(f"/v2/models/{model}")
    spoken = [conversation_of(run.trace) for run in runs[:: max(1, len(runs) // SPOKEN_RUNS)]]
    texts = [text for messages in spoken for text in texts_of_messages(messages)]
    offered = {tool.name: tool for run in runs for tool in run.tools}
    # As often as the words of a few runs: every prompt begins with them.
    texts += [
        f"\n{tool.name}({', '.join(tool.parameters['properties'])})" for tool in offered.values()
    ] * 40
    body = {"name": model, "texts": texts, "seed": seed, "sizes": SIZES}
    await client.post("/v2/models/create", body)


async def teach(
    model: str, runs: list[Run], options: argparse.Namespace
) -> dict[str, float | None]:
    """Make a model, unless it is to go on from where it is, and teach it with these runs."""
    if not options.go_on:
        await make(model, runs, options.seed)
    began = perf_counter()
    report = await warm_up(
        model, runs, epochs=options.epochs, batch=options.batch, lr=options.lr, seed=options.seed
    )
    return {
        "runs": len(runs),
        "steps": report.steps,
        "first_loss": rounded(report.first_loss),
        "last_loss": rounded(report.last_loss),
        "seconds": round(perf_counter() - began, 1),
    }


def rounded(loss: float | None) -> float | None:
    """Return a loss with four decimals; None where there was no step."""
    return None if loss is None else round(loss, 4)


async def main(options: argparse.Namespace) -> None:
    """Teach all three, or the one that is asked for, and say how it went."""
    lessons: dict[str, list[Run]] = {}
    if options.only in (None, "lab-flat"):
        lessons["lab-flat"] = await played(flat.tasks, players.oracle)
    if options.only != "lab-flat":
        led = await played(hierarchical.tasks, players.team)
        reports = [child for run in led for child in run.children if child.reward == 1.0]
        lessons |= {"lab-lead": led, "lab-specialist": reports}
    for model, runs in lessons.items():
        if options.only in (None, model):
            print(json.dumps({"model": model, **await teach(model, runs, options)}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Teach small policies by imitation.")
    parser.add_argument("--only", choices=("lab-flat", "lab-lead", "lab-specialist"))
    parser.add_argument("--go-on", action="store_true", help="teach the models that are there")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    asyncio.run(main(chosen))
