"""The benchmarks through Tinker's client start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tinker", reason="scripts/setup-integration tinker")

PERF = Path(__file__).parents[3] / "benchmarks" / "perf"
SCRIPTS = sorted(path.stem for path in PERF.glob("*_through_tinker.py"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_through_tinker_starts(name):
    done = subprocess.run(
        [sys.executable, str(PERF / f"{name}.py"), "--help"],  # A run takes a quarter of an hour.
        capture_output=True,
        text=True,
        env={**os.environ, "BENCH_SMALLEST": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
