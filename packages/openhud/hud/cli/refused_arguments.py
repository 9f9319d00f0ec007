"""Errors of the operating system that an argument of the command line causes: one sentence of the argument."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from hud.errors import UsageError

_OF_PATHS = {
    errno.EACCES,
    errno.EEXIST,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENODEV,
    errno.ENOTDIR,
    errno.ENXIO,
    errno.EPERM,
    errno.EROFS,
}
_LONGEST = 120
_LOOP = "Symlink loop from "
"""Start of the message with which `pathlib` refuses a loop of links, without an error number."""


def refused_argument(error: Exception, arguments: Iterable[str]) -> UsageError | None:
    """Return the usage error that stands for `error` where an argument caused it: a path, or bytes that are no text."""
    # The JSON writer raises a TypeError with the same words.
    if isinstance(error, UnicodeEncodeError | TypeError) and "surrogates not allowed" in str(error):
        odd = next((text for text in arguments if _is_odd(text)), None)
        return None if odd is None else UsageError(f"{_short(odd)!r} is no text in UTF-8.")
    if isinstance(error, RuntimeError) and str(error).startswith(_LOOP):
        return UsageError(f"{_short(str(error).removeprefix(_LOOP))}: {os.strerror(errno.ELOOP)}.")
    if not isinstance(error, OSError) or error.errno not in _OF_PATHS:
        return None
    path = error.filename
    if not isinstance(path, str | Path) or not any(
        _leads_to(text, str(path)) for text in arguments
    ):
        return None
    return UsageError(f"{_short(str(path))}: {os.strerror(error.errno)}. Give another path.")


def _leads_to(argument: str, path: str) -> bool:
    """True if an argument, the value of an option NAME=VALUE, or the file of a name FILE:ATTRIBUTE leads to a path."""
    texts = {argument, argument.rpartition("=")[2], argument.rpartition(":")[0]} - {"", "/", "."}
    return any(Path(path).absolute().is_relative_to(Path(text).absolute()) for text in texts)


def _is_odd(text: str) -> bool:
    return any("\udc80" <= character <= "\udcff" for character in text)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
