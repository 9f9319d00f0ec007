"""Run every benchmark of this folder, one after another, and print what each one prints.

make bench                     all of them
python benchmarks/perf/run_all.py sampler trainer     only those named

Those that measure us against TRL run in an environment of their own, which
scripts/setup-integration makes.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
TRL = ROOT / ".venv-integrations" / "trl"
SHARED = (
    "run_all",
    "counts",
    "dashboard_browser",
    "dashboard_store",
    "dashboard_team",
    "measure",
    "records",
    "results",
    "shapes",
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
    """Return the Python that has what a script is measured against."""
    if not script.stem.endswith("_against_trl"):
        return sys.executable
    subprocess.run([str(ROOT / "scripts" / "setup-integration"), "trl"], check=True)
    return str(TRL / "bin" / "python")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
