"""Processes that a run's tools started, where the run has this process to itself: they end before its grade.

A process belongs to the run if it appeared after the prompt, descends from this process, and has neither a process that the
environment started before its prompt nor one of its parts (a browser, a workspace) above it. This process adopts orphans, so
that daemons stay its descendants.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import ctypes
import functools
import os
import resource
import signal
import sys
import threading
from typing import Any

from hud.environment.processes.process_tree import (
    Process,
    Seen,
    all_descendants,
    descendants,
    has_children,
    seen,
)
from hud.environment.processes.reaper import PR_SET_CHILD_SUBREAPER, kill
from hud.environment.processes.worker_threads import is_abandoned
from hud.errors import AgentFault

END_SECONDS = 5.0
"""Time-out for the end of a run's processes, in seconds."""
_PASS_SECONDS = 0.001
_STARTS = frozenset(
    ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec")
)
_LIMITS = tuple(getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_"))
prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
"""The function of libc; None outside of Linux."""
_of_parts: set[Process] = set()
_starting: set[asyncio.Future[None]] = set()
"""Starts of parts' processes in progress."""


def adopt_orphans() -> None:
    """Make this process the parent of its descendants' orphans, so that it can find them. Linux only."""
    if prctl is not None:
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def claim(pid: int) -> None:
    """Mark a process as the environment's own, although it may have started after the prompt; it is none of a tool's."""
    if RunProcesses.watched and (claimed := seen(pid)) is not None:
        _of_parts.add(claimed.process)


async def start_of_part(*command: str, **options: Any) -> asyncio.subprocess.Process:
    """Start a part's process, as `asyncio.create_subprocess_exec`: it is none of a tool's."""
    started = asyncio.get_running_loop().create_future()
    _starting.add(started)
    try:
        process = await asyncio.create_subprocess_exec(*command, **options)
        claim(process.pid)
        return process
    finally:
        _starting.discard(started)
        started.set_result(None)


def _refuse(event: str, details: tuple[Any, ...]) -> None:
    """Audit hook: refuse to start a process for a call that was cancelled, and whose thread cannot be ended."""
    del details
    if event in _STARTS and is_abandoned(threading.current_thread()):
        raise PermissionError("The call has ended: the answer is being graded.")


@functools.cache
def _end_copies() -> None:
    """Let forked copies of this process end when they return to its event loop: they would take the run's messages."""
    loop = asyncio.get_running_loop()
    os.register_at_fork(after_in_child=lambda: loop.call_soon(os._exit, 1))


class RunProcesses:
    """The processes of the one run that this process plays."""

    watched = False
    """True in a process that plays one run."""

    def __init__(self) -> None:
        RunProcesses.watched = True
        self._before: set[Process] | None = None
        """Processes of the environment; None before the first prompt."""
        self._limits: dict[int, tuple[int, int]] = {}
        """Resource limits of this process at the prompt: a process of a tool's can lower them."""

    def begin(self) -> None:
        """Note the processes that are the environment's: those that run now."""
        _end_copies()
        # Orphans are this process's children, too: without a child there is no descendant.
        running = descendants(os.getpid()) if has_children() else ()
        self._limits = {limit: resource.getrlimit(limit) for limit in _LIMITS}
        self._before = {descendant.process for descendant in running if descendant is not None}

    async def end(self) -> list[str]:
        """Kill the run's processes, and return their names; this process's limits are as before its prompt.

        Raises `AgentFault` for processes that do not end, and for limits that cannot be raised again.
        """
        if self._before is None:
            return []
        self._restore_limits()  # The search for processes opens files.
        try:
            return await self._ended()
        finally:
            self._restore_limits()

    def _restore_limits(self) -> None:
        for limit, before in self._limits.items():
            if resource.getrlimit(limit) == before:
                continue
            try:
                resource.setrlimit(limit, before)
            except (OSError, ValueError):
                raise AgentFault(
                    "A tool lowered a resource limit of its environment's process, which cannot be raised for grading."
                ) from None

    async def _ended(self) -> list[str]:
        """Kill the run's processes, and return their names."""
        if _thread._count() and any(map(is_abandoned, threading.enumerate())):
            sys.addaudithook(_refuse)
        if not has_children():
            return []
        killed: dict[Process, str] = {}
        gone: set[Process] = set()
        deadline = asyncio.get_running_loop().time() + END_SECONDS
        while running := await self._running(gone, thorough=bool(gone)):
            for descendant in running:
                if descendant is not None:
                    killed.setdefault(descendant.process, descendant.name)
                    with contextlib.suppress(PermissionError):
                        kill(descendant.process.pid, signal.SIGKILL)
            if asyncio.get_running_loop().time() > deadline:
                names = ", ".join(
                    sorted({descendant.name for descendant in running if descendant is not None})
                )
                raise AgentFault(
                    f"Processes that a tool started could not be ended before grading: {names}."
                )
            await asyncio.sleep(_PASS_SECONDS)
        return sorted(killed.values())

    async def _running(self, gone: set[Process], *, thorough: bool) -> list[Seen | None]:
        """Return the run's processes that had not ended by the previous pass; those that have now are added to `gone`.

        A process that ends during a pass may have left a child that the pass did not see: only a pass without any is the last.
        """
        if _starting:
            await asyncio.wait(_starting, timeout=END_SECONDS)
        own = (self._before or set()) | _of_parts
        candidates = list(descendants(os.getpid(), own))
        if thorough and all(
            descendant is not None and descendant.process in gone for descendant in candidates
        ):
            candidates += all_descendants(os.getpid(), own)
        running = [
            descendant
            for descendant in candidates
            if descendant is None or descendant.process not in gone
        ]
        gone.update(
            descendant.process
            for descendant in running
            if descendant is not None and descendant.ended
        )
        return running
