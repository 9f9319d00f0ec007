"""The whole loop in minutes, on a CPU, without a download: a policy from nothing, a mediocre start, GRPO, and proof that it got better.

    python examples/triage/demo.py --folder .demo-tiny      or: make demo-tiny

1. An apprentice, a script that works badly, plays training incidents; its runs are recorded.
2. A tiny transformer is made, its tokenizer learned from what was said in those runs.
3. It learns to imitate the apprentice: tools and format, and every bad habit.
4. GRPO trains it on its own rollouts, with a score on incidents that training never shows before and after.

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
from hud.exchange.supervision import conversation_of
from hud.train.supervised.corpus import texts_of_messages

HERE = Path(__file__).parent

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
    **demo_driver.GRPO,
    "tasks_per_step": 8,
    "lr": 1e-3,
    "lr_floor": 0.3,
    "warmup_steps": 3,
    "max_tokens": 40,
    "max_turns": 10,
    "eval_every": 10,
    "keep": 2,
}


class Demo(demo_driver.Demo):
    """Incident triage by a tiny random model."""

    here = HERE
    policy, teacher = POLICY, TEACHER
    headings = (
        "An apprentice plays training incidents, badly",
        "A tiny policy: random weights, a tokenizer from what was said",
        "Warm-up: it learns to imitate the apprentice",
        "GRPO on its own rollouts, judged on incidents it never trains on",
    )
    unseen = "incidents"
    default_steps = 40
    folder_name = ".demo-tiny"

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress, imitated_runs=IMITATED_RUNS, warm_up=WARM_UP, grpo=GRPO)
        self.spoken_runs = SPOKEN_RUNS

    def apprentice(self) -> ScriptedAgent:
        from scripted import apprentice

        return apprentice(self.progress.seed)

    async def make_teacher(self) -> None:
        spoken = [conversation_of(run.trace) for run in self.runs[: self.spoken_runs]]
        texts = [text for messages in spoken for text in texts_of_messages(messages)]
        body = {"name": TEACHER, "texts": texts, "seed": self.progress.seed, "sizes": SIZES}
        made = await connect().post("/v2/models/create", body)
        self.say.line(f"{made['model_name']}, {SIZES['layers']} layers of {SIZES['hidden']}")


if __name__ == "__main__":
    sys.exit(demo_driver.main(Demo, "Train a tool-using agent from random weights."))
