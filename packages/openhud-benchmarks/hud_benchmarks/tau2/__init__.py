"""tau2: customer service of an airline, a shop and a telephone carrier, graded on the state that is left behind."""

from hud_benchmarks.tau2.benchmarks import family

__all__ = ["family"]
