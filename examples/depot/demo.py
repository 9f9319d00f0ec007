"""A pretrained language model learns to use a tool, in minutes on a CPU, and proves it on items that it was never asked for.

    python examples/depot/demo.py --folder .demo      or: make demo

1. An apprentice, a script that works badly, answers training questions; its runs are recorded.
2. SmolLM2-135M-Instruct is fetched with pip, and gets an adapter.
3. It learns to imitate the apprentice: the form of a call, and every bad habit.
4. GRPO trains it on its own rollouts, with a score on held-out questions before and after.

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
from hud.agents import ScriptedAgent
from hud.client import connect
from hud.errors import UsageError

HERE = Path(__file__).parent

BASE = "smollm2-135m-instruct"
ADAPTER = {"training": "lora", "lora_rank": 16, "tool_call_parser": "pythonic"}
"""An adapter learns as much in less time than all weights do, and a call in this format has half of the tokens of one in JSON."""
IMITATED_RUNS = 80
"""Runs of the apprentice to learn from, two of each item."""
WARM_UP = {"epochs": 1, "batch": 8, "lr": 1e-3}
GRPO: dict[str, Any] = {
    **demo_driver.GRPO,
    "tasks_per_step": 4,
    # No higher: Adam's steps are as long for noise as for a signal, and at 5e-4 the null run forgets the format.
    "lr": 1e-4,
    "lr_floor": 0.2,
    "warmup_steps": 2,
    "dynamic_sampling": 0,
    "max_tokens": 24,
    "max_turns": 3,
    "eval_every": 0,
    "eval_group": 2,
    "keep": 1,
}


class Demo(demo_driver.Demo):
    """Questions to a depot, answered by a pretrained model."""

    here = HERE
    policy, teacher = "depot", "depot-apprentice"
    headings = (
        "An apprentice answers training questions, badly",
        "A pretrained language model, and an adapter to train",
        "Warm-up: it learns to imitate the apprentice",
        "GRPO on its own rollouts, judged on items it never trains on",
    )
    unseen = "items"
    default_steps = 10
    folder_name = ".demo"

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress, imitated_runs=IMITATED_RUNS, warm_up=WARM_UP, grpo=GRPO)

    def apprentice(self) -> ScriptedAgent:
        from scripted import apprentice

        return apprentice(self.progress.seed)

    async def make_teacher(self) -> None:
        client = connect()
        if BASE not in await demo_driver.slugs_of_models():
            try:
                await client.post("/v2/models/add", {"source": BASE, "name": BASE})
            except UsageError as error:
                raise UsageError(
                    f"{str(error).partition('. ')[0]}; `make demo-tiny` trains a small random model without a download."
                ) from error
        body = {"source_model_id": BASE, "name": self.teacher, "config": ADAPTER}
        made = await client.post("/v2/models/fork", body)
        self.say.line(f"{made['model_name']}, a fork of {BASE} with an adapter of rank 16")


if __name__ == "__main__":
    sys.exit(demo_driver.main(Demo, "Train a pretrained language model to use a tool."))
