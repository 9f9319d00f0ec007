"""terminal-12: tasks at a shell in Harbor's format, in the folder `tasks`, each graded by tests of its own."""

from hud_benchmarks.terminal.benchmarks import family

__all__ = ["family"]
