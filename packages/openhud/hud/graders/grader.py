"""Graders as classes: `Grader` to subclass, and `BashGrader`, which scores by a command's exit status."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from hud.graders.command import CommandOutcome, run_command
from hud.graders.results import SubScore
from hud.processes.tail import TAIL_BYTES


class Grader:
    """Base class of graders: define `compute_score`; `await MyGrader.grade(weight=..., **arguments)` scores.

    `compute_score` returns a number from 0 to 1, or a pair of it and a dict of reasons.
    """

    name: ClassVar[str] = ""

    async def compute_score(self, **options: Any) -> float | tuple[float, dict[str, Any]]:
        """Return the score."""
        raise TypeError(f"{type(self).__name__} must define compute_score.")

    @classmethod
    async def grade(cls, weight: float = 1.0, name: str | None = None, **options: Any) -> SubScore:
        """Return the score as a subscore; its `info` holds the reasons."""
        outcome = await cls().compute_score(**options)
        score, info = outcome if isinstance(outcome, tuple) else (outcome, None)
        return SubScore(
            name=name or cls.name or cls.__name__, value=float(score), weight=weight, info=info
        )


class RunsCommands(Protocol):
    """A workspace that runs commands."""

    async def bash(
        self,
        command: str,
        *,
        cwd: str | Path | None,
        timeout: float,
        alone: bool,
        env: Mapping[str, str] | None,
    ) -> CommandOutcome:
        """Run a command; `alone`: after all other processes of the workspace were killed."""

    def check_running(self) -> None:
        """Raise `UsageError` if the agent's processes were already killed, so that no command can run alongside them."""


class BashGrader(Grader):
    """Grader by exit status of a command: 0 scores 1.0; any other status, and a time-out, score 0.0.

    With `workspace` the command runs in that sandbox, so that the agent's files cannot harm this machine; otherwise here.
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
        env: Mapping[str, str] | None = None,
    ) -> tuple[float, dict[str, Any]]:
        """Run `command` in bash, in `cwd`; its child processes end with it.

        Its variables are `env` and, outside of a workspace, the few of this process that programs need (`PATH`, `HOME`,
        locale): neither secrets nor `PYTHONPATH`, `BASH_ENV`, `LD_PRELOAD` and the like.

        The agent's remaining processes in the workspace are killed first, so that they cannot interfere. To test a server
        that the task asked the agent to start, declare the workspace with `keeps_running=True` and pass
        `among_running=True`.
        """
        if workspace is None:
            outcome = await run_command(command, cwd, timeout_seconds, env)
        else:
            if among_running:
                workspace.check_running()
            outcome = await workspace.bash(
                command, cwd=cwd, timeout=timeout_seconds, alone=not among_running, env=env
            )
        info = {
            "command": command,
            "exit_code": outcome.exit_code,
            "stdout": outcome.stdout[-TAIL_BYTES:],
            "stderr": outcome.stderr[-TAIL_BYTES:],
            "timed_out": outcome.exit_code is None,
        }
        return float(outcome.exit_code == 0), info
