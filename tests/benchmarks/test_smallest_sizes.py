"""Every script of `benchmarks/` runs: at its smallest size here, and in the suites of the integrations that it needs."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PERF = BENCHMARKS / "perf"
QUICK = (
    "common_beginnings",
    "fleet_store",
    "fork_rollouts",
    "host_step",
    "host_training",
    "inprocess_rollouts",
    "many_environments",
    "rollout_memory",
    "run_search",
    "sampler",
    "serving_streams",
    "telemetry",
    "tool_loop",
    "trainer",
    "weight_broadcast",
    "weight_network",
)
"""Scripts that need nothing special and end within seconds."""
LONG = (
    "dashboard_pages",
    "floors",
    "gateway_overhead",
    "gateway_passthrough",
    "gateway_streams",
    "grpo_step",
    "join_first_rollout",
    "pipeline",
    "real_model",
    "real_model_training",
    "remote_rollouts",
    "sampling_against_transformers",
)
NEEDING = {
    "browsers": "chromium",
    "containers": "podman",
    "dashboard_first_load": "chromium",
    "dashboard_live": "chromium",
    "leftovers": "bwrap",
    "workspaces": "bwrap",
}
"""Scripts by the program that they need."""
TESTED_ELSEWHERE = ("prefix_reuse", "results", "run_all", "dashboard_store")
RESEARCH = {
    "gains": ("aiw", "--records", "{folder}/gains.json"),
    "incident_gains": ("--record", "{folder}/incidents.json"),
    "curriculum": ("--folder", "{folder}/curriculum"),
    "prompt_gains": ("--folder", "{folder}/prompt_gains"),
    "improve_families": ("--folder", "{folder}/improve_families"),
    "distillation": ("--folder", "{folder}/distillation"),
    "teacher_hints": ("--folder", "{folder}/teacher_hints"),
    "turn_credit": ("--folder", "{folder}/turn_credit"),
}
"""Scripts that train, with their arguments."""
SIMULATIONS = ("interval_coverage",)
"""Scripts that simulate rewards."""
PEERS = ("_against_trl", "_through_tinker")
"""Ends of the names of scripts that the suites of those integrations run."""


def run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script at its smallest size."""
    variables = {"BENCH_SMALLEST": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_quick_benchmark_runs(name):
    done = run(PERF / f"{name}.py")
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.parametrize("name", SIMULATIONS)
def test_a_simulation_runs(name):
    done = run(BENCHMARKS / f"{name}.py")
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_a_long_benchmark_runs(name):
    done = run(PERF / f"{name}.py")
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDING)
def test_a_benchmark_of_programs_runs(name):
    if shutil.which(NEEDING[name]) is None:
        pytest.skip(f"needs {NEEDING[name]} (scripts/setup-worlds)")
    done = run(PERF / f"{name}.py")
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", RESEARCH)
def test_a_benchmark_that_trains_runs(name, tmp_path):
    arguments = [argument.format(folder=tmp_path) for argument in RESEARCH[name]]
    done = run(BENCHMARKS / f"{name}.py", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", ["branch", "relay"])
def test_a_family_of_the_pretrained_model_is_measured(
    family, pretrained_home, tmp_path, monkeypatch
):
    monkeypatch.setenv("HUD_HOME", str(pretrained_home))  # Its download.
    records = tmp_path / "records.json"
    done = run(BENCHMARKS / "pretrained_gains.py", family, "--records", str(records))
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    rewards = json.loads(records.read_text())[family]["rewards"]
    assert set(rewards) == {"base", "null", "trained"}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("script", "policies"),
    [
        ("incident_lab_gains", {"base", "trained", "null"}),
        (
            "incident_team_gains",
            {"hierarchical base", "hierarchical trained", "flat base", "flat trained"},
        ),
    ],
)
def test_the_incident_lab_is_measured_with_the_pretrained_model(
    script, policies, pretrained_home, tmp_path, monkeypatch
):
    monkeypatch.setenv("HUD_HOME", str(pretrained_home))  # Its download.
    record = tmp_path / "record.json"
    done = run(BENCHMARKS / f"{script}.py", "--record", str(record))
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert set(json.loads(record.read_text())["rewards"]) == policies


def test_every_benchmark_is_run_by_a_test():
    names = {path.stem for path in PERF.glob("*.py") if "__main__" in path.read_text()}
    alone = {name for name in names if not name.endswith(PEERS)}
    assert alone == {*QUICK, *LONG, *NEEDING, *TESTED_ELSEWHERE}


@pytest.mark.slow
def test_the_names_that_benchmarks_import_exist():
    """Also of scripts that a GPU or another package is needed for: each name of `hud` that they import is looked up."""
    wanted = sorted(
        {
            (node.module, alias.name)
            for path in BENCHMARKS.rglob("*.py")
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("hud")
            for alias in node.names
        }
    )
    code = (
        "import importlib, json, sys\n"
        "def there(module, name):\n"
        "    owner = importlib.import_module(module)\n"
        "    return hasattr(owner, name) or importlib.util.find_spec(f'{module}.{name}')\n"
        "print([pair for pair in json.load(sys.stdin) if not there(*pair)])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(wanted), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr[-2000:]
