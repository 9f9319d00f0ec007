"""Variables of modules that runs in one process share: a warning where runs change them.

`hud eval` gives each run a process, where such variables are its own; training and Python play in this process by default.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from reprlib import Repr
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from hud.environment.tools.tool import Tool
from hud.foreign_code import text_of

if TYPE_CHECKING:
    from hud.environment import Environment

_log = logging.getLogger("hud.eval")
COMPARED_RUNS = 8
"""Runs of an environment whose end is compared with the state before the first; later ones cost nothing."""
CONTAINERS = (dict, list, set, bytearray)


class SharedVariables:
    """Mutable variables of the modules that define an environment's tools, templates and hooks."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._before = dict(_shown_variables(environment))
        self._begun = 0
        self._left = COMPARED_RUNS

    def begin(self) -> None:
        """Count a run that begins."""
        self._begun += 1

    def end(self) -> None:
        """Warn, once, if runs changed a variable and there is more than one run."""
        if self._left == 0 or self._begun < 2:
            return
        self._left -= 1
        changed = [
            name
            for name, shown in _shown_variables(self._environment)
            if self._before.get(name, shown) != shown
        ]
        if changed:
            self._left = 0
            file = Path(self._environment.source_file or "the environment").name
            _log.warning(
                "note: %s: runs changed %s of the module, which all runs in this process share, so that one run can change "
                "another's reward. Keep it in env.state, or give each run a process: --runtime fork, in Python "
                "runtime=ForkRuntime('%s').",
                file,
                ", ".join(changed),
                file,
            )


_watched: WeakKeyDictionary[Environment, SharedVariables] = WeakKeyDictionary()


def shared_variables(environment: Environment) -> SharedVariables:
    """Return the watch of an environment, made before its first run in this process."""
    watch = _watched.get(environment)
    if watch is None:
        watch = _watched[environment] = SharedVariables(environment)
    return watch


class _Shown(Repr):
    """Bounded text of built-in containers and of objects of the module's own classes; another object is its identity."""

    def __init__(self, module: str) -> None:
        super().__init__()
        self.module = module
        self.maxlevel = 4
        self.maxdict = self.maxlist = self.maxset = self.maxtuple = 200
        self.maxstring = self.maxlong = 400

    def repr_int(self, x: int, level: int) -> str:
        """Return an integer of any size as text; Python converts at most 4,300 decimal digits."""
        del level
        return hex(x)

    def repr_instance(self, x: Any, level: int) -> str:
        """Return an object's attributes if its class is the module's, else its class and identity."""
        kind = type(x)
        if kind.__module__ == self.module and level > 0 and hasattr(x, "__dict__"):
            return f"{kind.__name__}{self.repr_dict(vars(x), level)}"
        return f"{kind.__name__}@{id(x)}"


def _shown_variables(environment: Environment) -> Iterator[tuple[str, str]]:
    """Yield the name and the bounded text of each public variable that can be changed in place or bound anew.

    Names with an underscore are left out: caches have such names.
    """
    for variables in _modules(environment):
        module = str(variables.get("__name__"))
        shown = _Shown(module)
        for name, value in list(variables.items()):
            own = type(value).__module__ == module
            if not name.startswith("_") and (
                own or isinstance(value, (*CONTAINERS, int, float, str))
            ):
                yield name, text_of(value, shown.repr)  # Threads may change it meanwhile.


def _modules(environment: Environment) -> list[dict[str, Any]]:
    """Return the variables of the modules that define the environment's functions."""
    functions: list[Callable[..., Any]] = [
        *(tool.function for tool in environment.tools.values() if isinstance(tool, Tool)),
        *(template.function for template in environment.templates.values()),
        *environment.initialize_hooks,
        *environment.shutdown_hooks,
    ]
    variables = [getattr(function, "__globals__", None) for function in functions]
    return list({id(names): names for names in variables if names is not None}.values())
