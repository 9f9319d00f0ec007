"""`python -m hud_dashboard.launching.launched_process`: a training run or evaluation launched by the dashboard.

Protocol: the server writes one JSON object to standard input, then a line for each request to stop. The end of the
input is a request to stop as well, so that no process outlives its server. The process writes its progress to
standard output, one JSON object a line. Like `hud train`, it uses the platform of its environment variables.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

from hud import exact_json, settings
from hud.errors import HudError
from hud.eval import HostedRuntime, StopSignal, Taskset
from hud.eval.results.held_out_scores import Score
from hud.eval.tasksets.synchronization import task_of
from hud.train.monitoring.progress import Phase, Reporter
from hud.train.rollouts.runtimes import POLL_SECONDS

PROGRESS_SECONDS = 0.4
"""Minimum interval between two progress events of a phase, in seconds."""


class ProgressWriter(Reporter):
    """Writes progress events to the server, one JSON object a line."""

    def __init__(self, descriptor: int) -> None:
        self._out = descriptor
        self._phase: dict[str, Any] = {}
        self._reported = 0.0

    def write(self, event: str, **values: Any) -> None:
        """Write one line."""
        line = memoryview(exact_json.dumps({"event": event, **values}) + b"\n")
        try:
            while line:
                line = line[os.write(self._out, line) :]
        except BrokenPipeError:
            pass  # The server has exited: standard input has ended as well, which requests a stop.

    def started(self, run_id: str, first_step: int, steps: int) -> None:
        self.write("run", run_id=run_id, step=first_step, steps=steps)

    def phase(self, phase: Phase, step: int, total: int) -> None:
        self._phase = {"phase": phase, "step": step, "total": total, "done": 0}
        self.write("phase", **self._phase)

    def run_ended(self, reward: float | None) -> None:
        self._phase["done"] = self._phase.get("done", 0) + 1
        if time.monotonic() - self._reported > PROGRESS_SECONDS:
            self._reported = time.monotonic()
            self.write("phase", **self._phase)

    def stepped(self, step: int, metrics: dict[str, float]) -> None:
        self.write("step", step=step)

    def scored(self, score: Score) -> None:
        self.write("scored", step=score.step)

    def note(self, text: str) -> None:
        self.write("note", text=text)


async def train_launched(work: dict[str, Any], progress: ProgressWriter, stop: StopSignal) -> None:
    """Train with the configuration, tasks and held-out tasks of `work`."""
    from hud.train.config import TrainConfig
    from hud.train.loop import train

    async with _environments(work) as provider:
        report = await train(
            TrainConfig(**work["config"]),
            tasks=_tasks(work["tasks"]),
            held_out=[_tasks(source) for source in work["held_out"]],
            runtime=provider,
            reporter=progress,
            stop=stop,
            fresh=work["fresh"],
            override_guard=work["override_guard"],
        )
    if report.paused is not None:
        progress.note(report.paused.sentence)
    progress.write("ended", stopped=not report.finished)


async def evaluate_launched(
    work: dict[str, Any], progress: ProgressWriter, stop: StopSignal
) -> None:
    """Play the same tasks, on the same seeds, with each checkpoint in `work`."""
    from hud.train.config import TrainConfig
    from hud.train.promotion.checkpoint_comparison import play

    config = TrainConfig(**work["config"])
    tasks = _tasks(work["tasks"])
    total = len(tasks) * config.eval_group
    async with _environments(work) as provider:
        for checkpoint in work["checkpoints"]:
            if stop.stopping:
                break
            progress.phase("held-out", 0, total)
            await play(
                config,
                checkpoint,
                tasks,
                runtime=provider,
                reporter=progress,
                stop=stop,
                began=lambda job: progress.write("job", job_id=job.id),
            )
    progress.write("ended", stopped=stop.stopping)


@asynccontextmanager
async def _environments(work: dict[str, Any]) -> AsyncIterator[Any]:
    """Yield a provider that keeps the tasks' builds warm, or the platform's fleet; None for tasks of a file, which declare their
    environments."""
    if work["config"].get("runtime") == "hosted":
        yield HostedRuntime(poll_interval=POLL_SECONDS)
        return
    if not work["environments"]:
        yield None
        return
    from hud.fleet.environments import WarmEnvironments

    warm = WarmEnvironments()
    try:
        yield warm.provider({"problem": None, "environments": work["environments"]})
    finally:
        await warm.close()


def _tasks(source: dict[str, Any]) -> Taskset:
    if source["taskset_id"] is None:
        return Taskset.from_file(Path(source["name"]))
    rows = [task_of(row) for row in source["rows"]]
    return Taskset(source["name"], rows, taskset_id=source["taskset_id"])


async def _work(work: dict[str, Any], progress: ProgressWriter) -> None:
    stop = StopSignal()
    loop = asyncio.get_running_loop()
    # A daemon thread, not one of the event loop's executor: asyncio.run joins those, and this one blocks on stdin.
    Thread(target=_follow_stdin, args=(loop, stop), daemon=True).start()
    doing = train_launched if work["kind"] == "training" else evaluate_launched
    try:
        await doing(work, progress, stop)
    except HudError as error:
        progress.write("failed", sentence=str(error))


def _follow_stdin(loop: asyncio.AbstractEventLoop, stop: StopSignal) -> None:
    """Request a stop for each line of standard input and for its end."""
    while True:
        line = sys.stdin.buffer.readline()
        with suppress(RuntimeError):  # The event loop is closed.
            loop.call_soon_threadsafe(stop.request)
        if not line:
            return


def main() -> None:
    """Run the work described on standard input."""
    from hud.client import disconnect

    # Environments may print to standard output: progress goes to a copy of it, and file descriptor 1 to stderr.
    progress = ProgressWriter(os.dup(1))
    os.dup2(2, 1)
    work = exact_json.loads(sys.stdin.buffer.readline())
    status = 0
    try:
        asyncio.run(_work(work, progress))
        disconnect(settings.load().home)
    except Exception as error:
        progress.write("failed", sentence=f"{type(error).__name__}: {error}")
        status = 1
    os._exit(status)  # Threads of environments may still be running.


if __name__ == "__main__":
    main()
