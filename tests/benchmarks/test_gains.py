"""docs/gains.md shows the records of `benchmarks/`, and a family is measured from a random model to its record."""

import importlib.util
import json
import sys
from pathlib import Path
from statistics import fmean, stdev

import pytest
from tests.benchmarks.played import installed

from hud.eval import NullRecorder
from hud.eval.results.intervals import clustered_interval
from hud.eval.results.paired_differences import pair

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "gains.md").read_text()


def script(name, monkeypatch):
    """Import a script of `benchmarks/`, which finds the modules beside it."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    spec = importlib.util.spec_from_file_location(f"script_{name}", ROOT / f"benchmarks/{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def records():
    names = (
        "gains", "pretrained_gains", "incidents", "curriculum", "turn_credit", "distillation",
    )  # fmt: skip
    return {name: json.loads((ROOT / f"benchmarks/{name}.json").read_text()) for name in names}


def interval(rewards):
    return clustered_interval(list(rewards.values()))


def test_the_page_shows_the_tables_of_the_records(monkeypatch, records):
    tables = script("gain_tables", monkeypatch).tables()
    assert set(tables) == set(records)
    assert [name for name, table in tables.items() if table not in PAGE] == []


@pytest.mark.parametrize(("script_name", "least"), [("gains", 3), ("pretrained_gains", 1)])
def test_families_gain_beyond_their_intervals_and_their_null_runs_do_not_gain(
    records, script_name, least
):
    families = {name: record["rewards"] for name, record in records[script_name].items()}
    assert len(families) >= least
    for name, sides in families.items():
        assert interval(sides["base"]).high < interval(sides["trained"]).low, name
        assert pair(sides["base"], sides["null"]).overall.low < 0, name


def test_distillation_reaches_the_teacher_in_a_third_of_the_rollouts_of_grpo(records):
    """A run of GRPO that did not reach it took more than are counted; the null run gains nothing."""
    record = records["distillation"]
    methods = {}
    for run in record["runs"]:
        methods.setdefault(run["method"], {})[run["seed"]] = run
    distilled, reinforced = methods["distillation"], methods["GRPO"]
    assert distilled.keys() == reinforced.keys() == methods["null"].keys()
    assert len(distilled) >= 5
    for seed, run in distilled.items():
        assert run["reached"]
        assert run["held_out"][-1][1] >= record["scores"]["teacher"]["low"]
        assert 3 * run["rollouts"] <= reinforced[seed]["rollouts"]
        assert methods["null"][seed]["held_out"][-1][1] <= record["scores"]["student"]["high"]


def test_a_policy_that_reads_solutions_learns_from_itself_and_the_page_shows_it(monkeypatch):
    record = json.loads((ROOT / "benchmarks/teacher_hints.json").read_text())
    table = script("gain_tables", monkeypatch).teacher_hints(record)
    assert table in (ROOT / "docs/distillation.md").read_text()
    gains = {}
    for run in record["runs"]:
        gain = run["held_out"][-1][1] - run["held_out"][0][1]
        gains.setdefault(run["hint"], []).append(gain)
    assert len(gains["its own solution"]) >= 5
    assert min(gains["its own solution"]) > 0.5
    assert max(gains["another task's solution"]) < 0


def test_rewards_of_turns_take_at_most_0_7_of_the_rollouts_with_intervals_apart(records):
    sides = {"per run": {}, "per turn": {}}
    for run in records["turn_credit"]["runs"]:
        assert run["reached"]
        sides[run["side"]][run["seed"]] = run["rollouts"]
    by_run, by_turn = sides.values()
    assert len(by_run) == 10
    assert fmean(by_turn.values()) <= 0.7 * fmean(by_run.values())
    assert all(by_turn[seed] <= by_run[seed] for seed in by_run)
    quantile = 2.262  # Student's t at 97.5% with nine degrees of freedom.
    reach = {name: quantile * stdev(side.values()) / 10**0.5 for name, side in sides.items()}
    assert fmean(by_turn.values()) + reach["per turn"] < fmean(by_run.values()) - reach["per run"]
    target = records["turn_credit"]["target"]
    assert all(score < target for _, score in records["turn_credit"]["null"]["held_out"])


def test_null_runs_of_the_pretrained_model_stay_within_their_bases_intervals(records):
    for name, record in records["pretrained_gains"].items():
        base, null = (record["rewards"][policy] for policy in ("base", "null"))
        mean = fmean(reward for earned in null.values() for reward in earned)
        assert interval(base).low <= mean <= interval(base).high, name


def test_flat_and_hierarchical_policies_gain_on_incidents_and_their_null_runs_do_not(records):
    sides = records["incidents"]["rewards"]
    for top in ("flat", "lead"):
        assert interval(sides[f"{top}-base"]).high < interval(sides[top]).low, top
        null = pair(sides[f"{top}-base"], sides[f"{top}-null"]).overall
        assert null.low < 0 < null.high, top


def test_signal_reaches_the_demo_s_target_in_fewer_rollouts_and_honest_runs_raise_no_alarm(records):
    runs = records["curriculum"]["runs"]
    by_curriculum = {
        curriculum: {one["seed"]: list(one["rollouts"].values()) for one in runs if one["curriculum"] == curriculum}
        for curriculum in ("uniform", "signal")
    }  # fmt: skip
    assert {len(of_seed) for of_seed in by_curriculum.values()} == {5}
    last = {name: fmean(one[-1] for one in of.values()) for name, of in by_curriculum.items()}
    assert last["signal"] < last["uniform"]
    assert [one for one in runs if one["alarms"]] == []


@pytest.mark.parametrize("name", ["branch", "relay"])
async def test_a_family_of_the_pretrained_model_leaves_much_to_learn(name, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "pretrained_families"))
    family = script(f"pretrained_families/{name}", monkeypatch)
    trained, held_out = ({task.slug for task in tasks} for tasks in (family.train, family.held_out))
    assert not trained & held_out
    job = await family.train.run(family.apprentice(0), group=4, recorder=NullRecorder())
    assert 0.2 < job.reward < 0.6
    for share in ("GUESSES", "SKIPS", "MISTAKES", "SLIPS"):
        monkeypatch.setattr(family, share, 0.0, raising=False)
    job = await family.held_out.run(family.apprentice(0), recorder=NullRecorder())
    assert job.reward == 1.0


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_family_is_measured_from_a_random_model_to_its_record(tmp_path, monkeypatch):
    installed("reasoning-gym/coin_flip")
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    gains = script("gains", monkeypatch)
    monkeypatch.setitem(gains.FAMILIES, "coin_flip", gains.Family(steps=1, epochs=1, max_tokens=8))
    monkeypatch.setattr(gains, "SIZES", {"vocab_size": 512, "hidden": 32, "layers": 1})
    record = await gains.measure("coin_flip", seed=0)
    assert set(record["rewards"]) == {"constant", "base", "null", "trained"}
    assert {len(one) for one in record["rewards"].values()} == {len(record["rewards"]["base"])}
    assert record["steps"] == 1
    assert "| coin_flip |" in gains.reasoning_gym({"coin_flip": record})
