"""`VerifiersEnvironment`: a taskset of verifiers as an environment, loaded and graded in a process that has verifiers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from hud.environment import Environment, Task
from hud.errors import GraderFault, UsageError
from hud.graders import EvaluationResult
from hud.integrations.shared.left_out import LeftOut
from hud.trace import Message

CHILD = Path(__file__).with_name("child.py")


class _Child:
    """The process; one request at a time. Ends when its input does."""

    def __init__(self, arguments: list[str]) -> None:
        try:
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        except OSError as error:
            raise UsageError(f"{arguments[0]} cannot be started: {error.strerror}.") from None
        self._lock = threading.Lock()
        self.first = self._read()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request; returns its answer. Raises `GraderFault` if the process has ended."""
        with self._lock:
            try:
                assert self._process.stdin is not None
                self._process.stdin.write(json.dumps(request) + "\n")
                self._process.stdin.flush()
                return self._read()
            except (BrokenPipeError, OSError) as error:
                raise GraderFault(f"The process of verifiers has ended: {error}.") from error

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            return {"error": "its process ended; its error output says why"}
        found: dict[str, Any] = json.loads(line)
        return found


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
        settings = [taskset, json.dumps(dict(config or {})), str(most), folder]
        self._arguments = [python, "-P", str(CHILD), *settings]
        self._children: dict[int, _Child] = {}
        found = self._child().first
        if "error" in found:
            raise UsageError(f"The taskset {taskset!r} cannot be loaded: {found['error']}.")
        self.left_out: list[LeftOut] = []
        """Tasks that were not carried over."""
        self._prompts: dict[int, list[Message]] = {}
        self._names: dict[int, str] = {}
        for index, task in enumerate(found["tasks"]):
            if task["refused"] is not None:
                self.left_out.append(LeftOut(task["name"], task["refused"], whole=True))
                continue
            self._names[index] = task["name"]
            self._prompts[index] = [Message(**message) for message in task["prompt"]]
        if not self._prompts:
            reason = self.left_out[0].part if self.left_out else "it has no tasks"
            raise UsageError(f"No task of the taskset {taskset!r} can be played: {reason}.")
        self.template(id="task")(self._episode())

    def all_tasks(self) -> list[Task]:
        """Return a task for each of the taskset's, by position."""
        found = []
        for index, name in self._names.items():
            task = self.templates["task"](index=index)
            task.slug = name if list(self._names.values()).count(name) == 1 else f"{name}-{index}"
            found.append(task)
        return found

    def close(self) -> None:
        """End the process that has verifiers; a later grade starts another."""
        child = self._children.pop(os.getpid(), None)
        if child is not None:
            child.close()

    def _episode(self) -> Any:
        async def task(index: int) -> AsyncGenerator[Any, Any]:
            """Answer a task."""
            if index not in self._prompts:
                raise UsageError(f"There is no task {index} in {self.name!r}.")
            answer = yield self._prompts[index]
            yield await asyncio.to_thread(self._graded, index, str(answer))

        return task

    def _graded(self, index: int, answer: str) -> EvaluationResult:
        found = self._child().ask({"index": index, "answer": answer})
        if "error" in found:
            raise GraderFault(f"Task {self._names[index]!r} could not be graded: {found['error']}.")
        worst, best = self._returns
        return EvaluationResult(
            reward=min(1.0, max(0.0, (found["reward"] - worst) / (best - worst))),
            info={"rewards": found["rewards"], "metrics": found["metrics"]},
        )

    def _child(self) -> _Child:
        """Return this process's child: a forked environment needs another than the one that it was forked from."""
        own = os.getpid()
        if own not in self._children:
            self._children[own] = _Child(self._arguments)
        return self._children[own]
