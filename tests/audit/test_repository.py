"""Environments of this repository give nothing to agents that do none of the work."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from benchmarks.audit_table import PAGE, RECORD, rows, table
from tests.benchmarks.played import installed

from hud.audit import EXPLOITS, Audit
from hud.cli.evaluation.player import player
from hud.cli.main import run
from hud.eval import Taskset

EXAMPLES = Path(__file__).parents[2] / "examples"


async def audited(tasks, solver, most=None, exploits=EXPLOITS, **options):
    """Audit tasks, evenly spaced; the solver is named as in `hud audit`."""
    every = max(1, len(tasks) // (most or len(tasks)))
    some = tasks.filter([task.slug for task in tasks][::every][:most])
    audit = Audit(some, exploits=exploits, **options)
    await audit.play(player(solver, None, {}) if isinstance(solver, str) else solver)
    return audit.report()


def check(report):
    assert report.unmeasured == {}
    assert [(task.label, task.exploit, task.highest) for task in report.above] == []
    assert [f for f in report.findings if f.kind in ("unstable grader", "constant grader")] == []
    assert {task.solved for task in report.tasks} <= {1.0, None}


def preset(name, folder, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(folder / "home"))
    monkeypatch.chdir(folder)
    assert run(["init", name, "--preset", name]) == 0
    return folder / name


BY_CHANCE = {"gsm_symbolic", "shortest_path"}
"""Generators of reasoning-gym of which docs/audit.md says why a task lies above its floor."""


def test_the_documentation_shows_the_audit_of_every_environment_and_benchmark():
    """`python benchmarks/audit_table.py NAME...` audits what is missing, or has other tasks than it had."""
    records = json.loads(RECORD.read_text())
    sizes = rows()
    assert [name for name in sizes if name not in records] == []
    assert {
        name: sizes[name] for name in sizes if sizes[name] not in (0, records[name]["of"])
    } == {}
    above = {
        slug.rpartition("-held-out-")[0] for record in records.values() for slug in record["above"]
    }
    assert above <= BY_CHANCE
    assert table(records) in PAGE.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["blank", "tools", "subagents"])
async def test_presets_of_hud_init(name, tmp_path, monkeypatch):
    folder = preset(name, tmp_path, monkeypatch)
    tasks = Taskset.from_file(folder / "tasks.py")
    check(await audited(tasks, f"{folder}/agent.py"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mcp", "workspace", "browser"])
async def test_presets_with_servers_shells_and_screens(name, tmp_path, monkeypatch):
    folder = preset(name, tmp_path, monkeypatch)
    tasks = Taskset.from_file(folder / "tasks.py")
    played = [one for one in EXPLOITS if one.name in ("nothing", "vocabulary", "calls", "reach")]
    check(await audited(tasks, f"{folder}/agent.py", 1, exploits=played))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tasks", "solver"),
    [
        ("arithmetic.py", "arithmetic_agent.py:agent"),
        ("depot/tasks.py", "depot/scripted.py:agent"),
        ("triage/tasks.py", "triage/scripted.py:agent"),
        ("hierarchy/clerk_tasks.py", "hierarchy/scripted.py:expert_clerk"),
    ],
)
async def test_examples(tasks, solver, monkeypatch):
    monkeypatch.setattr(sys, "path", [str((EXAMPLES / tasks).parent), *sys.path])
    check(await audited(Taskset.from_file(EXAMPLES / tasks), f"{EXAMPLES}/{solver}", 6))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("bfcl-multi-turn", 3),
        ("reasoning-gym/chain_sum", 10),
        ("reasoning-gym/game_of_life_halting", 10),
        ("reasoning-gym/time_intervals", 10),
    ],
)
async def test_samples_of_benchmarks(name, most):
    found = installed(name)
    check(await audited(found.tasks(), found.oracle(), most))


@pytest.mark.slow
async def test_scenarios_whose_numbers_do_not_matter_declare_it():
    found = installed("bfcl-multi-turn")
    tasks = found.tasks().filter(["multi_turn_base_35"])
    report = await audited(tasks, found.oracle())
    check(report)
    assert "declared" in {finding.kind for finding in report.findings}
