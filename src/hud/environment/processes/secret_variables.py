"""Secrets in the variables of an environment's process: its own code reads them, programs that it starts do not.

An API key is there for a judge or a client in the environment's Python. A shell that a tool opens for an agent has no
use for it; a program that needs one is given it, with `env=`.
"""

from __future__ import annotations

import os
import re

_SECRET_NAME = re.compile(
    r"(^|_)(API_?)?KEYS?($|_)|APIKEY|TOKENS?($|_)|SECRET|PASSW(OR)?D|PASSPHRASE|CREDENTIAL|COOKIE|(^|_)AUTH($|_)|(^|_)DSN($|_)",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(r"://[^/@\s]*:[^/@\s]+@")
"""A URL with a password in it."""


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable is taken for a secret, by its name or by a password in its URL."""
    return _SECRET_NAME.search(name) is not None or _SECRET_VALUE.search(value) is not None


def withhold_secrets() -> None:
    """From now on, programs that this process starts inherit no secret; `os.environ` keeps them all.

    It works on what the system's calls hand on by themselves: `env=dict(os.environ)` still hands on everything.
    """
    for name, value in os.environ.items():
        if is_secret(name, value):
            os.unsetenv(name)  # Not `del os.environ[name]`: Python's own mapping stays as it is.
