"""Tools that execute an agent's commands on this machine, outside of any workspace."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hud.environment import Environment, Task

_EXECUTES = re.compile(
    r"(^|_)((ba|z)?sh|shell|terminal)($|_)|(^|_)(exec|execute|run)_?(command|code|python|cmd|script)?$|(^|_)(command|python)$",
    re.IGNORECASE,
)


def shells_outside(tasks: Iterable[Task]) -> dict[str, list[str]]:
    """Return the names of shell-like tools, by environment, of environments without a workspace."""
    environments = {
        id(task.environment): task.environment for task in tasks if task.environment is not None
    }
    tools_by_environment = {
        environment.name: _shells(environment) for environment in environments.values()
    }
    return {name: tools for name, tools in tools_by_environment.items() if tools}


def _shells(environment: Environment) -> list[str]:
    if any(part.confines_shells for part in environment.parts.values()):
        return []
    return [
        spec.name
        for spec in environment.tool_specs
        if spec.native == "bash" or (not spec.delegated and _EXECUTES.search(spec.name))
    ]
