"""Playing benchmarks as their users do, without a store."""

from __future__ import annotations

import pytest

from hud.agents.scripted import NOTHING
from hud.benchmarks import Benchmark, benchmark
from hud.eval import NullRecorder

__all__ = ["NOTHING", "installed", "rewards"]


def installed(name: str) -> Benchmark:
    """Return a benchmark; skips where its package is missing."""
    found = benchmark(name)
    if found.package.installed != found.package.version:
        pytest.skip(f"hud benchmarks install {name}")
    return found


async def rewards(tasks, agent, **options):
    """Rewards of an agent, by task; a run that was not measured is told by its error."""
    job = await tasks.run(agent, recorder=NullRecorder(), **options)
    return {run.slug: run.error or run.reward for run in job.runs}
