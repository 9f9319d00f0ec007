"""Benchmarks that show something wherever they run: those that count, and that all of the GPU's can be run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from hud_benchmarks.autonomy.benchmarks import CATEGORIES

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
GALLERY = BENCHMARKS.parent / "docs" / "autonomy-10.md"


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a benchmark to its end."""
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "BENCH_RECORDS": ""},
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_gpu_benchmark_runs_on_tiny_shapes():
    done = run("gpu/run_all.py", "--tiny", "--limit", "300")
    assert done.returncode == 0, done.stderr[-2000:]
    for figure in (
        "decode over its floor",
        "mixed steps",
        "ours over transformers",
        "full, equal lengths, model FLOPs utilization",
        "LoRA, spread lengths, model FLOPs utilization",
        "swap",
        "GRPO step of 4 x 16 tokens",
        "TRL is not installed here" if find_spec("trl") is None else "with transformers",
        "sampler against trainer logprobs, p99",
    ):
        assert figure in done.stdout, figure


@pytest.mark.slow
def test_a_gpu_benchmark_that_hangs_is_killed_and_named():
    done = run("gpu/run_all.py", "--tiny", "--only", "parity", "--limit", "0.1")
    assert done.returncode == 1
    assert "parity: tiny was not finished after 0.1 s and was killed" in done.stderr
    assert done.stdout.splitlines()[:2] == ["CPU, tiny shapes", "parity: tiny"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_a_conversation_and_a_group_compute_twice_is_within_its_bars():
    done = run("perf/prefix_reuse.py")
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count(": held)") == 2


def test_the_gallery_has_a_picture_of_every_application():
    page = GALLERY.read_text()
    for category in CATEGORIES:
        picture = f"images/autonomy-{category.name}.png"
        assert f"]({picture})" in page
        assert (GALLERY.parent / picture).is_file()


@pytest.mark.slow
@pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("chromium", "bwrap")),
    reason="needs Chromium and bubblewrap (scripts/setup-worlds)",
)
def test_the_gallery_is_what_its_script_makes(tmp_path):
    pytest.importorskip("matplotlib")
    done = run("autonomy_gallery.py", "--to", str(tmp_path), "settings", "files")
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / GALLERY.name).read_text() == GALLERY.read_text()
    for name in ("settings", "files"):
        picture = (tmp_path / f"images/autonomy-{name}.png").read_bytes()
        assert 5_000 < len(picture) < 100_000
