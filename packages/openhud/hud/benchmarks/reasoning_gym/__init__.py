"""reasoning-gym: procedural generators of questions, each a benchmark `reasoning-gym/NAME`."""

from hud.benchmarks.reasoning_gym.generators import LEFT_OUT, benchmarks

__all__ = ["LEFT_OUT", "benchmarks"]
