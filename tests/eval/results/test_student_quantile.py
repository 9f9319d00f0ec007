"""Quantiles of Student's t, at the levels that repeated looks and fractional degrees of freedom lead to."""

import mpmath
import pytest

from hud.eval.results.intervals import student


@pytest.mark.parametrize("freedom", [1, 1.05, 2, 2.3, 3.5, 7.7, 60, 1000])
@pytest.mark.parametrize("level", [0.5, 0.05, 1e-3, 1e-5, 1e-8])
def test_a_quantile_has_its_level_beyond_it(freedom, level):
    """The density of t is integrated by quadrature."""
    half = mpmath.mpf(freedom + 1) / 2
    scale = (
        mpmath.gamma(half)
        / mpmath.gamma(mpmath.mpf(freedom) / 2)
        / mpmath.sqrt(freedom * mpmath.pi)
    )
    quantile = student(level, freedom)

    def density(t):
        return scale * (1 + t**2 / freedom) ** -half

    beyond = mpmath.quad(density, [quantile, 2 * quantile, 8 * quantile, mpmath.inf])
    assert float(2 * beyond) == pytest.approx(level, rel=1e-6)
