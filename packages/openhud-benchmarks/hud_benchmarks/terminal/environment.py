"""The environment of the tasks: a workspace with this machine's programs."""

from __future__ import annotations

from pathlib import Path

from hud_integrations.harbor import HarborEnvironment

TASKS = Path(__file__).parent / "tasks"

env = HarborEnvironment(TASKS, name="terminal-12")
