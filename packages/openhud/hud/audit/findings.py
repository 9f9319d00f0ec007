"""Findings besides rewards: constant and unstable graders, leaked answers, tools that reach too far, repeated tasks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hud.audit.knowledge import Knowledge
from hud.audit.report import Finding, constant
from hud.audit.turns import notes_of
from hud.eval.results.job_statistics import rewards_by_task
from hud.eval.results.task_signal import near_duplicates
from hud.graders.group_signal import has_signal
from hud.trace import ToolStep

if TYPE_CHECKING:
    from hud.eval import Run, Taskset
    from hud.eval.results.run_summary import RunSummary

KEPT = 20_000
"""Characters of a tool's result that are kept."""


@dataclass
class Observed:
    """Observations of one task's runs."""

    solved: float | None = None
    """Reward of the agent that does the work."""
    prompt: str = ""
    blind: dict[str, str] = field(default_factory=dict)
    """Results of calls that knew nothing of the task, by tool."""
    reached: list[str] = field(default_factory=list)
    replayed: float | None = None
    unequal: tuple[float, float] | None = None
    """Two rewards of the same answer and calls."""

    @property
    def unlike_solved(self) -> bool:
        """True where the solution, played again, earned another reward than at first."""
        return self.replayed is not None and self.replayed != self.solved

    def compare(self, first: float | None, second: float | None) -> None:
        """Keep two rewards of the same answer and calls where they differ."""
        if first is not None and second is not None and first != second:
            self.unequal = (first, second)

    def take(self, name: str, run: Run) -> None:
        """Keep what a run of the exploit `name` showed."""
        notes = notes_of(run)
        self.prompt = self.prompt or run.prompt_text
        self.reached = self.reached or notes.reached
        if name != "calls":
            return
        for step in run.trace.steps:
            if not isinstance(step, ToolStep) or step.call is None or step.result is None:
                continue
            if step.call.id in notes.blind:
                self.blind.setdefault(step.call.name, step.result.text[:KEPT])


def findings_of(
    tasks: Taskset,
    observed: Mapping[str, Observed],
    rewards: Mapping[str, Mapping[str, float]],
    knowledge: Knowledge,
) -> list[Finding]:
    """Return what a person should look at, one finding for each kind and reason."""
    slugs_by_finding: dict[tuple[str, str], list[str]] = {}

    def add(kind: str, reason: str, slug: str) -> None:
        slugs_by_finding.setdefault((kind, reason), []).append(slug)

    for slug, seen in observed.items():
        earned = list(rewards[slug].values())
        if constant(earned, seen.solved):
            add("constant grader", f"every run earned {earned[0]:g}", slug)
        if seen.solved is not None and seen.solved < 1.0:
            add("unsolved", "the agent that does the work earned less than 1", slug)
        if seen.unequal is not None:
            first, second = seen.unequal
            add("unstable grader", f"the same run earned {first:g} and {second:g}", slug)
        for place in _leaks(slug, seen, knowledge):
            add("leaked answer", place, slug)
        for what in seen.reached:
            add("reach", f"a tool shows the {what}", slug)
    for slug, first_slug in near_duplicates(
        {slug: task.model_dump() for slug, task in tasks.items()}
    ).items():
        add("near-duplicate", f"nearly {first_slug}", slug)
    return [
        Finding(kind, reason, tuple(slugs)) for (kind, reason), slugs in slugs_by_finding.items()
    ]


def without_signal(tasks: Taskset, runs: Sequence[RunSummary]) -> list[Finding]:
    """Return the tasks for which every recorded run earned the same reward, by model."""
    models = dict.fromkeys(run.model for run in runs)
    findings = []
    for model in models:
        played = [run for run in runs if run.model == model and run.slug in tasks]
        rewards = rewards_by_task(played)
        flat = [
            slug for slug, earned in rewards.items() if len(earned) > 1 and not has_signal(earned)
        ]
        if flat:
            findings.append(Finding("no signal", f"{model} always earns the same", tuple(flat)))
    return findings


def declared_exceptions(reasons: Mapping[str, Mapping[str, str]]) -> list[Finding]:
    """Return the exploits that tasks declare to be none; `reasons` are by task and exploit."""
    slugs_by_reason: dict[str, list[str]] = {}
    for slug, of in reasons.items():
        for exploit, reason in of.items():
            slugs_by_reason.setdefault(f"{exploit} is no exploit: {reason}", []).append(slug)
    return [Finding("declared", reason, tuple(slugs)) for reason, slugs in slugs_by_reason.items()]


def _leaks(slug: str, seen: Observed, knowledge: Knowledge) -> list[str]:
    """Return where a task's correct answer stands before any work was done."""
    solution = knowledge.solutions.get(slug)
    answer = "" if solution is None else solution.answer.strip()
    if len(answer) < 3:
        return []  # So short a text stands in many places by chance.
    if _stands(answer, seen.prompt):
        options = [option for option in knowledge.answers(slug) if option.strip() != answer]
        offered = any(
            len(option.strip()) >= 2 and _stands(option.strip(), seen.prompt) for option in options
        )
        return [] if offered else ["it stands in the prompt"]
    return [
        f"it stands in the result of {tool}, called with any arguments"
        for tool, text in seen.blind.items()
        if _stands(answer, text)
    ]


def _stands(answer: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text) is not None
