"""Benchmarks write one JSON record for each figure; the table and the plot are made of these records alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "perf"
SCRIPT = """
from records import report
report("sampled", 200.0, "tokens/s", bar=150, peer="generate", peer_value=100.0)
report("overhead", 4.0, "ms", bar=3, at_most=True)
"""


@pytest.fixture
def recorded(tmp_path) -> tuple[str, list[dict]]:
    """Return what a benchmark of two figures printed and recorded."""
    script, target = tmp_path / "pair.py", tmp_path / "records.jsonl"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(FOLDER), "BENCH_RECORDS": str(target)},
    )
    return done.stdout, [json.loads(row) for row in target.read_text().splitlines()]


@pytest.fixture
def results(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import results

    return results


def test_a_record_holds_the_figure_its_peer_the_commit_and_the_machine(recorded):
    printed, (sampled, overhead) = recorded
    assert (sampled["value"], sampled["peer_value"], sampled["ratio"]) == (200, 100, 2)
    assert sampled["held"]
    assert not overhead["held"]
    assert all(one["commit"] and one["machine"] and one["at"] for one in (sampled, overhead))
    assert "sampled: 200 tokens/s, generate 100, ratio 2 (at least 150: held)" in printed
    assert "overhead: 4 ms (at most 3: missed)" in printed


def test_the_table_shows_the_latest_record_of_each_figure(recorded, results):
    _, records = recorded
    later = {**records[0], "value": 300.0, "ratio": 3.0, "commit": "abc"}
    table = results.table([*records, later])
    rows = [row for row in table.splitlines() if row.startswith("| `")]
    assert len(rows) == 2
    assert "| sampled | 300 tokens/s | ≥ 150 | generate 100 | 3 | abc | A |" in table
    assert "≤ 3 **missed**" in table


def test_the_plot_draws_the_ratios_of_several_commits(recorded, results, tmp_path):
    _, records = recorded
    results.plot([*records, {**records[0], "commit": "abc"}], tmp_path / "ratios.png")
    assert (tmp_path / "ratios.png").read_bytes().startswith(b"\x89PNG")


def test_the_committed_table_is_that_of_the_committed_records(results):
    written = (FOLDER / "RESULTS.md").read_text()
    assert results.table(results.read(FOLDER / "records.jsonl")) in written
