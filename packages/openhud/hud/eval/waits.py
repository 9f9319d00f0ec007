"""Reports of waits: tool calls without a result, and the run for which an evaluation waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hud.eval.job import Job
    from hud.eval.run import Phase, Run

TOOL_SECONDS = 10.0
"""A tool call is reported after this time, and again whenever its time has tripled."""
QUIET_SECONDS = 30.0
"""Without a finished run for this time the oldest active one is reported, and again whenever the time has doubled."""
_LOOK_SECONDS = 1.0
_STATES: dict[Phase, str] = {
    "provision": "its environment is being brought up",
    "setup": "its task is being set up",
    "grade": "its answer is being graded",
    "over": "its environment is being taken down",
}
_log = logging.getLogger("hud.eval")


@dataclass(eq=False)
class PendingCall:
    """A tool call without a result."""

    tool: str
    began: float
    """On the monotonic clock, in seconds."""
    report_after: float = TOOL_SECONDS


class Waits:
    """Waits of the active runs; `look` reports those that are due to `say`.

    Without `say` tool calls alone are reported, in the log: one batch of several, as in training, is often silent for long.
    """

    def __init__(self, job: Job, say: Callable[[str], None] | None = None) -> None:
        self.job = job
        self.say = say if say is not None else _log.warning
        self.reports_silence = say is not None
        self.told_cure = False
        self.ended()

    def ended(self) -> None:
        """A run has ended: the silence begins anew."""
        self.quiet_since, self.quiet_for = monotonic(), QUIET_SECONDS

    @property
    def active(self) -> list[Run]:
        """The active runs, in their last attempts."""
        return [_last_attempt(run) for run in self.job.active]

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Report tool calls and a silence that are due now."""
        due = self._due_calls()
        for tool in dict.fromkeys(call.tool for _, call in due):
            self._report_tool([(run, call) for run, call in due if call.tool == tool])
        if due or not self.reports_silence or next(self._pending_calls(), None) is not None:
            return
        quiet = monotonic() - self.quiet_since
        if quiet >= self.quiet_for and self.active:
            self.quiet_for = 2 * quiet
            self.say(f"No run has ended for {quiet:.0f} s. {_oldest(self.active)}")

    def _pending_calls(self) -> Iterator[tuple[Run, PendingCall]]:
        """Yield the calls without a result of the active runs and of their subagents."""
        runs = self.active
        while runs:
            for run in runs:
                yield from ((run, call) for call in run.live.calls)
            runs = [child for run in runs for child in run.children if child.ended_at is None]

    def _due_calls(self) -> list[tuple[Run, PendingCall]]:
        due: list[tuple[Run, PendingCall]] = []
        for run, call in self._pending_calls():
            waited = monotonic() - call.began
            if waited >= call.report_after:
                call.report_after = 3 * waited
                due.append((run, call))
        return sorted(due, key=lambda pair: pair[1].began)

    def _report_tool(self, due: list[tuple[Run, PendingCall]]) -> None:
        run, call = due[0]
        waited = monotonic() - call.began
        cure = "" if self.told_cure else " --tool-timeout (tool_timeout=) bounds a call."
        self.told_cure = True
        self.say(
            f"{_name(run)} waits for its tool {call.tool} since {_clock(waited)}, {waited:.0f} s"
            f"{_more(len(due))}.{cure}"
        )


def _oldest(active: Collection[Run]) -> str:
    """Return the state of the run that has been active for longest."""
    run = min(active, key=lambda active_run: active_run.started_at)
    turns = run.trace.usage.llm_call_count
    state = _STATES.get(run.live.phase, f"turn {turns + 1} of its agent")
    if run.runtime == "hosted":
        state = "on the platform"
    last = run.trace.steps[-1].ended_at if run.trace.steps else None
    since = (last or run.started_at).astimezone()
    others = len(active) - 1
    return f"Waiting for {_name(run)}: {state}, since {since:%H:%M:%S}{_more(others + 1)}."


def _last_attempt(run: Run) -> Run:
    while run.live.repetition is not None:
        run = run.live.repetition
    return run


def _name(run: Run) -> str:
    return f"{run.task.label} #{run.attempt}"


def _more(count: int) -> str:
    return f", and {count - 1} more runs" if count > 2 else ", and 1 more run" if count == 2 else ""


def _clock(ago: float) -> str:
    """Return the time of day `ago` seconds before now."""
    return f"{datetime.fromtimestamp(datetime.now().timestamp() - ago):%H:%M:%S}"
