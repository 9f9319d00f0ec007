"""Instructions of a Dockerfile: lines are joined and split as BuildKit does it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress

from hud_integrations.containers.dockerfiles.substitution import UnknownValue, expand, split_words

_ESCAPE_DIRECTIVE = re.compile(r"#\s*escape\s*=\s*(\S)\s*$", re.IGNORECASE)
_DIRECTIVE = re.compile(r"#\s*[A-Za-z]+\s*=")
HERE_DOCUMENT = re.compile(r"(?:^|\s)\d*<<(-?)([\"']?)([^\s\"'<>]+)\2")
_SHORT = 60


def without_directives(lines: list[str]) -> tuple[list[str], str]:
    """Return the lines after the parser directives, and the escape character."""
    escape = "\\"
    while lines and _DIRECTIVE.match(lines[0].strip()):
        directive = _ESCAPE_DIRECTIVE.match(lines.pop(0).strip())
        escape = directive[1] if directive else escape
    return lines, escape


def instructions(lines: Iterator[str], escape: str) -> Iterator[tuple[str, str]]:
    """Yield the instructions: the word in capitals, and the rest with continued lines joined.

    Comments and empty lines between continued lines count for nothing; the lines of here-documents are skipped.
    """
    joined = ""
    for line in lines:
        if line.lstrip().startswith("#") or (joined and not line.strip()):
            continue
        text = line.rstrip()
        if text.endswith(escape):
            joined += text[: -len(escape)]
            continue
        word, _, rest = re.sub(r"^(\S+)\s+", r"\1 ", (joined + line).strip()).partition(" ")
        joined = ""
        if word.upper() in ("RUN", "COPY", "ADD"):
            for dash, _, end in HERE_DOCUMENT.findall(rest):
                _skip_to(lines, end, indented=bool(dash))
        if word:
            yield word.upper(), rest.strip()
    if joined.strip():
        word, _, rest = joined.strip().partition(" ")
        yield word.upper(), rest.strip()


def _skip_to(lines: Iterator[str], end: str, *, indented: bool) -> None:
    for line in lines:
        if (line.lstrip("\t") if indented else line) == end:
            return


def listed(text: str) -> list[str]:
    """Return the words of a JSON list. Raises `UnknownValue` for anything else."""
    try:
        words = json.loads(text)
    except (ValueError, RecursionError):
        raise UnknownValue from None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise UnknownValue
    return words


def short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHORT else f"{line[: _SHORT - 3]}..."


def base_references(text: str) -> list[str]:
    """Return the images from which a Dockerfile's stages start; none for `scratch`, for other stages, and for unknown names."""
    lines, escape = without_directives(text.splitlines())
    arguments: dict[str, str] = {}
    bases: list[str] = []
    stages = {"scratch"}
    for word, rest in instructions(iter(lines), escape):
        if word == "ARG" and stages == {"scratch"} and not bases:
            for part in split_words(rest, escape):
                name, _, value = part.partition("=")
                with suppress(UnknownValue):
                    arguments[name] = expand(value, arguments, escape)
        elif word == "FROM":
            words = [part for part in rest.split() if not part.startswith("--")]
            with suppress(UnknownValue, IndexError):
                base = expand(words[0], arguments, escape)
                bases += [] if base.lower() in stages else [base]
            stages |= {words[-1].lower()} if len(words) == 3 else set()
    return bases
