"""Audit of rewards: agents that do none of the work, and the highest reward that each task gives them.

    from hud.audit import Audit

    audit = Audit(Taskset.from_file("tasks.py"))
    await audit.play()
    print(audit.report().mean)

It knows tasks, agents and rewards. It knows nothing of benchmarks: an agent that does the work is given to it.
"""

from hud.audit.audit import SOLVED, Audit
from hud.audit.exploits import EXPLOITS, Exploit
from hud.audit.knowledge import Solution
from hud.audit.report import AuditReport, TaskAudit

__all__ = ["EXPLOITS", "SOLVED", "Audit", "AuditReport", "Exploit", "Solution", "TaskAudit"]
