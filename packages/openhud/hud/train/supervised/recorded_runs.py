"""Recorded runs as examples: conversation, tools and reward.

From runs of this process, or from a job of the platform. Works on traces and conversations; independent of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hud.client import Client
from hud.client.recorded_traces import full_traces
from hud.environment.templates.task_identity import TaskIdentity
from hud.eval.results.failure_causes import FailedRun
from hud.exchange.supervision import PAIR, TOOL_SPECS
from hud.trace import (
    ToolSpec,
    Trace,
    parse_trace,
)
from hud.train.monitoring.progress import Reporter

if TYPE_CHECKING:
    from hud.eval.run import Run
    from hud.eval.tasksets.taskset import Taskset

_PAGE = 500


@dataclass(frozen=True)
class Example:
    """A recorded run as a training example."""

    trace: Trace
    tools: list[ToolSpec]
    reward: float | None
    task: TaskIdentity | None
    """Its task; None: its task is not on record."""
    failed: FailedRun | None = None
    """Failure kind of a failed run."""
    imported: bool = False
    """True for a run of another system: its conversation is learned from without a reward, too."""
    may_train: bool = True
    """False: excluded by the policy of its source."""
    pair: str | None = None
    """Pair of a data set of preferences that it is one run of."""


def examples_of(runs: Sequence[Run]) -> list[Example]:
    """Return runs of this process as examples."""
    return [
        Example(
            run.trace,
            list(run.tools),
            run.reward,
            run.task.identity,
            _failed(run.failure_kind, run.error, run.slug, run.trace_id),
        )
        for run in runs
    ]


async def recorded_examples(
    client: Client,
    trace_ids: Sequence[str],
    tasks: Taskset | None = None,
    reporter: Reporter | None = None,
) -> list[Example]:
    """Load runs from the platform; their tools are their own, else those of the environments of `tasks`."""
    reporter = reporter or Reporter()
    tools = await _tools_of(tasks)
    examples: list[Example] = []
    reporter.phase("examples", 0, len(trace_ids))
    async for full in full_traces(client, trace_ids):
        run, trace = full["run"], parse_trace(full["trace"])
        task = run.get("task") or {}
        extra = run["extra"] or {}
        own = [ToolSpec.model_validate(tool) for tool in extra.get(TOOL_SPECS, ())]
        examples.append(
            Example(
                trace,
                own or tools.get(task.get("env", ""), []),
                run["reward"],
                TaskIdentity.recorded(task) if task else None,
                _failed(run["failure_kind"], run["error"], run["slug"] or "", run["trace_id"]),
                run["source"] is not None,
                run["may_train"] is not False,
                extra.get(PAIR),
            )
        )
        reporter.run_ended(run["reward"])
    return examples


async def runs_of_job(client: Client, job: str) -> list[str]:
    """Return the trace ids of a job's runs, in order. Raises `NotFoundError` without such a job."""
    trace_ids: list[str] = []
    while True:
        parameters = {"limit": _PAGE, "offset": len(trace_ids)}
        page = await client.get(f"/v2/jobs/{job}/traces", params=parameters)
        trace_ids += [row["trace_id"] for row in page["items"]]
        if not page["items"] or len(trace_ids) >= page["total"]:
            return trace_ids


def _failed(kind: str | None, error: str | None, slug: str, trace_id: str) -> FailedRun | None:
    return None if kind is None else FailedRun(kind, error, slug, trace_id)


async def _tools_of(tasks: Taskset | None) -> dict[str, list[ToolSpec]]:
    """Return the tools of each of the tasks' environments."""
    tools: dict[str, list[ToolSpec]] = {}
    for task in tasks or ():
        if task.env not in tools and task.environment is not None:
            async with task.environment.run() as world:
                tools[task.env] = await world.list_tools()
    return tools
