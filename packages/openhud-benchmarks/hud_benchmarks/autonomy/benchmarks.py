"""The benchmark `autonomy-10`: its categories, kinds and seeds. Reading this loads no environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hud.benchmarks.benchmark import OPENHUD, SPLITS, Benchmark, Family, Split
from hud_benchmarks.autonomy.applications import WEB, editor, files, spreadsheet
from hud_benchmarks.autonomy.category import Category
from hud_benchmarks.autonomy.web.application import web_category

if TYPE_CHECKING:
    from hud.agents import Agent
    from hud.environment import Task

SEEDS: dict[Split, range] = {"train": range(20), "held-out": range(1_000_000, 1_000_002)}
CATEGORIES: tuple[Category, ...] = (
    *map(web_category, WEB.values()),
    files.category(),
    editor.category(),
    spreadsheet.category(),
)


def family() -> Family:
    """Return the one benchmark."""
    kinds = sum(len(category.kinds) for category in CATEGORIES)
    needs = dict.fromkeys(program for category in CATEGORIES for program in category.needs)
    return Family(
        [
            Benchmark(
                name="autonomy-10",
                summary="long tasks in web applications, a shell and desktop programs, graded on the state left behind",
                package=OPENHUD,
                sizes={split: kinds * len(SEEDS[split]) for split in SPLITS},
                make_tasks=_tasks,
                make_oracle=_oracle,
                needs=f"{', '.join(needs)}: scripts/setup-worlds",
            )
        ]
    )


def _tasks(split: Split) -> list[Task]:
    tasks = []
    for category in CATEGORIES:
        for kind in category.kinds:
            for seed in SEEDS[split]:
                task = category.make_task(kind, seed)
                task.slug = f"{category.name}-{kind}-{seed}"
                task.columns = {
                    "category": category.name,
                    "kind": kind,
                    "scripted": kind in category.scripts,
                }
                tasks.append(task)
    return tasks


def _oracle() -> Agent:
    from hud_benchmarks.autonomy.oracle import oracle

    return oracle({category.name: category.scripts for category in CATEGORIES})
