"""Snapshot of a run's environment: the archives of its parts, or the reason why it has none."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hud.environment.part import NoSnapshotError
from hud.environment.templates.agent_tool import AgentTool

if TYPE_CHECKING:
    from hud.environment.run import EnvironmentRun


@dataclass(frozen=True)
class EnvironmentSnapshot:
    """A run's environment after a step."""

    parts: Mapping[str, bytes] = field(default_factory=dict)
    """Archive of each part, by its name; empty where the environment declares no snapshots, or refuses one."""
    refused: str | None = None
    """Reason why a declared snapshot cannot be taken."""


def parts_to_text(parts: Mapping[str, bytes]) -> dict[str, str]:
    """Return archives as base64, for JSON."""
    return {name: b64encode(part).decode() for name, part in parts.items()}


def parts_of_text(texts: Mapping[str, str]) -> dict[str, bytes]:
    """Return the archives of `parts_to_text`. Raises `AttributeError`, `TypeError` or `ValueError` for other data."""
    return {name: b64decode(text) for name, text in texts.items()}


class RunSnapshots:
    """Snapshots of one run's environment; the run, which owns this, is an argument: a cycle would outlive it."""

    def __init__(self) -> None:
        self._state: str | None = ""
        self._problem: str | None = None

    async def begin(self, run: EnvironmentRun) -> None:
        """Take the state after the task's setup as the start."""
        if not _declared(run):
            return
        self._state, self._problem = _state_of(run), None
        try:
            await run.parts.mark()
        except NoSnapshotError as error:
            self._problem = str(error)

    async def take(self, run: EnvironmentRun) -> EnvironmentSnapshot:
        """Return what has changed since the start."""
        if not _declared(run):
            return EnvironmentSnapshot()
        problem = self._problem or _obstacle(run, self._state)
        if problem is not None:
            return EnvironmentSnapshot(refused=problem)
        try:
            return EnvironmentSnapshot(await run.parts.save())
        except NoSnapshotError as error:
            return EnvironmentSnapshot(refused=str(error))

    async def restore(self, run: EnvironmentRun, parts: Mapping[str, bytes]) -> str | None:
        """Restore archives in a run whose task has just been started; returns the reason of a failure."""
        if self._problem is not None:
            return self._problem
        try:
            await run.parts.restore(parts)
        except NoSnapshotError as error:
            return str(error)
        return None


def _declared(run: EnvironmentRun) -> bool:
    return any(part.snapshots for part in run.environment.parts.values())


def _obstacle(run: EnvironmentRun, state_at_start: str | None) -> str | None:
    """Return what has state that no archive holds."""
    environment = run.environment
    for name, part in environment.parts.items():
        if not part.snapshots:
            return f"{name!r} ({type(part).__name__}) has no snapshots"
    for name, tool in environment.tools.items():
        if isinstance(tool, AgentTool):
            return f"the subagent {name!r} has no snapshots"
    for capability in (*environment.capabilities, *run.added):
        return f"the capability {capability.name!r} is a server outside of the environment's workspaces"
    state = _state_of(run)
    if state is None:
        return "env.state has values without a text, which cannot be compared with the task's setup"
    if state != state_at_start:
        return "env.state has changed since the task's setup"
    return None


def _state_of(run: EnvironmentRun) -> str | None:
    """Return the run's `env.state` as text, to tell whether it changes; None where a class, or a huge integer, has no text."""
    try:
        return repr(vars(run.state))
    except Exception:
        return None
