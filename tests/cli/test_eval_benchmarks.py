"""`hud eval --benchmark`, `hud benchmarks`: what packages ship, as a person plays it."""

from __future__ import annotations

import json

import pytest
from tests.benchmarks.played import installed

import hud.client
from hud.benchmarks import Benchmark, Package, benchmark, benchmarks
from hud.benchmarks.installation import packages, pip_arguments
from hud.cli.main import run
from hud.errors import NotFoundError, UsageError


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in ("HUD_API_URL", "HUD_GATEWAY_URL", "HUD_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")
    yield tmp_path / "home"
    hud.client.disconnect(tmp_path / "home")


def played(capsys, *arguments):
    assert run(["eval", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *arguments):
    assert run(["eval", *arguments]) == 2
    return capsys.readouterr().err


def test_the_list_tells_tasks_splits_licence_and_package(capsys):
    assert run(["eval", "--benchmark", "list"]) == 0
    told = capsys.readouterr().out
    assert run(["benchmarks", "list"]) == 0
    assert capsys.readouterr().out == told
    head, *rows = (line.split() for line in told.partition("\n\n")[0].splitlines())
    assert head == ["benchmark", "train", "held-out", "package", "licence", "ready"]
    rows = {name: shown[:5] for name, *shown in rows}
    assert rows["bfcl-multi-turn"] == ["599", "200", "bfcl-eval", "2026.3.23", "Apache-2.0"]
    assert rows["miniwob"] == ["1,250", "250", "miniwob", "1.1.0", "MIT"]
    assert "miniwob needs chromium, bubblewrap: scripts/setup-worlds" in told
    gym = ["48,113", "9,725", "reasoning-gym", "0.1.25", "Apache-2.0"]
    assert rows["reasoning-gym/NAME"] == gym
    assert rows["tau2/NAME"] == ["160", "92", "inspect-evals", "0.26.0", "MIT"]
    assert "tau2/retail needs a model that plays the customer: HUD_USER_MODEL" in told
    assert "tau2/telecom needs" not in told
    assert "chain_sum" in told
    assert "rush_hour" not in told


def test_the_list_as_json_has_an_entry_for_each(capsys):
    assert run(["benchmarks", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == [one.name for one in benchmarks()]
    (bfcl,) = (row for row in rows if row["name"] == "bfcl-multi-turn")
    assert bfcl["tasks"] == {"train": 599, "held-out": 200}


@pytest.mark.slow
@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nothing", 0.0)])
@pytest.mark.parametrize("name", ["bfcl-multi-turn", "reasoning-gym/chain_sum"])
def test_a_benchmark_is_played_by_its_oracle_and_by_nothing(capsys, name, agent, reward):
    installed(name)
    found = played(capsys, "--benchmark", name, agent, "--task-ids", "0,3")
    assert [one["reward"] for one in found["runs"]] == [reward] * 2


@pytest.mark.slow
def test_a_benchmark_is_played_whole_and_a_split_can_be_chosen(capsys):
    installed("reasoning-gym/coin_flip")
    found = played(capsys, "--benchmark", "reasoning-gym/coin_flip", "oracle")
    assert (found["name"].split(" · ")[0], len(found["runs"])) == (
        "reasoning-gym/coin_flip held-out",
        80,
    )
    chosen = ("--split", "train", "--task-ids", "0")
    found = played(capsys, "--benchmark", "reasoning-gym/coin_flip", "nothing", *chosen)
    assert found["runs"][0]["slug"].startswith("coin_flip-train-")


@pytest.mark.slow
def test_doing_nothing_is_an_agent_for_any_tasks(capsys, tmp_path):
    path = tmp_path / "tasks.py"
    path.write_text(
        'from hud import Environment\nenv = Environment("say")\n\n\n@env.template()\n'
        'async def say():\n    answer = yield "Say x."\n    yield float(answer == "x")\n'
    )
    assert played(capsys, str(path), "nothing")["reward"] == 0.0
    assert "takes no auto_respond" in refused(capsys, str(path), "nothing", "--auto-respond")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--benchmark", "bfcl", "nothing"], "'bfcl-multi-turn'"),
        (["--benchmark", "reasoning-gym/chain_sums", "nothing"], "'reasoning-gym/chain_sum'"),
        (["--benchmark", "reasoning-gym/rush_hour", "nothing"], "left out: the package stores no"),
        (["--benchmark", "bfcl-multi-turn", "tasks.py", "nothing"], "give the agent alone"),
        (["tasks.py", "nothing", "--split", "train"], "--split goes with --benchmark"),
        ([], "Which tasks?"),
    ],
)
def test_what_cannot_be_played_is_told(capsys, arguments, told):
    assert told in refused(capsys, *arguments)


def test_a_package_that_is_missing_is_named_with_the_command_that_installs_it():
    none = Benchmark(
        "chess",
        "",
        Package("hud-no-such-distribution", "1.2", "MIT"),
        {"train": 0, "held-out": 1},
        lambda split: [],
    )
    told = (
        "needs hud-no-such-distribution 1.2: hud benchmarks install chess",
        "needs pytest 1.2, not ",
    )
    with pytest.raises(UsageError, match=told[0]):
        none.tasks()
    other = Benchmark(
        **{
            **vars(none),
            "package": Package("pytest", "1.2", "MIT"),
            "make_oracle": none.make_oracle,
        }
    )
    with pytest.raises(UsageError, match=told[1]):
        other.oracle()
    with pytest.raises(NotFoundError, match="there are train and held-out"):
        benchmark("bfcl-multi-turn").tasks("test")


def test_a_benchmark_without_solutions_says_so(capsys):
    installed("miniwob")
    told = refused(capsys, "--benchmark", "miniwob", "oracle")
    assert "has no oracle: its package has no solutions" in told


def test_packages_are_pinned_and_named_by_benchmark_or_family():
    known = {package.name: package for package in packages(["all"])}
    assert {"bfcl-eval", "miniwob", "reasoning-gym", "inspect-evals"} <= known.keys()
    gym = known["reasoning-gym"]
    assert packages(["reasoning-gym"]) == packages(["reasoning-gym/maze"]) == [gym]
    assert pip_arguments(known["bfcl-eval"]) == [
        ["--no-deps", "bfcl-eval==2026.3.23"],
        ["mpmath>=1.3,<1.4"],
    ]
    assert pip_arguments(known["miniwob"]) == [["--no-deps", "miniwob==1.1.0"]]
    assert pip_arguments(gym) == [["reasoning-gym==0.1.25"]]
    with pytest.raises(NotFoundError):
        packages(["chess"])


def test_what_is_installed_is_not_installed_again(capsys):
    installed("bfcl-multi-turn")
    assert run(["benchmarks", "install", "bfcl-multi-turn"]) == 0
    assert capsys.readouterr().out == "bfcl-eval 2026.3.23 is installed (Apache-2.0).\n"


@pytest.mark.slow
def test_a_score_is_printed_with_what_it_stands_on(capsys):
    installed("bfcl-multi-turn")
    arguments = ("--benchmark", "bfcl-multi-turn", "oracle", "--task-ids", "0,1")
    arguments = (*arguments, "--runtime", "local")
    assert run(["eval", *arguments]) == 0
    told = " ".join(capsys.readouterr().out.split())
    stands = "percentile 1.000 [0.006, 1.000] reference-anchored, no human baseline yet"
    assert stands in told
    assert run(["jobs", "--json"]) == 0
    (job,) = json.loads(capsys.readouterr().out)
    assert job["benchmark"] == "bfcl-multi-turn"
    assert run(["jobs", job["id"]]) == 0
    assert stands in " ".join(capsys.readouterr().out.split())
    found = played(capsys, *arguments)
    assert found["percentile"]["label"] == "reference-anchored, no human baseline yet"
    assert run(["eval", *arguments, "--resume", job["id"]]) == 0
    assert stands in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_a_baseline_is_measured_and_shown(capsys, home):
    installed("bfcl-multi-turn")
    chosen = ("bfcl-multi-turn", "--task-ids", "0,1")
    assert run(["baseline", "measure", *chosen]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["nothing", "expert", "Results:"]
    assert (home / "baselines" / "bfcl-multi-turn.json").exists()
    assert run(["baseline", "show", *chosen]) == 0
    told = capsys.readouterr().out
    assert told.splitlines()[1].split() == [
        *("multi_turn_base_3", "0", "–", "–"),
        *("nothing", "0,", "expert", "1"),
    ]
    assert "reference-anchored, no human baseline yet." in told
    assert run(["baseline", "show", *chosen, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["tasks"]
    assert [row["people"] for row in rows] == [0, 0]


def test_a_person_is_asked_at_a_terminal_alone(capsys):
    installed("bfcl-multi-turn")
    assert run(["baseline", "record", "bfcl-multi-turn", "--as", "ab"]) == 2
    told = capsys.readouterr()
    assert "recorded for 'ab'" in told.out
    assert "A person plays at a terminal" in told.err
