"""Compares the incident's report with the right one."""

import json
from pathlib import Path

REPORT = Path("/app/incident.json")


def main() -> float:
    wanted = json.loads(Path("/tests/wanted.json").read_text())
    try:
        if REPORT.is_symlink() or REPORT.stat().st_size > 100_000:
            return 0.0
        return float(json.loads(REPORT.read_text()) == wanted)
    except (OSError, ValueError, RecursionError):
        return 0.0


Path("/logs/verifier/reward.txt").write_text(f"{main()}\n")
