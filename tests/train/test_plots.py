"""The curves of a training run: what is numerically zero is drawn as zero."""

import pytest

from hud.eval.results.held_out_scores import Score
from hud.train.monitoring.plots import draw_curves, is_rounding


@pytest.mark.parametrize(
    ("quantity", "values", "rounding"),
    [
        ("kl", [1e-13, -2e-13], True),
        ("gap", [3e-6, 1e-6], True),
        ("kl", [1e-13, 2e-3], False),
        ("entropy", [1e-13, 2e-13], False),
        ("kl", [], True),
    ],
)
def test_a_curve_is_rounding_where_its_largest_value_is(quantity, values, rounding):
    assert is_rounding(quantity, values) == rounding


@pytest.mark.slow
def test_a_kl_of_rounding_draws_the_same_picture_as_none_at_all(tmp_path):
    def picture(name, kl):
        history = [
            {"step": step, "metrics": {"sampler_k3:mean": kl * (step % 3)}} for step in range(9)
        ]
        path = draw_curves(history, [], tmp_path / f"{name}.png")
        return path.read_bytes()

    assert picture("rounding", 1e-13) == picture("zero", 0.0)
    assert picture("signal", 1e-2) != picture("zero", 0.0)


@pytest.mark.slow
def test_a_mean_that_rounding_puts_outside_its_interval_is_drawn(tmp_path):
    mean = 0.4222222222222222
    scores = [
        Score(0, mean, low=mean + 6e-17, high=mean + 6e-17, runs=9),
        Score(5, mean, low=mean - 6e-17, high=mean - 6e-17, runs=9),
    ]
    assert draw_curves([], scores, tmp_path / "curves.png").exists()
