"""The benchmark `terminal-12`. Reading this reads no task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hud.benchmarks.benchmark import OPENHUD, Benchmark, Family, Split

if TYPE_CHECKING:
    from hud.agents import Agent
    from hud.environment import Task


def family() -> Family:
    """Return the one benchmark."""
    return Family(
        [
            Benchmark(
                name="terminal-12",
                summary="work at a shell, in Harbor's format: builds, repairs, data, a history, a service, an incident",
                package=OPENHUD,
                sizes={"train": 0, "held-out": 12},
                make_tasks=_tasks,
                make_oracle=_oracle,
                needs="bubblewrap: scripts/setup-worlds; gcc, make, git and /usr/bin/python3 of the machine",
            )
        ]
    )


def _tasks(_split: Split) -> list[Task]:
    from hud_benchmarks.terminal.environment import env

    return env.all_tasks()


def _oracle() -> Agent:
    from hud.agents import ScriptedAgent
    from hud_benchmarks.terminal.environment import env

    return ScriptedAgent(env.oracle)
