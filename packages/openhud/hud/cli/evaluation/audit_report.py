"""Output of `hud audit`: rows of exploits as they end, the tasks' table, findings, and a job's best runs."""

from __future__ import annotations

import json
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hud.audit import Audit, AuditReport

SHOWN = 300
"""Maximum characters shown of an answer or a tool's result."""


class PhaseRows:
    """Table with a row for each exploit, printed when it was played on every task."""

    def __init__(self, audit: Audit) -> None:
        from hud.cli.output import Column, console, count, header

        self.columns = [
            Column("exploit", 10, right=False),
            *(Column(name, 7) for name in ("runs", "mean", "highest")),
        ]
        self.out = console()
        heading = f"{audit.tasks.name}: {count(len(audit.tasks), 'task')}, floor {audit.floor:g}"
        self.out.print(heading, markup=False)
        self.out.print(header(self.columns), markup=False)

    def ended(self, name: str, rewards: list[float]) -> None:
        """Print the row of an exploit that applies to any task."""
        from hud.cli.output import number, row

        if rewards:
            cells = [name, f"{len(rewards):,}", number(fmean(rewards)), number(max(rewards))]
            self.out.print(row(self.columns, cells), markup=False)


def print_report(report: AuditReport, limit: int) -> None:
    """Print the tasks with the highest rewards, the findings, and a summary line."""
    from hud.cli.output import console, count, lines_of, number, some

    out = console()
    labels = {task.slug: task.label for task in report.tasks}
    names = ["task", "highest", "exploit", "floor", "solved"]
    shown = [task for task in report.tasks if task.highest > 0][:limit]
    rows = [
        [
            task.label,
            number(task.highest),
            f"{task.exploit}{' (!)' if task.above else ''}",
            number(task.floor, 2),
            number(task.solved),
        ]
        for task in shown
    ]
    if rows:
        out.print()
        for line in lines_of(names, rows, left=["task", "exploit"], shrinks="task"):
            out.print(line, markup=False)
    for finding in report.findings:
        labels_of_finding = some([labels.get(slug, slug) for slug in finding.slugs], 3)
        out.print(f"{finding.kind}: {finding.sentence}: {labels_of_finding}", markup=False)
    for slug, reason in list(report.unmeasured.items())[:3]:
        out.print(f"not measured: {labels.get(slug, slug)}: {reason}", markup=False)
    if len(report.unmeasured) > 3:
        out.print(f"not measured: {len(report.unmeasured) - 3:,} more tasks; --json names them.")
    if not report.complete:
        out.print("Stopped: not every exploit was played.")
    out.print(
        f"Highest reward without the work: mean {number(report.mean)}, most {number(report.highest)}. "
        f"{len(report.above):,} of {count(len(report.tasks), 'task')} above the floor.",
        markup=False,
    )


async def show_top(reference: str, most: int, as_json: bool) -> None:
    """Print the runs of a job with the highest rewards: calls, answer, and the command for the whole trace."""
    from hud.cli.output import console, count, number, print_json
    from hud.cli.platform_requests import pages, recorded_job
    from hud.client import connect
    from hud.client.recorded_traces import full_traces

    job = await recorded_job(reference)
    runs = [run async for run in pages(f"/v2/jobs/{job['id']}/traces") if run["reward"] is not None]
    best = sorted(runs, key=lambda run: (-run["reward"], run["completion_tokens"]))[:most]
    trace_ids = [run["id"] for run in best]
    recorded = [row async for row in full_traces(connect(), trace_ids)]
    if as_json:
        print_json({"job": job["id"], "runs": recorded})
        return
    out = console()
    out.print(f"{job['name']}: the highest of {count(len(runs), 'reward')}", markup=False)
    for run, row in zip(best, recorded, strict=True):
        out.print(f"\n{run['slug']}  reward {number(run['reward'])}", markup=False)
        for line in _trajectory(row["trace"]):
            out.print(f"  {line}", markup=False)
        out.print(f"  hud trace {run['id'][:12]} --full", markup=False)


def _trajectory(recorded: dict[str, Any]) -> list[str]:
    """Return a line for the prompt, each tool call and the answer."""
    from hud.cli.output import fitted
    from hud.trace import ToolStep, parse_trace

    trace = parse_trace(recorded)
    lines = []
    for step in trace.steps:
        if step.source == "user":
            lines += [f"{message.role}: {message.text}" for message in step.messages]
        if isinstance(step, ToolStep) and step.call is not None:
            result = "" if step.result is None else step.result.text
            arguments = json.dumps(step.call.arguments, default=str)
            lines.append(f"{step.call.name} {fitted(arguments, SHOWN // 2)} -> {result}")
    lines.append(f"answer: {trace.content or ''}")
    return [fitted(" ".join(line.split()), SHOWN) for line in lines]
