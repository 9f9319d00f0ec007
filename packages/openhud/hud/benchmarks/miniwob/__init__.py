"""MiniWoB++: small web pages with a task each, done with mouse and keyboard, `miniwob`."""

from hud.benchmarks.miniwob.benchmarks import LEFT_OUT, benchmarks

__all__ = ["LEFT_OUT", "benchmarks"]
