"""The incidents that `benchmarks/incident_lab_gains.py` holds out are tasks, and none of them is one to train on."""

import json
import sys
from pathlib import Path

import pytest

from hud_benchmarks.incident_lab.incidents import RECORDED
from hud_benchmarks.incident_lab.lab.facts import Fact
from hud_benchmarks.incident_lab.lab.faults import FAULTS
from hud_benchmarks.incident_lab.lab.finding import Finding
from hud_benchmarks.incident_lab.solvable import problem

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
HELD_OUT = BENCHMARKS / "incident_lab_held_out"
ENTRIES = json.loads((HELD_OUT / "findings.json").read_text())


@pytest.mark.parametrize("name", ENTRIES)
def test_a_held_out_incident_can_be_solved(name):
    entry = ENTRIES[name]
    finding = Finding(entry["service"], entry["cause"], entry["culprit"])
    facts = {
        area: {service: Fact(*fact) for service, fact in by_service.items()}
        for area, by_service in entry["facts"].items()
    }
    assert problem(HELD_OUT / f"{name}.sqlite.gz", entry["page"], finding, facts) is None


def test_one_incident_of_each_fault_is_held_out_with_another_culprit():
    shipped = json.loads((RECORDED / "findings.json").read_text())
    assert set(ENTRIES) == set(FAULTS)
    assert not {entry["culprit"] for entry in ENTRIES.values()} & {
        entry["culprit"] for entry in shipped.values()
    }


def test_the_folder_of_the_incidents_has_variants_to_train_on_and_the_held_out_ones(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    from incident_variants import write_incidents

    write_incidents(HELD_OUT, tmp_path / "incidents", variants=2, limit=3, seed=0)
    names = set(json.loads((tmp_path / "incidents" / "findings.json").read_text()))
    assert len([name for name in names if name.startswith("held-")]) == 3
    assert len(names) == 9
    files = {path.name for path in (tmp_path / "incidents").glob("*.gz")}
    assert files == {f"{name}.sqlite.gz" for name in names}


def test_the_page_shows_the_record(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    from gain_tables import LAB_PAGE, incident_lab

    record = json.loads((BENCHMARKS / "incident_lab_gains.json").read_text())
    assert set(record["rewards"]["base"]) == {f"held-{name}" for name in ENTRIES}
    assert incident_lab(record) in LAB_PAGE.read_text()
