"""Whose state is whose: the run that the current code works for.

The scope is a context variable, so code that runs concurrently for two runs of one environment, in tasks
or in threads, reaches its own state only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import TYPE_CHECKING

from hud.errors import UsageError
from hud.graders.progress import at_progress

if TYPE_CHECKING:
    from hud.environment.run import EnvironmentRun


class State(SimpleNamespace):
    """One run's own things: `env.state.database = ...`."""

    def __getattr__(self, name: str) -> object:
        raise AttributeError(
            f"This run's state has no {name!r} (yet); an initialize hook can set it."
        )


_current: ContextVar[dict[int, EnvironmentRun] | None] = ContextVar("hud_run", default=None)


@contextmanager
def entered(run: EnvironmentRun) -> Iterator[None]:
    """Work for a run: inside, it is the `current_run` of its environment, and so are those it is nested in."""
    outer = _current.get() or {}
    token = _current.set({**outer, **{id(one.environment): one for one in run.nesting}})
    try:
        with at_progress(run.nesting[0].training_progress):
            yield
    finally:
        _current.reset(token)


def run_of(environment: object) -> EnvironmentRun | None:
    """Return the run of `environment` that the calling code works for, if it works for one."""
    runs = _current.get()
    return runs.get(id(environment)) if runs else None


def current_run(environment: object, name: str, wanted: str) -> EnvironmentRun:
    """Return the run that the calling code works for; `wanted` names what of it is asked for."""
    run = run_of(environment)
    if run is None:
        raise UsageError(
            f"Environment {name!r} has no {wanted} outside a run; use it inside tools, hooks and templates."
        )
    return run


def runs_in_scope() -> list[EnvironmentRun]:
    """Return the runs that the calling code works for, the innermost first."""
    return list(reversed((_current.get() or {}).values()))
