"""Dotenv files: `KEY=VALUE` lines, read as other programs write them, and written whole."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from hud.durable_files import PRIVATE, write_file
from hud.errors import UsageError

_ASSIGNMENT = re.compile(
    r"""
    ^[ \t]*(?:export[ \t]+)?(?P<key>[^\s=\#]+)[ \t]*=[ \t]*
    (?: "(?P<double>(?:[^"\\]|\\.)*)"[ \t]*(?:\#.*)?$
      | '(?P<single>[^']*)'[ \t]*(?:\#.*)?$
      | (?P<open>["'])
      | (?P<plain>.*?)(?:[ \t]+\#.*)?[ \t]*$
    )
    """,
    re.VERBOSE | re.MULTILINE,
)
_WITHOUT_SIGN = re.compile(
    r"^[ \t]*(?:export[ \t]+)?(?P<key>[A-Z][A-Z0-9_]*)[ \t]*[: \t][ \t]*[^\s:]", re.MULTILINE
)
"""A name, and a value without the sign between them; other lines that are no assignment are another program's."""
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$"}
_UNQUOTED = re.compile(r"[^\s\"'#\\]([^\s\\]*[^\s\"'\\])?|")
"""Values that every reader of dotenv files takes as they stand."""


def read_dotenv(path: Path) -> dict[str, str]:
    """Return the `KEY=VALUE` pairs of a dotenv file; comments, blank lines and a missing file are fine.

    A quoted value may have several lines; in double quotes, `\\n` is a line break. A folder, such as a virtual environment,
    holds no pairs. Raises `UsageError` for a quote without its end, a name with a value and no `=`, and for a file that is no
    text in UTF-8.
    """
    text = _text(path)
    matches = list(_assignments(path, text))
    _refuse_missing_signs(path, text, matches)
    return {match["key"]: _value(match) for match in matches}


def write_dotenv(path: Path, values: Mapping[str, str]) -> None:
    """Set values of a dotenv file that only this user can read; other lines stay. The file is replaced whole, durably.

    `read_dotenv` returns the same values. Raises `UsageError` as it does, and where the file cannot be written.
    """
    text = _text(path)
    replaced = [match for match in _assignments(path, text) if match["key"] in values]
    for match in reversed(replaced):
        text = text[: match.start()] + text[match.end() :].removeprefix("\n")
    if text and not text.endswith("\n"):
        text += "\n"
    text += "".join(f"{name}={_quoted(value)}\n" for name, value in values.items())
    try:
        if path.exists():
            path.open("rb").close()  # A file that cannot be read is not replaced.
        write_file(path, text.encode(), PRIVATE)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error


def _text(path: Path) -> str:
    try:
        # Raises, too, where a folder on the way belongs to another user.
        if path.is_fifo() or path.is_socket() or path.is_char_device():
            raise UsageError(
                f"{path} is no regular file. Remove it, or replace it by a file of KEY=VALUE lines."
            )
        text = path.read_text(encoding="utf-8-sig").replace("\r\n", "\n")
    except (FileNotFoundError, NotADirectoryError, PermissionError, IsADirectoryError):
        return ""
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{path}:{line}: this is no text in UTF-8; save the file in UTF-8."
        ) from None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error}). Remove it, or replace it by a file of KEY=VALUE lines."
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UsageError(f"{path}:{line}: a value has a zero byte; remove it.")
    return text


def _assignments(path: Path, text: str) -> Iterator[re.Match[str]]:
    at = 0
    while match := _ASSIGNMENT.search(text, at):
        at = match.end()
        if match["open"]:
            line = text.count("\n", 0, match.start("open")) + 1
            raise UsageError(
                f"{path}:{line}: the value of {match['key']} has a quote without its end."
            )
        yield match


def _refuse_missing_signs(path: Path, text: str, matches: Iterable[re.Match[str]]) -> None:
    """Raise `UsageError` for a line such as `OPENAI_API_KEY sk-1`: its value would be missing without a word."""
    assigned = [match.span() for match in matches]
    for match in _WITHOUT_SIGN.finditer(text):
        if not any(start <= match.start("key") < end for start, end in assigned):
            line = text.count("\n", 0, match.start("key")) + 1
            raise UsageError(f"{path}:{line}: write {match['key']}=VALUE; the line has no =.")


def _value(match: re.Match[str]) -> str:
    if match["double"] is not None:
        return re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[0]), match["double"])
    value: str = match["plain"] if match["single"] is None else match["single"]
    return "" if value.startswith("#") else value


def _quoted(value: str) -> str:
    if _UNQUOTED.fullmatch(value):
        return value
    escaped = {written: f"\\{name}" for name, written in _ESCAPES.items() if written != "$"}
    return '"' + "".join(escaped.get(character, character) for character in value) + '"'
