"""Sentences for a file that is missing, with the file of its folder that was probably meant."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path


def no_file(path: Path) -> str:
    """Return the sentence for a missing file, with the nearest name in its folder."""
    near = near_file(path)
    return (
        f"There is no file {path}."
        if near is None
        else f"There is no file {path}; did you mean {near}?"
    )


def near_file(path: Path) -> Path | None:
    """Return the Python or JSON file whose name is nearest to a missing one; None without any."""
    if path.name in ("", ".", ".."):
        return None
    suffixes = (path.suffix,) if path.suffix else (".py", ".jsonl", ".json")
    folder = path.parent
    names = (
        [file.name for file in folder.iterdir() if file.suffix in suffixes]
        if folder.is_dir()
        else []
    )
    same_stem = [name for name in names if not path.suffix and Path(name).stem == path.name]
    near = same_stem or get_close_matches(path.name, sorted(names), n=1, cutoff=0.7)
    return folder / near[0] if near else None
