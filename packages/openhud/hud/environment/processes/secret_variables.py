"""Secrets in environment variables: readable by the environment's own code, not inherited by its child processes.

An API key is for a judge or a client in the environment's Python. A shell opened for an agent does not need it; to pass
one to a program, use `env=`.
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
    """Return True if a variable counts as a secret, by its name or by a password in its URL."""
    return _SECRET_NAME.search(name) is not None or _SECRET_VALUE.search(value) is not None


_withheld = False
"""True after `withhold_secrets`."""


def withhold_secrets() -> None:
    """Stop the inheritance of secrets by child processes; `os.environ` keeps them.

    It changes the C environment only: `env=dict(os.environ)` still passes everything.
    """
    global _withheld
    _withheld = True
    for name, value in os.environ.items():
        if is_secret(name, value):
            os.unsetenv(name)  # Not `del os.environ[name]`: Python's mapping stays unchanged.


def set_variable(name: str, value: str) -> None:
    """Set a variable of this process; children inherit no secret where secrets are withheld."""
    os.environ[name] = value
    if _withheld and is_secret(name, value):
        os.unsetenv(name)
