"""Compares what is left of the flash with what was needed, and the report with what filled it."""

import hashlib
import json
import os
from pathlib import Path

NEEDED = json.loads(Path("/tests/needed.json").read_text())
FLASH, REPORT = Path("/app/flash"), Path("/app/report.json")
MOST_BYTES = 16_000


def regular_files() -> dict[str, bytes] | None:
    """Return the files by path; None where the flash has anything but files and folders."""
    files = {}
    for place, folders, names in os.walk(FLASH):
        for name in (*folders, *names):
            path = Path(place) / name
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                return None
        for name in names:
            path = Path(place) / name
            if path.stat().st_size > 1_000_000:
                return None
            files[str(path.relative_to(FLASH))] = path.read_bytes()
    return files


def main() -> float:
    files = regular_files()
    if files is None or sum(map(len, files.values())) >= MOST_BYTES:
        return 0.0
    digests = {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}
    if any(digests.get(path) != digest for path, digest in NEEDED["files"].items()):
        return 0.0
    try:
        report = json.loads(REPORT.read_text()) if not REPORT.is_symlink() else None
    except (OSError, ValueError, RecursionError):
        return 0.0
    return float(report == NEEDED["report"])


Path("/logs/verifier/reward.txt").write_text(f"{main()}\n")
