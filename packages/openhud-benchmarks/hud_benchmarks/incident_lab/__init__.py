"""The incident lab: a real shop is broken in 24 ways, and agents find out how; `incident-lab/flat` and `incident-lab/team`."""

from hud_benchmarks.incident_lab.benchmarks import family

__all__ = ["family"]
