"""`Snapshots`: the snapshots of one run: when they are taken, who keeps them, and how a run goes on from one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from hud.environment.run_snapshot import EnvironmentSnapshot
from hud.errors import HudError, InfrastructureFault
from hud.eval.snapshots.run_snapshot import RunSnapshot, StepLines, same_prompt

if TYPE_CHECKING:
    from hud.eval.run import Run

COST_SHARE = 0.1
"""Most of a run's time that taking snapshots may need: steps that end earlier are not snapshotted."""
KEY = "snapshots"
"""Key of a trace's `extra`: how many snapshots were taken, the numbers of steps after which the run went on, and why not."""


class SnapshotStore(Protocol):
    """Store of one run's last snapshot."""

    async def last(self) -> bytes | None:
        """Return the last snapshot; None without one."""

    async def keep(self, data: bytes | None) -> None:
        """Store a snapshot in place of the one before; None: delete it. Raises `HudError`."""


class Snapshots:
    """Snapshots of one run, for an environment that declares them."""

    def __init__(self, store: SnapshotStore) -> None:
        self.store = store
        self._next = -math.inf
        self._lines: StepLines | None = None
        self.agent_state: Mapping[str, Any] | None = None
        """State with which the agent goes on; None: it begins."""

    async def take(self, run: Run, state: Callable[[], Mapping[str, Any]]) -> None:
        """Take a snapshot after a turn, unless the last one was a moment ago; a refusal is noted in the trace, and final.

        A failure to keep it costs the run nothing: the one before stays.
        """
        began = monotonic()
        if began < self._next:
            return
        assert run.live.connection is not None
        try:
            taken = await run.live.connection.snapshot()
        except (
            HudError
        ) as error:  # Such as an archive that is longer than a frame; the run goes on.
            taken = EnvironmentSnapshot(refused=str(error))
        if taken.refused is not None:
            self._note(run)["refused"] = taken.refused
        if not taken.parts:
            self._next = math.inf
            return
        note = self._note(run)
        note["taken"] = note.get("taken", 0) + 1
        self._lines = self._lines or StepLines(run.trace_id)
        steps = run.trace.steps
        snapshot = RunSnapshot(steps, state(), taken.parts, run.trace.content, run.trace.extra)
        try:
            await self.store.keep(snapshot.encode(self._lines.of(steps)))
        except HudError as error:
            note["not_kept"] = str(error)
        self._next = monotonic() + (monotonic() - began) * (1 / COST_SHARE - 1)

    async def resume(self, run: Run) -> bool:
        """Restore the last snapshot in a run whose task has just been started; False where it is to begin.

        Raises `InfrastructureFault` if its files could not be restored: another attempt begins then.
        """
        data = await self.store.last()
        if data is None:
            return False
        assert run.live.connection is not None
        try:
            snapshot = RunSnapshot.decode(data)
        except HudError as error:
            return await self._begin_anew(run, str(error))
        if not same_prompt(snapshot.steps, run.prompt_messages):
            return await self._begin_anew(run, "its task's setup gave another prompt")
        problem = await run.live.connection.restore(snapshot.parts)
        if problem is not None:
            await self.store.keep(None)
            raise InfrastructureFault(f"A snapshot of this run could not be restored: {problem}.")
        run.trace.extra.update(snapshot.extra)
        run.trace.content = snapshot.content
        self._note(run).setdefault("resumed_after_steps", []).append(len(snapshot.steps))
        for step in snapshot.steps:
            run.record(step)
        self.agent_state = snapshot.agent
        return True

    async def _begin_anew(self, run: Run, reason: str) -> bool:
        await self.store.keep(None)
        self._note(run)["begun_anew"] = reason
        return False

    def _note(self, run: Run) -> dict[str, Any]:
        note: dict[str, Any] = run.trace.extra.setdefault(KEY, {})
        return note
