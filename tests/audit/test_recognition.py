"""An environment, its tools and its graders see the same of an audit as of an evaluation."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hud_platform.store import Store

ENVIRONMENT = '''
import json, os, re, sys, time
from hud import Environment

env = Environment("spy")
CALLED = []


@env.tool
def look(place: str) -> str:
    """Look at a place."""
    CALLED.append(time.monotonic())
    return "a cat"


def read(path):
    with open(path, "rb") as file:
        return file.read().decode("utf-8", "replace").split("\\0")


def ancestors(file="cmdline"):
    lines, pid = [], os.getpid()
    while pid > 1 and len(lines) < 3:
        lines.append(read(f"/proc/{pid}/{file}"))
        pid = int(read(f"/proc/{pid}/stat")[0].rpartition(")")[2].split()[1])
    return lines


def journals():
    """Journals that a process above has open: where they are, the form of their names, and whether they hold anything."""
    seen, pid = [], os.getppid()
    for _ in range(2):
        for link in os.scandir(f"/proc/{pid}/fd"):
            path = os.path.realpath(link.path)
            if path.endswith(".journal"):
                form = re.sub("[0-9a-f]+", "x", os.path.basename(path)[:-8])
                seen.append([os.path.dirname(path), form, os.path.getsize(path) > 0])
        pid = int(read(f"/proc/{pid}/stat")[0].rpartition(")")[2].split()[1])
    return seen


def player():
    """The process above that plays: its threads, and the forms of its open and mapped files."""
    pid = int(read(f"/proc/{os.getppid()}/stat")[0].rpartition(")")[2].split()[1])
    for _ in range(400):
        links = [link.path for link in os.scandir(f"/proc/{pid}/fd")]
        # A file that was closed since it was listed has no target.
        opened = [path for link in links if (path := os.path.realpath(link)) != link]
        mapped = [line.split(maxsplit=5)[-1] for line in read(f"/proc/{pid}/maps")[0].splitlines() if "/" in line]
        if all(any(path.endswith("hud.db-shm") for path in paths) for paths in (opened, mapped)):
            break  # What was recorded is sent after half a second; the database may be opened between the two lists.
        time.sleep(0.05)
    return {
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "loops": sum("eventpoll" in path for path in opened),
        "opened": sorted({re.sub("[0-9a-f]*[0-9][0-9a-f-]*", "x", path) for path in opened if ".pyc" not in path}),
        "mapped": sorted(set(mapped)),
    }


@env.template(id="one")
async def one(n: int):
    CALLED.clear()
    begun = time.monotonic()
    answer = yield f"Look, then say {n}."
    seen = {
        "variables": sorted(set(os.environ) - {"SPY"}),
        "values": {name: value for name, value in os.environ.items() if name != "SPY"},
        "arguments": sys.argv,
        "processes": ancestors(),
        "names": ancestors("comm"),
        "journals": journals(),
        "player": player(),
        "trace": answer.trace.model_dump(mode="json"),
        "first_call": CALLED[0] - begun if CALLED else None,
        "seconds": time.monotonic() - begun,
    }
    with open(os.environ["SPY"], "a") as file:
        file.write(json.dumps(seen) + "\\n")
    yield float(answer == str(n))


tasks = [one(n=3), one(n=4)]
'''
POLICY = """
from hud.trace import ToolCall

def agent(messages, tools, trace):
    if len(messages) == 1:
        return ToolCall(name="look", arguments={"place": "x"})
    return "3"
"""


def played(folder, *words):
    """Play a command as a shell does; returns what the environment saw of each run."""
    log = folder / f"{words[0]}.jsonl"
    log.unlink(missing_ok=True)
    variables = {**os.environ, "HUD_HOME": str(folder / "home"), "SPY": str(log)}
    hud = Path(sys.executable).with_name("hud")
    ended = subprocess.run(
        [hud, *words], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    assert log.exists(), ended.stdout + ended.stderr
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spied")
    (folder / "spy.py").write_text(ENVIRONMENT)
    (folder / "policy.py").write_text(POLICY)
    # The process that creates the database keeps the libraries of migrations mapped.
    Store.open(folder / "home").close()
    evaluated = played(folder, "eval", "spy.py", "policy.py:agent", "--all", "--yes")
    audited = played(folder, "audit", "spy.py", "--solver", "policy.py:agent")
    return evaluated, audited


def marks(run):
    """The variables that differ between processes, by their form."""
    return [name for name in run["variables"] if re.fullmatch("[A-Z]{8}", name)]


def test_both_have_the_same_variables_up_to_a_random_name(seen):
    evaluated, audited = ({name for run in runs for name in run["variables"]} for runs in seen)
    new = evaluated ^ audited
    assert {bool(re.fullmatch("[A-Z]{8}", name)) for name in new} <= {True}
    assert [len({tuple(marks(run)) for run in runs}) for runs in seen] == [1, 1]
    assert len(evaluated) == len(audited)
    common = evaluated & audited
    values = [{name: runs[0]["values"][name] for name in common} for runs in seen]
    assert values[0] == values[1]


def test_no_command_line_names_the_audit(seen):
    evaluated, audited = seen
    assert audited[0]["arguments"] == evaluated[0]["arguments"]
    assert audited[0]["names"] == evaluated[0]["names"]
    assert audited[0]["processes"][:2] == evaluated[0]["processes"][:2]
    shown = audited[0]["processes"][2]
    assert shown[:2] == evaluated[0]["processes"][2][:2]
    assert shown[2:] == ["eval", "spy.py", "policy.py:agent", "--all", ""]


def test_both_write_a_journal_of_which_an_audit_leaves_nothing(seen):
    evaluated, audited = seen
    home = Path(evaluated[0]["values"]["HUD_HOME"])
    assert evaluated[0]["journals"] == [[str(home / "journal"), "x-x", True]]
    assert {json.dumps(run["journals"]) for run in audited} == {
        json.dumps(evaluated[0]["journals"])
    }
    assert list((home / "journal").iterdir()) == []


def test_the_process_that_plays_has_the_same_threads_and_files(seen):
    evaluated, audited = seen
    assert any(path.endswith("hud.db-shm") for path in evaluated[0]["player"]["mapped"])
    assert [run["player"] for run in audited] == [evaluated[0]["player"]] * len(audited)


def forms(runs):
    """The forms of traces: their keys, and those of their steps, and of ids."""
    found = set()
    for run in runs:
        trace = dict(run["trace"])
        for step in trace.pop("steps"):
            keys = {name for name, value in step.items() if value not in (None, [], {}, "")}
            ids = [call["id"] for call in step.get("tool_calls") or []]
            ids += [step["call"]["id"]] if step.get("call") else []
            assert all(re.fullmatch("call_[0-9a-f]{8}", name) for name in ids)
            found.add((step["source"], frozenset(keys - {"content"})))
        found.add((trace["status"], trace["stop_reason"], frozenset(trace["extra"])))
    return found


def test_graders_see_the_turns_of_a_model(seen):
    evaluated, audited = seen
    assert forms(audited) == forms(evaluated)
    assert not any("audit" in json.dumps(run["trace"]).lower() for run in audited)
    for run in audited:
        turns = [step for step in run["trace"]["steps"] if step["source"] == "agent"]
        assert 1 <= len(turns) <= 10
        assert turns[-1]["done"]


def test_no_turn_is_faster_than_a_models(seen):
    audited = seen[1][2:]  # After those of the solver, which is an agent of its own.
    assert min(run["seconds"] for run in audited) >= 0.05
    assert min(run["first_call"] for run in audited if run["first_call"]) >= 0.05
