"""Graders as classes: `Grader` to subclass, and `BashGrader`, which scores by a command's exit status."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Protocol

from hud.graders.command import OUTPUT_KEPT, CommandOutcome, run_command
from hud.graders.results import SubScore


class Grader:
    """Subclass it and write `compute_score`; `await MyGrader.grade(weight=..., **what it takes)` scores.

    `compute_score` returns a number from 0 to 1, or that and a dict of reasons.
    """

    name: ClassVar[str] = ""

    async def compute_score(self, **options: Any) -> float | tuple[float, dict[str, Any]]:
        """Return the score."""
        raise TypeError(f"{type(self).__name__} must define compute_score.")

    @classmethod
    async def grade(cls, weight: float = 1.0, name: str | None = None, **options: Any) -> SubScore:
        """Score, and return it as a subscore whose `info` holds the reasons."""
        outcome = await cls().compute_score(**options)
        score, info = outcome if isinstance(outcome, tuple) else (outcome, None)
        return SubScore(
            name=name or cls.name or cls.__name__, value=float(score), weight=weight, info=info
        )


class RunsCommands(Protocol):
    """A workspace that runs commands."""

    async def bash(
        self, command: str, *, cwd: str | Path | None, timeout: float, alone: bool
    ) -> CommandOutcome:
        """Run it; `alone`: after everything else that runs there was ended."""

    def check_running(self) -> None:
        """Raise `UsageError` where what the agent started there has been ended, so that nothing can run among it."""


class BashGrader(Grader):
    """Runs a command: exit status 0 scores 1.0, any other 0.0, and so does a time-out.

    With `workspace` it runs there, where what the agent wrote can do no harm; otherwise on this machine.
    """

    name = "bash"

    async def compute_score(  # type: ignore[override]
        self,
        *,
        command: str,
        cwd: str | Path | None = None,
        timeout_seconds: float = 600.0,
        workspace: RunsCommands | None = None,
        among_running: bool = False,
    ) -> tuple[float, dict[str, Any]]:
        """Run `command` in bash, in `cwd`; everything that it started ends with it.

        What the agent left running in the workspace is ended before, so that it cannot meddle; where the command
        is to try a server that the agent was asked to start, declare the workspace with `keeps_running=True` and say
        `among_running=True`.
        """
        if workspace is None:
            outcome = await run_command(command, cwd, timeout_seconds)
        else:
            if among_running:
                workspace.check_running()
            outcome = await workspace.bash(
                command, cwd=cwd, timeout=timeout_seconds, alone=not among_running
            )
        info = {
            "command": command,
            "exit_code": outcome.exit_code,
            "stdout": outcome.stdout[-OUTPUT_KEPT:],
            "stderr": outcome.stderr[-OUTPUT_KEPT:],
            "timed_out": outcome.exit_code is None,
        }
        return float(outcome.exit_code == 0), info
