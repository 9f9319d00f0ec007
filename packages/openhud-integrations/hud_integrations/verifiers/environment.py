"""`VerifiersEnvironment`: a taskset of verifiers as an environment, loaded and graded in a process that has verifiers."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from hud.environment import Environment, Task
from hud.errors import GraderFault, UsageError
from hud.exchange.left_out import LeftOut
from hud.graders import EvaluationResult
from hud.trace import Message
from hud_integrations.verifiers.grading_process import GradingProcess


class VerifiersEnvironment(Environment):
    """A taskset of verifiers: template `task`, whose reward is the weighted sum of the task's own rewards."""

    def __init__(
        self,
        taskset: str,
        *,
        python: str = sys.executable,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        returns: tuple[float, float] = (0.0, 1.0),
        most: int = 1000,
    ) -> None:
        """`taskset`: the id of an installed taskset, or of a module next to the calling file.

        `python`: the interpreter that has verifiers. `config`: the taskset's settings. `returns`: the sums of rewards that
        are worth 0 and 1; the reward of a run is linear between them and clamped. `most`: the tasks that are read, of a
        taskset that may have no end. Raises `UsageError` for a taskset that cannot be loaded, or has no task that can be
        played.
        """
        super().__init__(name or taskset.replace("_", "-").rpartition("/")[2])
        self.source_file = sys._getframe(1).f_code.co_filename
        if not returns[0] < returns[1]:
            raise UsageError(f"returns must be (worst, best) with worst below best, not {returns}.")
        self._returns = returns
        folder = str(Path(self.source_file).resolve().parent)
        self._settings = (python, taskset, json.dumps(dict(config or {})), most, folder)
        self._processes: dict[int, GradingProcess] = {}
        self._starting = threading.Lock()
        loaded = self._process().loaded
        if "error" in loaded:
            raise UsageError(f"The taskset {taskset!r} cannot be loaded: {loaded['error']}.")
        self.left_out: list[LeftOut] = []
        """Tasks that were not carried over."""
        self._prompts: dict[int, list[Message]] = {}
        self._names: dict[int, str] = {}
        for index, task in enumerate(loaded["tasks"]):
            if task["refused"] is not None:
                self.left_out.append(LeftOut(task["name"], task["refused"], is_task=True))
                continue
            self._names[index] = task["name"]
            self._prompts[index] = [Message(**message) for message in task["prompt"]]
        if not self._prompts:
            reason = self.left_out[0].part if self.left_out else "it has no tasks"
            raise UsageError(f"No task of the taskset {taskset!r} can be played: {reason}.")
        self.template(id="task")(self._episode())

    def all_tasks(self) -> list[Task]:
        """Return a task for each of the taskset's, by position."""
        tasks = []
        for index, name in self._names.items():
            task = self.templates["task"](index=index)
            task.slug = name if list(self._names.values()).count(name) == 1 else f"{name}-{index}"
            tasks.append(task)
        return tasks

    def close(self) -> None:
        """End the process that has verifiers; a later grade starts another."""
        process = self._processes.pop(os.getpid(), None)
        if process is not None:
            process.close()

    def _episode(self) -> Any:
        async def task(index: int) -> AsyncGenerator[Any, Any]:
            """Answer a task."""
            if index not in self._prompts:
                raise UsageError(f"There is no task {index} in {self.name!r}.")
            answer = yield self._prompts[index]
            yield await self._graded(index, str(answer))

        return task

    async def _graded(self, index: int, answer: str) -> EvaluationResult:
        # In a thread: a process starts in seconds, and a busy one reads its input late.
        graded = await asyncio.to_thread(lambda: self._process().grade(index, answer))
        reply = await asyncio.wrap_future(graded)
        if "error" in reply:
            raise GraderFault(f"Task {self._names[index]!r} could not be graded: {reply['error']}.")
        worst, best = self._returns
        return EvaluationResult(
            reward=min(1.0, max(0.0, (reply["reward"] - worst) / (best - worst))),
            info={"rewards": reply["rewards"], "metrics": reply["metrics"]},
        )

    def _process(self) -> GradingProcess:
        """Return the grading process of this one, started anew if it has ended.

        A forked environment needs another than the one that it was forked from.
        """
        own = os.getpid()
        with self._starting:
            if own in self._processes and self._processes[own].ended:
                self._processes.pop(own).close()
            if own not in self._processes:
                self._processes[own] = GradingProcess(*self._settings)
            return self._processes[own]
