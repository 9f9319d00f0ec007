"""`python -m hud.platform.training.launched_process`: a training run or an evaluation that was launched from the dashboard.

The server that starts it writes one JSON object to its standard input, then a line for each request to stop; the end of
the input is one, too, so that nothing goes on when the server is gone. On its standard output it tells how it goes, a
JSON object a line. It asks the platform that its environment variables name, as `hud train` does.
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

import orjson

from hud import settings
from hud.errors import HudError
from hud.eval import HostedRuntime, StopSignal, Taskset
from hud.eval.tasksets.synchronization import task_of
from hud.train.monitoring.progress import Phase, Reporter, Score
from hud.train.rollouts.runtimes import POLL_SECONDS

TOLD_SECONDS = 0.4
"""Between two words about how many rollouts have been played."""


class Teller(Reporter):
    """Sends the progress to the server, one line an event."""

    def __init__(self, descriptor: int) -> None:
        self._out = descriptor
        self._phase: dict[str, Any] = {}
        self._told = 0.0

    def tell(self, event: str, **values: Any) -> None:
        """Write one line."""
        line = memoryview(orjson.dumps({"event": event, **values}) + b"\n")
        try:
            while line:
                line = line[os.write(self._out, line) :]
        except BrokenPipeError:
            pass  # The server is gone; the input has ended as well, and everything stops in order.

    def started(self, run_id: str, first_step: int, steps: int) -> None:
        self.tell("run", run_id=run_id, step=first_step, steps=steps)

    def phase(self, phase: Phase, step: int, total: int) -> None:
        self._phase = {"phase": phase, "step": step, "total": total, "done": 0}
        self.tell("phase", **self._phase)

    def run_ended(self, reward: float | None) -> None:
        self._phase["done"] = self._phase.get("done", 0) + 1
        if time.monotonic() - self._told > TOLD_SECONDS:
            self._told = time.monotonic()
            self.tell("phase", **self._phase)

    def stepped(self, step: int, metrics: dict[str, float]) -> None:
        self.tell("step", step=step)

    def scored(self, score: Score) -> None:
        self.tell("scored", step=score.step)

    def note(self, text: str) -> None:
        self.tell("note", text=text)


async def train_launched(work: dict[str, Any], teller: Teller, stop: StopSignal) -> None:
    """Train as `work` says: a configuration, tasks, and perhaps tasks that are held out."""
    from hud.train.config import TrainConfig
    from hud.train.loop import train

    async with _environments(work) as provider:
        report = await train(
            TrainConfig(**work["config"]),
            tasks=_tasks(work["tasks"]),
            held_out=[_tasks(one) for one in work["held_out"]],
            runtime=provider,
            reporter=teller,
            stop=stop,
            fresh=work["fresh"],
            override_guard=work["override_guard"],
        )
    if report.paused is not None:
        teller.note(report.paused.sentence)
    teller.tell("ended", stopped=not report.finished)


async def evaluate_launched(work: dict[str, Any], teller: Teller, stop: StopSignal) -> None:
    """Play the same tasks, on the same seeds, with each checkpoint that `work` names."""
    from hud.train.config import TrainConfig
    from hud.train.monitoring.scoring import play

    config = TrainConfig(**work["config"])
    tasks = _tasks(work["tasks"])
    total = len(tasks) * config.eval_group
    async with _environments(work) as provider:
        for checkpoint in work["checkpoints"]:
            if stop.stopping:
                break
            teller.phase("held-out", 0, total)
            await play(
                config,
                checkpoint,
                tasks,
                runtime=provider,
                reporter=teller,
                stop=stop,
                began=lambda job: teller.tell("job", job_id=job.id),
            )
    teller.tell("ended", stopped=stop.stopping)


@asynccontextmanager
async def _environments(work: dict[str, Any]) -> AsyncIterator[Any]:
    """Yield the provider of the builds that tasks live in, kept warm, or the platform's fleet; None for tasks of a file, which bring theirs along."""
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


def _tasks(given: dict[str, Any]) -> Taskset:
    if given["taskset_id"] is None:
        return Taskset.from_file(Path(given["name"]))
    rows = [task_of(row) for row in given["rows"]]
    return Taskset(given["name"], rows, taskset_id=given["taskset_id"])


async def _work(work: dict[str, Any], teller: Teller) -> None:
    stop = StopSignal()
    loop = asyncio.get_running_loop()
    # Not one of the loop's own threads: those are waited for at its end, and this one never ends by itself.
    Thread(target=_follow_stdin, args=(loop, stop), daemon=True).start()
    doing = train_launched if work["kind"] == "training" else evaluate_launched
    try:
        await doing(work, teller, stop)
    except HudError as error:
        teller.tell("failed", sentence=str(error))


def _follow_stdin(loop: asyncio.AbstractEventLoop, stop: StopSignal) -> None:
    """Hear requests to stop: one for each line, and one for the end."""
    while True:
        line = sys.stdin.buffer.readline()
        with suppress(RuntimeError):  # The work is over.
            loop.call_soon_threadsafe(stop.request)
        if not line:
            return


def main() -> None:
    """Do what standard input says."""
    from hud.client import disconnect

    # Environments of the tasks may print: what the server reads is ours alone.
    teller = Teller(os.dup(1))
    os.dup2(2, 1)
    work = orjson.loads(sys.stdin.buffer.readline())
    status = 0
    try:
        asyncio.run(_work(work, teller))
        disconnect(settings.load().home)
    except Exception as error:
        teller.tell("failed", sentence=f"{type(error).__name__}: {error}")
        status = 1
    os._exit(status)  # Environments may have left threads behind.


if __name__ == "__main__":
    main()
