"""`incident-lab/flat` and `incident-lab/team`: their splits, their scripts and the baseline that they ship."""

import json
import subprocess
import sys

import pytest
from tests.benchmarks.played import rewards

from hud.benchmarks import SPLITS, benchmark
from hud.benchmarks.baseline.baseline_file import baseline_file
from hud.errors import UsageError
from hud_benchmarks.incident_lab import incidents as recordings
from hud_benchmarks.incident_lab.lab.finding import CAUSES

WAYS = ("flat", "team")


@pytest.mark.parametrize("way", WAYS)
def test_one_incident_of_each_cause_is_held_out_and_two_are_for_training(way):
    causes = {
        split: sorted(
            task.columns["cause"] for task in benchmark(f"incident-lab/{way}").tasks(split)
        )
        for split in SPLITS
    }
    assert causes == {"held-out": sorted(CAUSES), "train": sorted([*CAUSES, *CAUSES])}


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("way", WAYS)
async def test_the_reference_solvers_get_what_the_shipped_baseline_says(
    way, split, monkeypatch, tmp_path
):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    member = benchmark(f"incident-lab/{way}")
    tasks = member.tasks(split)
    for name, result in baseline_file(member.name).references.items():
        measured = await rewards(tasks, member.references[name].make(), max_concurrent=4)
        assert measured == {task.slug: result.on(task.slug) for task in tasks}, name


@pytest.mark.parametrize("variable", ["FOLDER", "REAL_SERVERS"])
def test_other_incidents_do_not_pass_for_the_benchmark(variable, monkeypatch, tmp_path):
    monkeypatch.setattr(recordings, variable, tmp_path)
    with pytest.raises(UsageError, match="Unset INCIDENT_LAB and INCIDENT_LAB_MCP"):
        benchmark("incident-lab/flat").tasks()


@pytest.mark.slow
def test_looking_at_the_benchmarks_loads_neither_servers_nor_recordings():
    code = (
        "import json, sys; from hud.benchmarks import benchmarks; benchmarks(); "
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lab = {name for name in json.loads(done.stdout) if name.startswith("hud_benchmarks.incident")}
    assert lab == {"hud_benchmarks.incident_lab", "hud_benchmarks.incident_lab.benchmarks"}


@pytest.mark.slow
def test_playing_needs_nothing_of_the_extra_that_recording_needs():
    recording = ["psutil", "psycopg", "redis", "sentry_sdk"]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({recording!r})); "
        "from hud_benchmarks.incident_lab import compare, flat, hierarchical, players"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
