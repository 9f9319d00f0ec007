"""Compares the readings with the right ones."""

import json
from pathlib import Path

READINGS = Path("/app/readings.json")


def main() -> float:
    wanted = json.loads(Path("/tests/wanted.json").read_text())
    try:
        if READINGS.is_symlink() or READINGS.stat().st_size > 1_000_000:
            return 0.0
        return float(json.loads(READINGS.read_text()) == wanted)
    except (OSError, ValueError, RecursionError):
        return 0.0


Path("/logs/verifier/reward.txt").write_text(f"{main()}\n")
