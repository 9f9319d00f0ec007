"""A pretrained language model learns through mini-swe-agent, a program that knows nothing of its training, and proves it on unseen errands.

    python examples/errands/demo.py --folder .demo-program      or: make demo-program

1. An apprentice, a script that works badly, writes runs in the program's own form.
2. SmolLM2-135M-Instruct is fetched with pip, and gets an adapter.
3. It learns to imitate the apprentice: the form of a command, and every bad habit.
4. GRPO trains it on the runs that the program plays with it in sandboxes, with a score on held-out errands before and after.

Everything it makes is in the folder. Stop it when you like: the same command goes on where it stopped.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from apprentice import OPTIONS, apprentice_run, form_of_program

import demo_driver
from demo_driver import Progress
from hud.agents import ScriptedAgent
from hud.agents.programs.program_agent import installed
from hud.client import connect
from hud_integrations.programs.mini_swe_agent import MiniSWEAgentConfig

BASE = "smollm2-135m-instruct"
ADAPTER = {"training": "lora", "lora_rank": 16, "tool_call_parser": "pythonic"}
IMITATED_RUNS = 192
"""Runs of the apprentice to learn from."""
WARM_UP = {"epochs": 1, "batch": 8, "lr": 1e-3}
GRPO: dict[str, Any] = {
    **demo_driver.GRPO,
    "agent": "mini-swe-agent",
    "agent_settings": {"arguments": list(OPTIONS)},
    "tasks_per_step": 4,
    "lr": 1e-4,
    "lr_floor": 0.2,
    "warmup_steps": 2,
    "dynamic_sampling": 0,
    "max_tokens": 48,
    "max_turns": 3,
    "max_concurrent": 8,
    "eval_every": 0,
    "eval_group": 2,
    "keep": 1,
}


class Demo(demo_driver.Demo):
    """Errands with files, done by a program with a pretrained model."""

    here = Path(__file__).parent
    policy, teacher = "errands", "errands-apprentice"
    headings = (
        "An apprentice writes runs in the program's form, badly",
        "A pretrained language model, and an adapter to train",
        "Warm-up: it learns to imitate the apprentice",
        "GRPO on the program's runs, judged on errands it never trains on",
    )
    unseen = "errands"
    default_steps = 10
    folder_name = ".demo-program"

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress, imitated_runs=IMITATED_RUNS, warm_up=WARM_UP, grpo=GRPO)
        installed(MiniSWEAgentConfig.recipe)

    def apprentice(self) -> ScriptedAgent:
        raise NotImplementedError("the apprentice's runs are written, not played")

    async def record_apprentice(self) -> None:
        """Write the apprentice's runs."""
        rng = random.Random(self.progress.seed)
        form = form_of_program()
        tasks = list(self.tasks)
        self.runs = [
            apprentice_run(rng.choice(tasks), form, rng) for _ in range(self.imitated_runs)
        ]
        self.say.line(f"{len(self.runs)} runs in the form of mini-swe-agent")

    async def make_teacher(self) -> None:
        client = connect()
        if BASE not in await demo_driver.slugs_of_models():
            await client.post("/v2/models/add", {"source": BASE, "name": BASE})
        body = {"source_model_id": BASE, "name": self.teacher, "config": ADAPTER}
        made = await client.post("/v2/models/fork", body)
        self.say.line(f"{made['model_name']}, a fork of {BASE} with an adapter of rank 16")


if __name__ == "__main__":
    sys.exit(demo_driver.main(Demo, "Train a policy through a program that people ship."))
