"""Python interpreter of an environment, where it is not this process's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Interpreter:
    """An interpreter that can import `hud`, and every variable that the environment sees."""

    python: Path
    variables: dict[str, str] = field(default_factory=dict, repr=False)
