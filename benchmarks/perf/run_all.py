"""Run every benchmark of this folder, one after another, and print what each one prints.

make bench                     all of them
python benchmarks/perf/run_all.py sampler trainer     only those named

Those that measure against TRL, or through Tinker's client, run in environments of their own, which
scripts/setup-integration makes.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
PEERS = {"_against_trl": "trl", "_through_tinker": "tinker"}
"""Integrations in whose environments scripts run, by the ends of their names."""
SHARED = (
    "run_all",
    "counts",
    "dashboard_browser",
    "dashboard_store",
    "dashboard_team",
    "measure",
    "records",
    "results",
    "sampling_rates",
    "shapes",
    "sizes",
    "sleeping_device",
    "trl_peer",
)
"""Files of this folder that are no benchmarks."""


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all; return the number that failed."""
    scripts = sorted(path for path in FOLDER.glob("*.py") if path.stem not in SHARED)
    unknown = set(names) - {path.stem for path in scripts}
    if unknown:
        known = ", ".join(path.stem for path in scripts)
        print(
            f"No benchmark named {', '.join(sorted(unknown))}; there are: {known}.", file=sys.stderr
        )
        return 2
    failed = 0
    for script in scripts:
        if names and script.stem not in names:
            continue
        print(f"== {script.stem}", flush=True)
        started = time.perf_counter()
        failed += subprocess.run([interpreter(script), str(script)], check=False).returncode != 0
        print(f"   ({time.perf_counter() - started:.0f} s)\n", flush=True)
    return failed


def interpreter(script: Path) -> str:
    """Return the Python that has what a script needs beside us."""
    for end, name in PEERS.items():
        if script.stem.endswith(end):
            subprocess.run([str(ROOT / "scripts" / "setup-integration"), name], check=True)
            return str(ROOT / ".venv-integrations" / name / "bin" / "python")
    return sys.executable


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
