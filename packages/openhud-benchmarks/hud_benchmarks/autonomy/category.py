"""`Category`: kinds of tasks in one application, and the scripts that do them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hud.environment import Task

Script = Callable[[Any], Awaitable[None]]
"""Plays a run of a task with the tools of an agent; the argument is the run."""


@dataclass(frozen=True)
class Category:
    """One application with its kinds of tasks. Importing its module loads no environment; `make_task` does."""

    name: str
    kinds: tuple[str, ...]
    """Names of the kinds; each has one task for each seed."""
    make_task: Callable[[str, int], Task]
    """Return the task of a kind and a seed, bound to its environment."""
    scripts: Mapping[str, Script]
    """Reference solutions by kind, for the kinds that have one."""
    needs: tuple[str, ...] = ()
    """Programs that its environment needs (`scripts/setup-worlds`)."""
