"""Run every benchmark of this folder, one after another, and print what each one prints.

make bench                     all of them
python benchmarks/perf/run_all.py sampler trainer     only those named
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all; return the number that failed."""
    scripts = sorted(
        path for path in FOLDER.glob("*.py") if path.stem not in ("run_all", "measure")
    )
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
        failed += subprocess.run([sys.executable, str(script)], check=False).returncode != 0
        print(f"   ({time.perf_counter() - started:.0f} s)\n", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
