"""The plan and the report of an improvement."""

import pytest

from hud.errors import UsageError
from hud.train.budgeted.budget import Budget
from hud.train.improvement.config import ImproveConfig, make_improve_config
from hud.train.improvement.measurement import Standing, standing_of
from hud.train.improvement.plan import measured_rollouts, planned, reason_to_skip
from hud.train.improvement.report import ImprovementReport, RungReport, report_of
from hud.train.improvement.trained_rungs import gain_of_part
from hud.train.prompt_search.judgement import Judgement


def config(**values):
    return ImproveConfig(model="m", budget="5000rollouts", reflector="r", **values)


def standing(mean=0.3, best=0.8, with_signal=0.5, **others):
    return Standing("a" * 32, 20, 8, mean, best, with_signal, others)


def judged(gain, low, high, promoted):
    return Judgement(promoted, gain, low, high, 0.3, 0.3 + gain, 20, ["why"], ["a", "b"])


def test_rungs_without_what_they_need_are_absent():
    assert config().rungs == ["prompt", "imitate", "reinforce"]
    assert config(teacher="t", skip=["imitate"]).rungs == ["prompt", "distil", "reinforce"]
    assert ImproveConfig(model="m", budget="1h").rungs == ["imitate", "reinforce"]


@pytest.mark.parametrize("rollouts", [300, 1_000, 5_000])
@pytest.mark.parametrize("teacher", [None, "t"])
def test_the_shares_of_all_rungs_with_their_comparisons_fit_the_budget(rollouts, teacher):
    chosen = config(teacher=teacher)
    plan = planned(chosen, Budget(rollouts=rollouts), 0, 20, 10, chosen.rungs, None)
    head = 10 * chosen.eval_group
    total = measured_rollouts(chosen, 20) + head + sum(rung.most + rung.judged for rung in plan)
    assert total <= rollouts or all(rung.most == 0 for rung in plan)


def test_a_rung_that_does_not_fit_is_not_begun():
    chosen = config()
    plan = planned(chosen, Budget(rollouts=400), 160, 20, 10, chosen.rungs, standing())
    reasons = {rung.name: reason_to_skip(rung) for rung in plan}
    assert "does not hold its smallest part" in reasons["reinforce"]
    assert reasons["imitate"] is None, "it plays nothing"


@pytest.mark.parametrize(
    ("measured", "skipped"),
    [
        (standing(), set()),
        (
            standing(mean=1.0, best=1.0, with_signal=0.0),
            {"prompt", "imitate", "distil", "reinforce"},
        ),
        (standing(mean=0.5, best=0.5, with_signal=0.0, t=0.9), {"imitate", "reinforce"}),
        (standing(t=0.2), {"distil", "prompt"}),
        (standing(t=0.2, other=0.9), {"distil"}),
    ],
)
def test_a_rung_that_can_gain_nothing_is_skipped(measured, skipped):
    chosen = config(teacher="t")
    if not measured.others:
        measured = Standing(**{**measured.as_dict(), "others": {"t": 1.0}})
    plan = planned(chosen, Budget(rollouts=20_000), 160, 20, 10, chosen.rungs, measured)
    assert {rung.name for rung in plan if reason_to_skip(rung)} == skipped


def test_a_policy_is_measured_by_its_groups():
    rewards = {"a": [0.0, 1.0], "b": [0.5, 0.5], "c": []}
    measured = standing_of("job", 2, rewards)
    assert (measured.tasks, measured.mean, measured.best, measured.with_signal) == (
        2,
        0.5,
        0.75,
        0.5,
    )
    assert measured.within_reach == 0.25
    assert standing_of("job", 2, {"a": []}) is None


def test_the_gain_of_a_part_is_that_over_the_part_before():
    assert gain_of_part([0.1, 0.1, 0.3, 0.5], 2) == pytest.approx(0.3)
    assert gain_of_part([0.1, None, 0.3, None], 2) == pytest.approx(0.2)
    assert gain_of_part([0.1, 0.1], 2) is None


def test_the_verdict_says_what_each_rung_brought_and_whether_training_was_worth_it():
    rungs = [
        RungReport("prompt", "promoted", "", 5, judgement=judged(0.21, 0.14, 0.28, True)),
        RungReport("imitate", "skipped", "nothing to imitate"),
        RungReport(
            "reinforce", "held", "", 64, judgement=judged(0.02, -0.01, 0.05, False), model="f"
        ),
    ]
    report = ImprovementReport("r", "m", standing(), rungs, {}, "5 rollouts", 3, 20, True)
    assert report.promoted == ["prompt"]
    assert report.verdict == (
        "The prompt adds +0.210 [+0.140, +0.280]: promoted; 64 steps of reinforcement add +0.020 [-0.010, +0.050]: not promoted. "
        "Training was not worth it here."
    )
    assert report_of(report.as_dict()) == report
    nothing = ImprovementReport("r", "m", None, [], {}, "5 rollouts", 3, 20, True)
    assert nothing.verdict.startswith("Nothing was compared")


def test_settings_without_meaning_are_one_sentence():
    with pytest.raises(UsageError, match="The improvement: skip"):
        make_improve_config({"model": "m", "budget": "1h", "skip": ["dance"]})
    with pytest.raises(UsageError, match="The improvement: budget"):
        make_improve_config({"model": "m"})
