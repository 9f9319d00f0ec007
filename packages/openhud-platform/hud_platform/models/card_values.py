"""Metadata of model cards: the values of one line in the front matter of a folder's README.md."""

from __future__ import annotations

from pathlib import Path

CARD = "README.md"


def card_value(folder: Path, name: str) -> str | None:
    """Return a value of one line from the metadata of a folder's own card."""
    try:
        lines = (folder / CARD).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    if lines[:1] != ["---"]:
        return None
    for line in lines[1:]:
        if line.strip() == "---":
            return None
        key, _, value = line.partition(":")
        if key.strip() == name and value.strip():
            return value.strip().strip("'\"")
    return None
