"""Autonomy-10: ten categories of computer use on real applications, `autonomy-10`."""

from hud_benchmarks.autonomy.benchmarks import family

__all__ = ["family"]
