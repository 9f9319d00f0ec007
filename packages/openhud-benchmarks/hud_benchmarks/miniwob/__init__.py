"""MiniWoB++: small web pages with a task each, done with mouse and keyboard, `miniwob`."""

from hud_benchmarks.miniwob.benchmarks import family

__all__ = ["family"]
