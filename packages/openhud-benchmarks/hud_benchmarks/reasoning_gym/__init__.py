"""reasoning-gym: procedural generators of questions, each a benchmark `reasoning-gym/NAME`."""

from hud_benchmarks.reasoning_gym.generators import family

__all__ = ["family"]
