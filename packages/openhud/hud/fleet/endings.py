"""Endings of a worker's process: the signals that it follows, and the end of its standard input."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading

from hud.fleet.worker import Worker


def follow_signals(worker: Worker) -> None:
    """Stop on SIGTERM and SIGINT (at once on the second), drain on SIGUSR1."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    loop.add_signal_handler(signal.SIGUSR1, worker.drain)


def follow_stdin(worker: Worker) -> None:
    """Hand everything back at once when standard input ends: the program that started this process is gone."""
    # A daemon: a thread that waits for standard input would keep a process that is done.
    loop = asyncio.get_running_loop()
    threading.Thread(target=_read_to_end, args=(loop, worker), daemon=True).start()


def _read_to_end(loop: asyncio.AbstractEventLoop, worker: Worker) -> None:
    while os.read(0, 4096):
        pass
    with contextlib.suppress(RuntimeError):  # The loop is closed: the worker has ended.
        for _ in range(2):
            loop.call_soon_threadsafe(worker.stop)
