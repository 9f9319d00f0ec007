"""Flat against hierarchical on the same incidents: the difference of each pair, with its interval.

    python -m hud_benchmarks.incident_lab.compare oracle team
    python -m hud_benchmarks.incident_lab.compare MODEL MODEL --group 4

The first plays alone, the second leads specialists: `oracle` or `novice` and `team` or `novice-team` (scripts), models by
their slugs, or agents as `hud eval` takes them. A lead's model plays its specialists too, unless `--specialists` names another.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from hud.agents import Agent, create_agent
from hud.cli.evaluation.player import player
from hud.errors import UsageError
from hud.eval import Job, LocalRuntime, Run
from hud.eval.results.intervals import with_interval
from hud.eval.results.paired_differences import pair
from hud_benchmarks.incident_lab import flat, hierarchical, players

AREAS = ("errors", "metrics", "database", "changes", "queue", "containers")
SCRIPTS: dict[str, Agent] = {
    "oracle": players.oracle,
    "team": players.team,
    "novice": players.novice,
    "novice-team": players.novice_team,
}
"""The lab's own scripts."""


@dataclass(frozen=True)
class Side:
    """One way to work, over all incidents."""

    reward: float
    solved: float
    """Share of runs with the whole finding."""
    turns: float
    """Model calls of a run, its specialists' included."""
    prompt_tokens: float
    """Of a run, its specialists' included; 0 where the model counts none."""
    completion_tokens: float


@dataclass(frozen=True)
class Pairs:
    """The same incidents, both ways."""

    incidents: int
    runs: int
    flat: Side
    hierarchical: Side
    difference: float
    """Hierarchical minus flat, mean over incidents."""
    low: float | None
    high: float | None
    """95% interval over incidents, as in promotions; None with too few."""
    better: int
    worse: int
    specialists: dict[str, float]
    """Mean reward of the specialists' own reports, by area."""


def paired(flat: list[Run], hierarchical: list[Run]) -> Pairs:
    """Return the comparison of two jobs of the same incidents; runs that were not measured leave their pair out.

    Raises `UsageError` where no incident was measured both ways.
    """
    pairing = pair(_by_incident(flat), _by_incident(hierarchical))
    overall = pairing.overall
    if overall is None:
        raise UsageError("No incident was measured both ways; hud jobs shows why.")
    reports = [child for run in hierarchical for child in run.children]
    return Pairs(
        incidents=overall.tasks,
        runs=len(flat) + len(hierarchical),
        flat=_side(flat),
        hierarchical=_side(hierarchical),
        difference=overall.mean,
        low=overall.low,
        high=overall.high,
        better=pairing.counts["better"],
        worse=pairing.counts["worse"],
        specialists={
            area: round(fmean(rewards), 4)
            for area in AREAS
            if (
                rewards := [r.reward for r in reports if r.task.id == area and r.reward is not None]
            )
        },
    )


async def compare(first: Agent, second: Agent, group: int = 1, concurrent: int = 8) -> Pairs:
    """Play all incidents both ways."""
    played = []
    ways = (("flat", flat.tasks, first), ("hierarchical", hierarchical.tasks, second))
    for name, tasks, agent in ways:
        job = await Job.start(f"incident lab, {name}", group=group)
        await tasks.run(agent, runtime=LocalRuntime(), job=job, max_concurrent=concurrent)
        await job.finish()
        played.append(job.runs)
    return paired(*played)


def _by_incident(runs: list[Run]) -> dict[str, list[float]]:
    rewards: dict[str, list[float]] = {}
    for run in runs:
        if run.reward is not None:
            rewards.setdefault(run.slug, []).append(run.reward)
    return rewards


def _side(runs: list[Run]) -> Side:
    measured = [run.reward for run in runs if run.reward is not None]
    spent = [_spent(run) for run in runs]
    return Side(
        reward=fmean(measured),
        solved=fmean(reward == 1.0 for reward in measured),
        turns=fmean(turns for turns, _, _ in spent),
        prompt_tokens=fmean(prompt for _, prompt, _ in spent),
        completion_tokens=fmean(completion for _, _, completion in spent),
    )


def _spent(run: Run) -> tuple[int, int, int]:
    steps = [step for step in run.trace.steps if step.source == "agent"]
    usage = run.trace.usage
    turns, prompt, completion = len(steps), usage.prompt_tokens, usage.completion_tokens
    for child in run.children:
        child_turns, child_prompt, child_completion = _spent(child)
        turns += child_turns
        prompt += child_prompt
        completion += child_completion
    return turns, prompt, completion


def report(pairs: Pairs) -> str:
    """Return the comparison in words."""
    lines = [f"{pairs.incidents} incidents, {pairs.runs} runs"]
    for name in ("flat", "hierarchical"):
        side: Side = getattr(pairs, name)
        lines.append(
            f"{name:13} reward {side.reward:.3f}  solved {side.solved:.0%}  {side.turns:.1f} turns  "
            f"{side.prompt_tokens:.0f} + {side.completion_tokens:.0f} tokens a run"
        )
    lines.append(
        f"hierarchical minus flat: {with_interval(pairs.difference, pairs.low, pairs.high, signed=True)}  "
        f"(better on {pairs.better} incidents, worse on {pairs.worse})"
    )
    if pairs.specialists:
        means = ", ".join(f"{area} {mean:.2f}" for area, mean in pairs.specialists.items())
        lines.append(f"specialists' own rewards: {means}")
    return "\n".join(lines)


def playing(name: str) -> Agent:
    """Return the lab's own script of a name, or the agent that `hud eval` would play with."""
    return SCRIPTS[name] if name in SCRIPTS else player(name, None, {})


def main() -> int:
    """Read the command line and compare."""
    parser = argparse.ArgumentParser(description="Flat against hierarchical, pair by pair.")
    parser.add_argument("flat", help="plays alone: oracle, novice, a model, or path.py:agent")
    parser.add_argument("hierarchical", help="leads: team, novice-team, a model, or path.py:agent")
    parser.add_argument("--specialists", help="the model of all specialists (default: the lead's)")
    parser.add_argument("--group", type=int, default=1, help="runs of each incident")
    parser.add_argument("--max-concurrent", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    lead: Any = playing(options.hierarchical)
    if options.specialists:
        lead.subagents = dict.fromkeys(AREAS, create_agent(options.specialists))
    pairs = asyncio.run(compare(playing(options.flat), lead, options.group, options.max_concurrent))
    print(json.dumps(asdict(pairs), indent=1) if options.json else report(pairs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
