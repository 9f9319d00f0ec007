"""`hud fleet nodes` in 80 columns."""

import json
from dataclasses import replace

import pytest

from hud.cli.main import run
from hud.client import connect, disconnect
from hud_platform.access import LOCAL
from hud_platform.rollouts.nodes import Nodes

NAME = "ip-10-0-131-231.us-east-2.compute.internal"
LABELS = {"market": "spot", "zone": "us-east-2b"}
CAPACITY = {
    "cpus": 64.0,
    "memory_mb": 262_144,
    "gpus": 1,
    "images": True,
    "platform": "linux-x86_64-cp311",
    "rollouts": 128,
}
LOAD = {"running": 120, "finished": 104_333, "failures_in_a_row": 7, "per_minute": 1043.0}


@pytest.fixture
def node(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("HUD_API_URL", raising=False)
    nodes = Nodes(connect().embedded.parts.store)
    who = replace(LOCAL, worker=True, key_id="a" * 32)
    nodes.join(who, "secret", shown=NAME, labels=LABELS, capacity=CAPACITY, version="1.0")
    nodes.heard(nodes.of(who, "secret"), LOAD)
    yield
    disconnect(tmp_path / "home")


def test_a_node_has_a_row_and_what_it_is_and_has_below(node, capsys):
    assert run(["fleet", "nodes"]) == 0
    head, row, *about = capsys.readouterr().out.splitlines()
    assert max(map(len, (head, row, *about))) <= 80
    assert head.split() == ["id", "name", "state", "running", "per", "min", "finished", "preempted"]
    assert row.split()[2:] == ["open", "!", "120/128", "1043", "104333", "0"]
    assert row.endswith("0")
    assert "ip-10-0" in row
    said = " ".join(" ".join(about).split())
    assert "market=spot zone=us-east-2b; 64 cores, 256 GiB, 1 GPU, images" in said
    assert f"{NAME}: Its last 7 rollouts all broke." in said


def test_its_json_has_everything(node, capsys):
    assert run(["fleet", "nodes", "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["items"]
    assert (shown["name"], shown["labels"], shown["room"]) == (NAME, LABELS, 128)
