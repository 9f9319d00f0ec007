"""Whose state is whose: the run that the current code works for.

A run's scope is a context variable, so code that runs concurrently for two runs of one environment, in tasks
or in threads, reaches its own state only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import SimpleNamespace

from hud.errors import UsageError


class State(SimpleNamespace):
    """One run's own things: `env.state.database = ...`."""

    def __getattr__(self, name: str) -> object:
        raise AttributeError(
            f"This run's state has no {name!r} (yet); an initialize hook can set it."
        )


_current: ContextVar[dict[int, State] | None] = ContextVar("hud_run_state", default=None)


@contextmanager
def entered(environment: object, state: State) -> Iterator[None]:
    """Work for a run: inside, `current_state(environment)` is `state`."""
    outer = _current.get()
    token = _current.set({**(outer or {}), id(environment): state})
    try:
        yield
    finally:
        _current.reset(token)


def current_state(environment: object, name: str) -> State:
    """Return the state of the run that the calling code works for."""
    states = _current.get()
    state = states.get(id(environment)) if states else None
    if state is None:
        raise UsageError(
            f"Environment {name!r} has no state outside a run; use env.state inside tools, hooks and templates."
        )
    return state
