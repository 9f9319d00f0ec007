"""Mark of a process that plays runs: a random value in its environment variables.

A tool that shows it reaches this process, which `hud.audit.reach` looks for. Every process that plays has one, so that an
environment cannot tell an audit from an evaluation by it.
"""

from __future__ import annotations

import functools
import os
import secrets
from string import ascii_uppercase

_NAME_LETTERS = 8


def process_mark() -> tuple[str, str]:
    """Return name and value of this process's mark, and set the variable."""
    name, value = _mark()
    os.environ[name] = value
    return name, value


@functools.cache
def _mark() -> tuple[str, str]:
    name = "".join(secrets.choice(ascii_uppercase) for _ in range(_NAME_LETTERS))
    return name, secrets.token_hex(16)
