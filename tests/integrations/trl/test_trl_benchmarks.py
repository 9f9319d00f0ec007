"""The benchmarks against TRL start: its GRPO step runs at its smallest size, the others up to their options."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="scripts/setup-integration trl")

PERF = Path(__file__).parents[3] / "benchmarks" / "perf"
OPTIONS: dict[str, list[str]] = {"grpo_against_trl": []}
"""Whole runs; the other scripts take minutes at any size."""
SCRIPTS = sorted(path.stem for path in PERF.glob("*_against_trl.py"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_against_trl_starts(name):
    done = subprocess.run(
        [sys.executable, str(PERF / f"{name}.py"), *OPTIONS.get(name, ["--help"])],
        capture_output=True,
        text=True,
        env={**os.environ, "BENCH_SMALLEST": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
