"""A tiny policy learns to play mini-swe-agent, a program that knows nothing of its training, and proves it on unseen errands.

    python examples/errands/demo.py --folder .demo-program      or: make demo-program

1. An apprentice, a script that works badly, writes runs in the program's own form.
2. A tiny transformer is made, its tokenizer learned from those runs.
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
from hud.train.supervised.corpus import texts_of_messages
from hud.train.supervised.recorded_runs import conversation_of
from hud_integrations.programs.mini_swe_agent import MiniSWEAgentConfig

SIZES = {"vocab_size": 1024, "hidden": 128, "layers": 3, "max_context": 1024}
IMITATED_RUNS = 2400
SPOKEN_RUNS = 200
"""Runs whose words the tokenizer is learned from."""
WARM_UP = {"epochs": 1, "batch": 8, "lr": 2e-3}
GRPO: dict[str, Any] = {
    **demo_driver.GRPO,
    "agent": "mini-swe-agent",
    "agent_settings": {"arguments": list(OPTIONS)},
    "tasks_per_step": 2,
    "lr": 1e-3,
    "lr_floor": 0.3,
    "warmup_steps": 1,
    "dynamic_sampling": 0,
    "max_tokens": 48,
    "max_turns": 3,
    "max_concurrent": 8,
    "eval_every": 0,
    "eval_group": 3,
    "keep": 2,
}


class Demo(demo_driver.Demo):
    """Errands with files, done by a program with a tiny policy."""

    here = Path(__file__).parent
    policy, teacher = "errands", "errands-apprentice"
    headings = (
        "An apprentice writes runs in the program's form, badly",
        "A tiny policy: random weights, a tokenizer from what was said",
        "Warm-up: it learns to imitate the apprentice",
        "GRPO on the program's runs, judged on errands it never trains on",
    )
    unseen = "errands"
    default_steps = 12
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
        spoken = [conversation_of(run.trace) for run in self.runs[:SPOKEN_RUNS]]
        texts = [text for messages in spoken for text in texts_of_messages(messages)]
        body = {"name": self.teacher, "texts": texts, "seed": self.progress.seed, "sizes": SIZES}
        made = await connect().post("/v2/models/create", body)
        self.say.line(f"{made['model_name']}, {SIZES['layers']} layers of {SIZES['hidden']}")


if __name__ == "__main__":
    sys.exit(demo_driver.main(Demo, "Train a policy through a program that people ship."))
