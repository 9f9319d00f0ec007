"""The benchmark `sheetbench-50`: its tasks by kind and seed. Reading this loads no workbook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hud.benchmarks.benchmark import Benchmark, Family, Package, Split

if TYPE_CHECKING:
    from hud.agents import Agent
    from hud.environment import Task

PACKAGE = Package("openpyxl", "3.1.5", "MIT")
"""It ships no tasks: it makes the workbooks, at the version that the figures hold for."""
TRAIN_SEEDS = range(20)
FIRST_HELD_OUT = 1_000_000
SIZES: dict[Split, int] = {"train": 500, "held-out": 50}
"""25 kinds with 20 seeds each; 29, 16 and 5 tasks of preparation, derivation and modelling."""

FORMULAS_BUT_FOR_ONE_NUMBER = ("errors",)
"""Kinds whose solution is formulas and one number: with another number, the formulas are still right."""


def family() -> Family:
    """Return the one benchmark."""
    return Family(
        [
            Benchmark(
                name="sheetbench-50",
                summary="spreadsheet work in workbooks: preparation, derivation and modelling, with live formulas",
                package=PACKAGE,
                sizes=SIZES,
                make_tasks=_tasks,
                make_oracle=_oracle,
                needs="LibreOffice Calc with its Python bindings, bubblewrap: scripts/setup-worlds",
            )
        ]
    )


def _tasks(split: Split) -> list[Task]:
    from hud_benchmarks.sheetbench.environment import book
    from hud_benchmarks.sheetbench.kinds import CATEGORIES

    tasks = []
    for category, kinds in CATEGORIES.items():
        for kind in kinds:
            held_out = range(FIRST_HELD_OUT, FIRST_HELD_OUT + kind.held_out)
            for seed in TRAIN_SEEDS if split == "train" else held_out:
                task = book(kind=kind.name, seed=seed)
                task.slug = f"{kind.name}-{seed}"
                task.columns = {"category": category, "kind": kind.name, "band": kind.band}
                if kind.name in FORMULAS_BUT_FOR_ONE_NUMBER:
                    why = "its formulas are right whatever the one number of the solution is"
                    task.columns["audit:values"] = why
                tasks.append(task)
    return tasks


def _oracle() -> Agent:
    from hud_benchmarks.sheetbench.oracle import oracle

    return oracle
