"""Changes of a workspace's files in a step: paths, kinds and patches.

The format is that of `filetracking/1` and of the traces of HUD's client.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from fnmatch import fnmatch
from typing import Any, Literal

from hud.environment.workspace.files.snapshot import MOST_FILES, Look, Seen, look

SKIPPED = (
    ".git",
    "__pycache__",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".venv",
    "node_modules",
)
"""Names of large folders that are not part of the agent's work."""
KEPT_BYTES = 16 << 20
MOST_PATCHES = 200
PATCH_CHARACTERS = 20_000
ALL_PATCHES_CHARACTERS = 200_000
_COMPARED_LINES = 250_000
"""Largest product of both files' line counts for a line-by-line diff; beyond it the block is shown as replaced."""
_CONTEXT = 3
_WILD = frozenset("*?[")
_NO_NEWLINE = "\n\\ No newline at end of file\n"

Status = Literal["added", "modified", "deleted"]
_Opcode = tuple[Literal["replace", "delete", "insert", "equal"], int, int, int, int]


class Changes:
    """Tracker of a workspace's files."""

    def __init__(self, skipped: Sequence[str]) -> None:
        self._names = frozenset(name for name in skipped if not _WILD.intersection(name))
        self._patterns = tuple(name for name in skipped if name not in self._names)
        self._last: Look | None = None

    def begin(self, folder: int) -> None:
        """Take the present files as the initial state."""
        self._last = self._look(folder)

    @property
    def files(self) -> dict[str, Seen]:
        """The files of the last snapshot, by path."""
        return {} if self._last is None else self._last.files

    def since_last(self, folder: int) -> dict[str, Any]:
        """Return the changes since the last call, empty without any. Slow: it takes a snapshot."""
        before = self._last or Look({}, 0.0, False)
        after = self._last = self._look(folder)
        # In an incomplete snapshot a missing file is not necessarily deleted.
        gone = set() if after.truncated else before.files.keys() - after.files.keys()
        other = [
            path
            for path, seen in after.files.items()
            if (old := before.files.get(path)) is None or _differ(old, seen)
        ]
        changed = sorted([*other, *gone])
        if not changed:
            return {}
        patches = _Patches()
        for path in changed[:MOST_PATCHES]:
            patches.add(path, before.files.get(path), after.files.get(path))
        changes: dict[str, Any] = {
            "snapshot_timestamp": datetime.now(UTC).isoformat(),
            "scan_duration_ms": round(after.seconds * 1000, 1),
            "files_scanned": len(after.files),
            "files_changed": len(changed),
            "patches": patches.made,
        }
        if after.truncated or patches.cut or len(changed) > MOST_PATCHES:
            changes["truncated"] = True
        return changes

    def _look(self, folder: int) -> Look:
        before = self._last
        seen = look(folder, before, self._is_skipped, KEPT_BYTES)
        if seen.truncated and before is not None and len(seen.files) < MOST_FILES:
            # Files beyond the time limit are taken as unchanged.
            files = {**before.files, **seen.files}
            return replace(seen, files=files) if len(files) <= MOST_FILES else seen
        return seen

    def _is_skipped(self, name: str) -> bool:
        return name in self._names or any(fnmatch(name, pattern) for pattern in self._patterns)


def _differ(old: Seen, new: Seen) -> bool:
    if old.digest is not None and new.digest is not None:
        return old.digest != new.digest
    return old.mark != new.mark


class _Patches:
    """Patches, up to a total size."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []
        self.cut = False
        self._room = ALL_PATCHES_CHARACTERS

    def add(self, path: str, old: Seen | None, new: Seen | None) -> None:
        status: Status = "added" if old is None else "deleted" if new is None else "modified"
        text = self._text(path, old, new)
        if len(text) > min(PATCH_CHARACTERS, self._room):
            text, self.cut = text[: min(PATCH_CHARACTERS, self._room)], True
        self._room -= len(text)
        patch: dict[str, Any] = {
            "path": path,
            "status": status,
            "patch": text,
            "size_before": 0 if old is None else old.size,
            "size_after": 0 if new is None else new.size,
        }
        for key, seen in (("content_hash_before", old), ("content_hash_after", new)):
            if seen is not None and seen.digest is not None:
                patch[key] = seen.digest
        self.made.append(patch)

    def _text(self, path: str, old: Seen | None, new: Seen | None) -> str:
        before = _lines(old)
        after = _lines(new)
        if before is None or after is None or self._room <= 0:
            return ""
        names = (f"a/{path}" if old else "/dev/null", f"b/{path}" if new else "/dev/null")
        return unified(before, after, *names)


def _lines(seen: Seen | None) -> list[str] | None:
    """Return a file's lines; None for binary files and contents that were not kept."""
    if seen is None:
        return []
    if seen.content is None or b"\0" in seen.content:
        return None
    try:
        *complete, rest = seen.content.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        return None
    return [f"{line}\n" for line in complete] + ([rest] if rest else [])


def unified(before: list[str], after: list[str], from_name: str, to_name: str) -> str:
    """Return a unified diff; an expensive one is a single block."""
    matcher = _Between(before, after)
    lines = [f"--- {from_name}\n", f"+++ {to_name}\n"]
    for group in matcher.get_grouped_opcodes(_CONTEXT):
        spans = _span(group[0][1], group[-1][2]), _span(group[0][3], group[-1][4])
        lines.append(f"@@ -{spans[0]} +{spans[1]} @@\n")
        for tag, old_from, old_to, new_from, new_to in group:
            if tag == "equal":
                lines += [f" {line}" for line in before[old_from:old_to]]
            else:
                lines += [f"-{line}" for line in before[old_from:old_to]]
                lines += [f"+{line}" for line in after[new_from:new_to]]
    return "".join(line if line.endswith("\n") else f"{line}{_NO_NEWLINE}" for line in lines)


class _Between(difflib.SequenceMatcher[str]):
    """Matcher of the lines between the first and the last difference: adversarial files could take minutes otherwise."""

    def __init__(self, before: list[str], after: list[str]) -> None:
        shorter = min(len(before), len(after))
        self._head = next((at for at in range(shorter) if before[at] != after[at]), shorter)
        shorter -= self._head
        self._tail = next((at for at in range(shorter) if before[~at] != after[~at]), shorter)
        self._ends = len(before) - self._tail, len(after) - self._tail
        super().__init__(
            None, before[self._head : self._ends[0]], after[self._head : self._ends[1]]
        )

    def get_opcodes(self) -> list[_Opcode]:
        head, (old, new), tail = self._head, self._ends, self._tail
        if (old - head) * (new - head) <= _COMPARED_LINES:
            between: list[_Opcode] = [
                (tag, head + a, head + b, head + c, head + d)
                for tag, a, b, c, d in super().get_opcodes()
            ]
        else:
            between = [("replace", head, old, head, new)]
        first: list[_Opcode] = [("equal", 0, head, 0, head)] if head else []
        last: list[_Opcode] = [("equal", old, old + tail, new, new + tail)] if tail else []
        return first + between + last


def _span(start: int, end: int) -> str:
    """Return lines `start` to `end` in the notation of a hunk header: from 1; an empty range by the line before it."""
    return f"{start + (end > start)},{end - start}"
