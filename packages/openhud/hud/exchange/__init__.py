"""Foreign formats of runs and tasks: the ports that exports and sources satisfy, and the format of our own.

Exports join by entry points of the group `hud.exports`, sources by `hud.sources`.
"""

from hud.exchange.foreign_runs import ForeignJob, ForeignRun
from hud.exchange.left_out import LeftOut
from hud.exchange.ports import (
    EnvironmentSource,
    Export,
    RecordedRuns,
    RunExport,
    RunSource,
    Source,
    TaskExport,
    Written,
)
from hud.exchange.registry import exports, sources

__all__ = [
    "EnvironmentSource",
    "Export",
    "ForeignJob",
    "ForeignRun",
    "LeftOut",
    "RecordedRuns",
    "RunExport",
    "RunSource",
    "Source",
    "TaskExport",
    "Written",
    "exports",
    "sources",
]
