"""The process that has verifiers: it loads a taskset, and grades answers, any number of them at the same time."""

from __future__ import annotations

import json
import subprocess
import threading
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from hud.errors import GraderFault, UsageError

CHILD = Path(__file__).with_name("child.py")
_ENDED = "its process has ended; its error output says why"
_LOST = f"An answer could not be graded: {_ENDED}."


class GradingProcess:
    """A process of `child.py`. Ends when its input does."""

    def __init__(self, python: str, taskset: str, config: str, most: int, folder: str) -> None:
        """`config`: JSON. `folder`: where modules are looked for, too. Raises `UsageError` if it cannot be started."""
        arguments = [python, "-P", str(CHILD), taskset, config, str(most), folder]
        try:
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        except OSError as error:
            raise UsageError(f"{python} cannot be started: {error.strerror}.") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._numbers = count()
        self._asked: dict[int, Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._receiver: threading.Thread | None = None
        self.ended = False
        line = self._output.readline()
        self.loaded: dict[str, Any] = json.loads(line) if line else {"error": _ENDED}
        """The taskset's tasks, or the `error` of loading it."""

    def grade(self, index: int, answer: str) -> Future[dict[str, Any]]:
        """Grade an answer to the task at `index`; the future raises `GraderFault` if the process ends."""
        graded: Future[dict[str, Any]] = Future()
        with self._lock:
            if self._receiver is None:
                # Not earlier: a process with threads is a bad one to fork.
                self._receiver = threading.Thread(target=self._receive, daemon=True)
                self._receiver.start()
            if self.ended:
                raise GraderFault(_LOST)
            number = next(self._numbers)
            self._asked[number] = graded
            request = {"number": number, "index": index, "answer": answer}
            # The receiver sees the end of the process, too, and fails what was asked.
            with suppress(BrokenPipeError):
                self._input.write(json.dumps(request) + "\n")
                self._input.flush()
        return graded

    def close(self) -> None:
        """End the process."""
        with suppress(BrokenPipeError):  # Of what a process that has ended did not read.
            self._input.close()
        self._process.wait()
        if self._receiver is not None:
            self._receiver.join()
        self._output.close()

    def _receive(self) -> None:
        for line in self._output:
            reply: dict[str, Any] = json.loads(line)
            with self._lock:
                graded = self._asked.pop(reply.pop("number"))
            if graded.set_running_or_notify_cancel():
                graded.set_result(reply)
        with self._lock:
            self.ended = True
            left = list(self._asked.values())
            self._asked.clear()
        for graded in left:
            if graded.set_running_or_notify_cancel():
                graded.set_exception(GraderFault(_LOST))
