"""The benchmark `bfcl-multi-turn` and its splits. Reading this loads no package.

The package's four categories are variants of the same 200 scenarios. A split holds whole scenarios, in all their
variants; scenarios that share a world are on one side as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hud.benchmarks.benchmark import SPLITS, Benchmark, Family, Package, Split

if TYPE_CHECKING:
    from hud.agents import Agent
    from hud.environment import Task

PACKAGE = Package(
    "bfcl-eval",
    "2026.3.23",
    "Apache-2.0",
    bare=True,  # Its dependencies pin numpy 1.26 and bring every provider's client, faiss and sentence-transformers.
    beside=("mpmath>=1.3,<1.4",),
)

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
SCENARIOS = 200
LEFT_OUT = {
    "multi_turn_miss_func_49": "its solution calls `tail` two turns before the user makes it available"
}
"""Entries of the package that are no tasks, and why."""
NUMBERS_DO_NOT_MATTER = {35: "its only number is how many lines are shown of a file that has one"}
"""Scenarios whose solution is right with other numbers as well, and why."""
STEPS_A_TURN = 20
"""Model calls for each message of the user, as in the package's own inference."""


def scenarios(split: Split) -> list[int]:
    """Return the scenarios of a split: every fourth one is held out."""
    return [number for number in range(SCENARIOS) if (number % 4 == 3) == (split == "held-out")]


def entries(split: Split) -> list[tuple[str, str]]:
    """Return the entries of a split, each as its category and its id."""
    pairs = (
        (category, f"multi_turn_{category}_{number}")
        for category in CATEGORIES
        for number in scenarios(split)
    )
    return [(category, entry) for category, entry in pairs if entry not in LEFT_OUT]


def family() -> Family:
    """Return the one benchmark."""
    return Family(
        [
            Benchmark(
                name="bfcl-multi-turn",
                summary="a user's requests, turn by turn, over 8 stateful APIs",
                package=PACKAGE,
                sizes={split: len(entries(split)) for split in SPLITS},
                make_tasks=_tasks,
                make_oracle=_oracle,
            )
        ],
        baseline=Path(__file__).with_name("baseline.json"),
    )


def _tasks(split: Split) -> list[Task]:
    from hud_benchmarks.bfcl.dialogues import dialogue
    from hud_benchmarks.bfcl.environment import conversation

    tasks = []
    for category, entry in entries(split):
        task = conversation(entry=entry)
        task.slug = entry
        talk = dialogue(entry)
        task.agent_config = {"max_steps": STEPS_A_TURN * len(talk.turns)}
        task.columns = {"category": category, "apis": ", ".join(sorted(talk.apis))}
        why = NUMBERS_DO_NOT_MATTER.get(int(entry.rpartition("_")[2]))
        if why is not None:
            task.columns["audit:values"] = why
        tasks.append(task)
    return tasks


def _oracle() -> Agent:
    from hud_benchmarks.bfcl.oracle import oracle

    return oracle
