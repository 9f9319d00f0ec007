"""BFCL multi-turn: conversations with a user over stateful APIs, graded by the package's own checker."""

from hud.benchmarks.bfcl.benchmarks import benchmarks

__all__ = ["benchmarks"]
