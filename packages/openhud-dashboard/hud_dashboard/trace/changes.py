"""Changes by a step: the environment's state, and files as unified diffs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

from hud_dashboard.trace.values import as_json

MOST_FILES = 50
MOST_LINES = 400
MOST_CHANGES = 60
DEEPEST = 6
_LONGEST_VALUE = 400

View = dict[str, Any]


def changed_state(before: Any, after: Any) -> View:
    """Return the state after a step, and its changes: `{whole, changes: [{path, before, after}], more}`.
    Without an earlier state, `changes` is empty.
    """
    changes = [] if before is None else _differences("", before, after, 0)
    return {
        "whole": as_json(after),
        "first": before is None,
        "changes": [
            {"path": path or "state", "before": _brief(old), "after": _brief(new)}
            for path, old, new in changes[:MOST_CHANGES]
        ],
        "more": max(0, len(changes) - MOST_CHANGES),
    }


def changed_files(extra: dict[str, Any]) -> list[View]:
    """Return the files that a step changed: `{path, status, added, removed, lines: [(kind, text)], cut, sizes}`."""
    files = []
    for name, changes in extra.items():
        if name.partition(":")[0] != "files" or not isinstance(changes, dict):
            continue
        patches = changes.get("patches")
        several = patches if isinstance(patches, list) else []
        files += [_file(patch) for patch in several if isinstance(patch, dict)]
    return files[:MOST_FILES]


class _Absent:
    """Value of a missing key."""


_ABSENT = _Absent()


def _differences(path: str, before: Any, after: Any, depth: int) -> list[tuple[str, Any, Any]]:
    if before == after:
        return []
    pairs: Iterable[tuple[str, Any, Any]]
    if depth < DEEPEST and isinstance(before, dict) and isinstance(after, dict):
        dot = "." if path else ""
        pairs = (
            (f"{path}{dot}{name}", before.get(name, _ABSENT), after.get(name, _ABSENT))
            for name in dict.fromkeys([*before, *after])
        )
    elif depth < DEEPEST and isinstance(before, list) and isinstance(after, list):
        both = zip_longest(before, after, fillvalue=_ABSENT)
        pairs = ((f"{path}[{place}]", old, new) for place, (old, new) in enumerate(both))
    else:
        return [(path, before, after)]
    differences = []
    for inner, old, new in pairs:
        differences += _differences(inner, old, new, depth + 1)
        if len(differences) > 10 * MOST_CHANGES:
            break
    return differences


def _brief(value: Any) -> str | None:
    return None if isinstance(value, _Absent) else as_json(value, _LONGEST_VALUE, indent=False)


def _file(patch: dict[str, Any]) -> View:
    text = patch.get("patch")
    lines = text.split("\n") if isinstance(text, str) and text else []
    if lines and lines[-1] == "":
        lines.pop()
    # The first two lines repeat the file's name.
    body = [line for line in lines if not line.startswith(("--- ", "+++ "))]
    kinds = [(_kind(line), line) for line in body]
    status = patch.get("status")
    return {
        "path": str(patch.get("path") or "?"),
        "status": status if status in ("added", "modified", "deleted") else "changed",
        "added": sum(kind == "add" for kind, _ in kinds),
        "removed": sum(kind == "del" for kind, _ in kinds),
        "lines": kinds[:MOST_LINES],
        "cut": max(0, len(kinds) - MOST_LINES),
        "before": patch.get("size_before") if isinstance(patch.get("size_before"), int) else None,
        "after": patch.get("size_after") if isinstance(patch.get("size_after"), int) else None,
    }


def _kind(line: str) -> str:
    return {"+": "add", "-": "del", "@": "at"}.get(line[:1], "")
