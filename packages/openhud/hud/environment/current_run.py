"""The current run, as a context variable.

Code that runs concurrently for two runs of one environment, in tasks or in threads, therefore has its own run's state
only.
"""

from __future__ import annotations

from contextvars import ContextVar
from types import SimpleNamespace
from typing import TYPE_CHECKING

from hud.graders.progress import reset_progress, set_progress

if TYPE_CHECKING:
    from hud.environment.run import EnvironmentRun


class State(SimpleNamespace):
    """Attributes of a run: `env.state.database = ...`."""

    def __getattr__(self, name: str) -> object:
        raise AttributeError(
            f"This run's state has no {name!r} (yet); an initialize hook can set it."
        )


_current: ContextVar[dict[int, EnvironmentRun] | None] = ContextVar("hud_run", default=None)


class entered:  # noqa: N801 - used as a function; a class, as it is entered several times in each rollout
    """Scope of a run: within it, this run and those that it is nested in are the current runs of their environments."""

    __slots__ = ("_progress", "_run", "_token")

    def __init__(self, run: EnvironmentRun) -> None:
        self._run = run

    def __enter__(self) -> None:
        nesting = self._run.nesting
        runs = {id(run.environment): run for run in nesting}
        if outer := _current.get():
            runs = {**outer, **runs}
        self._token = _current.set(runs)
        self._progress = set_progress(nesting[0].training_progress)

    def __exit__(self, *_: object) -> None:
        reset_progress(self._progress)
        _current.reset(self._token)


def run_of(environment: object) -> EnvironmentRun | None:
    """Return the current run of `environment`, or None."""
    runs = _current.get()
    return runs.get(id(environment)) if runs else None


def runs_in_scope() -> list[EnvironmentRun]:
    """Return the current runs, innermost first."""
    return list(reversed((_current.get() or {}).values()))
