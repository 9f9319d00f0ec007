"""Autonomy-10: ten categories of computer use on real applications, `autonomy-10`."""

from hud.benchmarks.autonomy.benchmarks import benchmarks

__all__ = ["benchmarks"]
