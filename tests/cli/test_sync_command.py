"""`hud sync tasks` brings tasks to the platform and says what changes; `hud eval NAME` plays them from there."""

import csv
import json
from pathlib import Path

import pytest

import hud.client
from hud import Taskset
from hud.cli.main import run

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    yield
    hud.client.disconnect(tmp_path / "home")


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([{"env": "e", "id": "t", "args": {"n": n}} for n in range(3)]))
    return path


def sync(capsys, *arguments):
    code = run(["sync", "tasks", *map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_new_then_unchanged_then_changed(capsys, rows):
    assert sync(capsys, "mine", rows)[1]["tasks_created"] == 3
    assert sync(capsys, "mine", rows)[1]["unchanged"] == 3
    tasks = json.loads(rows.read_text())
    tasks[0] |= {"slug": "t-first", "columns": {"level": "easy"}}
    rows.write_text(json.dumps(tasks))
    _, third = sync(capsys, "mine", rows)
    assert third["to_create"] == ["t-first"]
    assert len(third["remote_only"]) == 1


@pytest.mark.parametrize("value", [1.0, True, "1"])
def test_what_is_equal_in_python_only_is_a_change(capsys, rows, value):
    row = {"env": "e", "id": "t", "slug": "s", "args": {"n": 1}}
    rows.write_text(json.dumps([row]))
    sync(capsys, "mine", rows)
    rows.write_text(json.dumps([{**row, "args": {"n": value}}]))
    assert sync(capsys, "mine", rows)[1]["to_update"] == ["s"]
    assert sync(capsys, "mine", rows)[1]["unchanged"] == 1


def test_a_changed_row_is_shown_with_what_changed(capsys, rows):
    row = {"env": "e", "id": "t", "slug": "s", "args": {"n": 1, "gone": [1]}}
    rows.write_text(json.dumps([row]))
    sync(capsys, "mine", rows)
    rows.write_text(json.dumps([{**row, "args": {"n": 2}, "columns": {"level": "easy"}}]))
    assert run(["sync", "tasks", "mine", str(rows), "--yes"]) == 0
    said = capsys.readouterr().out
    assert '~ s  args.gone: [1] → –; args.n: 1 → 2; columns.level: – → "easy"' in said


def test_a_dry_run_sends_nothing(capsys, rows):
    code, said = sync(capsys, "mine", rows, "--dry-run")
    assert (code, len(said["to_create"])) == (0, 3)
    with pytest.raises(Exception, match="no taskset"):
        Taskset.from_api("mine")


def test_the_folder_remembers_where_its_tasks_went(capsys, rows):
    sync(capsys, "mine", rows)
    assert run(["sync", "tasks", "--export", "back.jsonl"]) == 0
    capsys.readouterr()
    assert list(Taskset.from_file("back.jsonl")) == list(Taskset.from_file(rows))


def test_without_a_name_or_a_link_the_command_says_what_to_do(capsys, rows):
    assert run(["sync", "tasks", "--export", "back.jsonl"]) == 2
    assert "Name the taskset" in capsys.readouterr().err


def test_a_csv_has_the_columns(capsys, rows, tmp_path):
    tasks = json.loads(rows.read_text())
    tasks[0]["columns"] = {"level": "easy"}
    rows.write_text(json.dumps(tasks))
    sync(capsys, "mine", rows)
    run(["sync", "tasks", "mine", "--export", "t.csv"])
    lines = (tmp_path / "t.csv").read_text().splitlines()
    assert lines[0] == "slug,env,id,args,level"
    assert lines[1].endswith(",easy")


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("=HYPERLINK(A1)", "'=HYPERLINK(A1)"),
        ("+1+cmd|'/C calc'!A0", "'+1+cmd|'/C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1+1", "'\t'=1+1"),
        (" =1+1", "' =1+1"),
        ("＝1+1", "'＝1+1"),
        ("\u200b=1+1", "'\u200b=1+1"),
        ("\x01=1+1", "'\x01=1+1"),
        ("x;=cmd()", "x;'=cmd()"),
        ("x; =cmd()|-1", "x;' =cmd()|'-1"),
        ("x\n@SUM(A1)", "x\n'@SUM(A1)"),
        ("x\t＋1", "x\t'＋1"),
        (";;=1", ";;'=1"),
        ("a=b", "a=b"),
        ("a;b=c | d", "a;b=c | d"),
        ("-2.5", "-2.5"),
        (-3, "-3"),
        (-2.5e-7, "-2.5e-07"),
    ],
)
def test_a_csv_holds_no_cell_that_a_spreadsheet_executes(capsys, rows, tmp_path, value, written):
    tasks = json.loads(rows.read_text())
    tasks[0]["columns"] = {"=name": value}
    rows.write_text(json.dumps(tasks))
    sync(capsys, "mine", rows)
    assert run(["sync", "tasks", "mine", "--export", "t.csv"]) == 0
    with (tmp_path / "t.csv").open(newline="") as file:
        header, first, *_ = csv.reader(file)
    assert (header[-1], first[-1]) == ("'=name", written)


def test_eval_names_both_places_it_looked(capsys):
    assert run(["eval", "nowhere", str(EXAMPLES / "arithmetic_agent.py")]) == 2
    said = capsys.readouterr().err
    assert "no file nowhere" in said
    assert "no taskset" in said


async def test_from_api_works_inside_a_running_loop(capsys, rows):
    from hud.eval.tasksets.synchronization import send

    await send("mine", list(Taskset.from_file(rows)))
    assert Taskset.from_api("mine").taskset_id is not None
