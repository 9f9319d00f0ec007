"""Compares the lock with the best one."""

import json
from pathlib import Path

LOCK = Path("/app/lock.json")


def main() -> float:
    wanted = json.loads(Path("/tests/wanted.json").read_text())
    try:
        if LOCK.is_symlink() or LOCK.stat().st_size > 100_000:
            return 0.0
        return float(json.loads(LOCK.read_text()) == wanted)
    except (OSError, ValueError, RecursionError):
        return 0.0


Path("/logs/verifier/reward.txt").write_text(f"{main()}\n")
