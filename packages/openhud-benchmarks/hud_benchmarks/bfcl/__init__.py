"""BFCL multi-turn: conversations with a user over stateful APIs, graded by the package's own checker."""

from hud_benchmarks.bfcl.benchmarks import family

__all__ = ["family"]
