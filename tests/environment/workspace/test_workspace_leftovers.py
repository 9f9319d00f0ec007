"""Rollouts leave nothing behind, however they end."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="there is no bubblewrap here: scripts/setup-worlds"
)
SCRIPT = Path(__file__).parents[3] / "benchmarks" / "perf" / "leftovers.py"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rollouts_of_which_a_third_end_badly_leave_nothing_behind():
    played = subprocess.run(
        [sys.executable, str(SCRIPT), "20", "shells", "servers"],
        env={**os.environ, "BENCH_RECORDS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert played.returncode == 0, played.stdout + played.stderr
    assert "'cancelled': 2" in played.stdout
    assert "'failed': 5" in played.stdout
